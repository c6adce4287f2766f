"""The commands, one module each. None calls another's."""
