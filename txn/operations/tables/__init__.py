"""The tables of a topology: what their logs say, and their upkeep."""
