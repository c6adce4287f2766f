"""One table's log: check the table, and decide what may be appended to it, and when."""
