"""What both layouts of a state table have in common: partial aggregates, keys, reading."""
