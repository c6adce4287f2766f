"""Cut records out of their source, and handle those that do not parse."""
