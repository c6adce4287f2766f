"""A txid's changes in a state table: the touched keys, with values before and after.

Source: Trident's `newValuesStream`, which has only the new values. Each layout computes them in its
own way: `committers.upsert_layout.changes`, `committers.log_layout.changes`.
"""

from __future__ import annotations

from collections.abc import Sequence

from txn.errors import TopologyError

__all__ = ["refuse_taken_names"]


def refuse_taken_names(keys: Sequence[str], values: Sequence[str], table: str) -> None:
    """Refuse a table whose changes would have two columns of one name.

    Raises:
        TopologyError: a `prev_<value>` is the name of a key or another value.
    """
    taken = {name.lower() for name in (*keys, *values)}
    for name in values:
        if f"prev_{name}".lower() in taken:
            raise TopologyError(
                f"The new values of state table {table} need a column 'prev_{name}' for the "
                f"previous value of '{name}', but the table has one already. Rename it.",
                number="TXN-113",
            )
