"""Names of columns in Spark's SQL."""

from __future__ import annotations

__all__ = ["passing", "quoted"]


def quoted(name: str) -> str:
    """Quote a column name, so that Spark takes it literally, dots included."""
    return "`" + name.replace("`", "``") + "`"


def passing(name: str) -> str:
    """The name of a temporary column beside those of a table.

    It has a space, which Delta allows in no name, so no key or value can have the same name.
    """
    return f"txn {name}"
