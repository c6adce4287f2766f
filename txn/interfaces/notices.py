"""The logger for messages of a spout or a table that an operator should see at once."""

from __future__ import annotations

__all__ = ["NOTICES"]

NOTICES = "txn.notices"
"""Name of that logger. Its warnings, and those of loggers below it, go to the log like all others;
`txn run` shows them on the screen as well."""
