"""A reader of two tables in a process of its own, which looks ten times a second.

    python -m tests.faults.story_reader ORDERS TOTALS

Prints one line of JSON for each look: the txid, the columns of both tables, and "differs" if the
totals are not those of the orders up to the same txid. Ends when its input does.
"""

from __future__ import annotations

import json
import select
import sys
from collections import defaultdict
from typing import Any

from deltalake import DeltaTable

from txn.delta.commits import txid_app


def look(orders: str, totals: str) -> dict[str, Any] | None:
    """Compare the two tables at the txid of the totals; None before there are any."""
    try:
        state = DeltaTable(totals)
    except Exception:  # noqa: BLE001 - not there yet
        return None
    txid = state.transaction_version(txid_app("shop")) or 0
    rows = [r for r in DeltaTable(orders).to_pyarrow_table().to_pylist() if r["txid"] <= txid]
    spent: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        spent[row["customer"]].append(row["amount"])
    values = state.to_pyarrow_table().to_pylist()
    largest = any("largest" in row for row in values)
    expected = {c: (sum(v), max(v) if largest else None) for c, v in spent.items()}
    shown = {row["customer"]: (row["spent"], row.get("largest")) for row in values}
    buckets = state.metadata().configuration["txn.buckets"]
    told = {"txid": txid, "buckets": buckets, "rows": len(rows), "largest": largest}
    return told if shown == expected else {**told, "differs": [repr(shown), repr(expected)]}


def main() -> None:
    """Look until the input ends."""
    while True:
        told = look(sys.argv[1], sys.argv[2])
        if told is not None:
            print(json.dumps(told), flush=True)
        if select.select([sys.stdin], [], [], 0.1)[0]:
            return


if __name__ == "__main__":
    main()
