"""Names of columns in Spark's SQL."""

from __future__ import annotations

__all__ = ["quoted"]


def quoted(name: str) -> str:
    """Quote a column name, so that Spark takes it literally, dots included."""
    return "`" + name.replace("`", "``") + "`"
