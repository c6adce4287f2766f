"""What both layouts of a state table share: its description, partials, keys, reading, changes."""
