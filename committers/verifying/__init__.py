"""Check that a table's log is still what its topology wrote: no version overwritten or added."""
