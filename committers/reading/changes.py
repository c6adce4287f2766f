"""One DuckDB query for the changes of a state between two txids.

Rows are those of Delta's change data feed: `_change_type` is "insert", "delete", or for a key whose
values changed "update_preimage" and "update_postimage".
"""

from __future__ import annotations

from collections.abc import Sequence

from committers.reading.types import quoted

__all__ = ["CHANGE_TYPE", "changes_sql"]

CHANGE_TYPE = "_change_type"
"""As in Delta's change data feed."""


def changes_sql(keys: Sequence[str], values: Sequence[str], before: str, after: str) -> str:
    """The query for the changes between two states.

    Args:
        before: the query for all keys and values of the earlier one.
        after: that of the later one.
    """
    names = [quoted(name) for name in (*keys, *values)]
    same = " AND ".join(f"a.{k} IS NOT DISTINCT FROM b.{k}" for k in map(quoted, keys)) or "true"
    differ = " OR ".join(f"a.{v} IS DISTINCT FROM b.{v}" for v in map(quoted, values))

    def rows(side: str, kind: str, source: str) -> str:
        columns = ", ".join(f"{side}.{name}" for name in names)
        return f"SELECT {columns}, '{kind}' AS {CHANGE_TYPE} FROM {source}"

    met = f"a JOIN b ON {same} WHERE {differ}"
    parts = [
        rows("a", "delete", f"a WHERE NOT EXISTS (SELECT 1 FROM b WHERE {same})"),
        rows("a", "update_preimage", met),
        rows("b", "update_postimage", met),
        rows("b", "insert", f"b WHERE NOT EXISTS (SELECT 1 FROM a WHERE {same})"),
    ]
    return f"WITH a AS ({before}), b AS ({after}) {' UNION ALL '.join(parts)}"
