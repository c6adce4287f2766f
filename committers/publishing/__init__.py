"""One table's log: what it must be, what may be appended to it, and when."""
