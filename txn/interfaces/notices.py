"""Where a spout or a table tells the user something that an operator should see at once."""

from __future__ import annotations

__all__ = ["NOTICES"]

NOTICES = "txn.notices"
"""Name of a logger: its warnings, and those of loggers below it, go to the log like all others, and
`txn run` shows them on the screen as well."""
