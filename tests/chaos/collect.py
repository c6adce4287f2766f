"""What is left in the end, written into the history: logs, rows, ZooKeeper's state."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import deltalake

from tests.chaos.history import History
from tests.chaos.place import Place
from tests.chaos.topology import NAME
from tests.logs import commits
from txn import TopologyConfig
from txn.zookeeper import read_status

__all__ = ["collect", "log_versions"]

MARKS = ("txn_fence", "txn_settled", "txn_compaction")


def collect(
    history: History, place: Place, tables: Mapping[str, Mapping[str, str]], zookeeper: str
) -> None:
    """Write it all down."""
    for name, table in tables.items():
        path, options = f"{place.tables}/{name}", dict(place.direct)
        for version in log_versions(path, options):
            history.write({"kind": "version", "table": name, **version})
        newest = deltalake.DeltaTable(path, storage_options=options)
        if table["shape"] == "state":
            _state(history, newest, name)
        else:
            columns = ["id", "k", "v"] if table["shape"] == "append" else ["id", "x"]
            _rows(history, newest, name, columns)
    status = read_status(zookeeper, NAME, TopologyConfig(zookeeper_acl="open"))
    history.add(
        "zookeeper",
        epoch=status.epoch,
        committed=status.progress.committed.txid,
        open=[batch.txid for batch in status.progress.batches],
        quarantined=[record.txid for record in status.quarantine],
    )


def log_versions(path: str, options: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Every version of a table's log, oldest first; see `tests.chaos.history`."""
    for number, commit in commits(path, options):
        actions = (json.loads(line) for line in commit.splitlines())
        info = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
        said = {key: _parsed(info[key]) for key in ("txn", *MARKS) if key in info}
        publication = said.get("txn")
        yield {
            "version": number,
            "at": info.get("timestamp", 0) / 1000,
            "epoch": next((one["epoch"] for one in said.values()), None),
            "publication": None if publication is None else _publication(publication),
        }


def _parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _publication(said: dict[str, Any]) -> dict[str, Any]:
    alone = {"txid": said["last_txid"], "attempt_id": said["attempt_id"], "read": said["read"]}
    return {
        "first": said["first_txid"],
        "last": said["last_txid"],
        "members": [
            {
                "txid": member["txid"],
                "attempt": member["attempt_id"],
                "reads": {s: _reads(m) for s, m in member["read"].items() if m is not None},
            }
            for member in said["members"] or [alone]
        ],
    }


def _reads(metadata: dict[str, Any]) -> list[list[Any]]:
    """What a spout was to read: parts of a topic, or whole files."""
    if "files" in metadata:
        return [[PurePosixPath(file["path"]).name, 0, None] for file in metadata["files"]]
    return [[name, at["start"], at["end"]] for name, at in metadata["read"].items()]


def _rows(history: History, newest: deltalake.DeltaTable, name: str, wanted: list[str]) -> None:
    table = newest.to_pyarrow_table(columns=["txid", *wanted])
    by_txid: dict[int, list[tuple[Any, ...]]] = {}
    columns = [column.to_pylist() for column in table.columns]
    for txid, *row in zip(*columns, strict=True):
        by_txid.setdefault(txid, []).append(tuple(row))
    for txid in sorted(by_txid):
        history.write({"kind": "rows", "table": name, "txid": txid, "rows": by_txid[txid]})


def _state(history: History, newest: deltalake.DeltaTable, name: str) -> None:
    columns = ["k", "n", "total", "top"]
    table = newest.to_pyarrow_table(columns=columns)
    if name.endswith("_log"):  # partials, of which a key has several
        values = [("n", "sum"), ("total", "sum"), ("top", "max")]
        table = table.group_by("k").aggregate(values)
        table = table.select(["k", "n_sum", "total_sum", "top_max"])
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    history.write({"kind": "state", "table": name, "rows": sorted(rows)})
