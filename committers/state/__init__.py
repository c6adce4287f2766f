"""The shared parts of both state layouts: partial aggregates, keys, removal, reading."""
