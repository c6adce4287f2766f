"""Logs of tables written by hand: as many versions as wanted, in no time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from txn.dashboard.watching.index import LogIndex
from txn.interfaces import Member, Publication

__all__ = ["ABOUT", "BEGAN_MS", "append_version", "counts", "made_table", "publication"]

BEGAN_MS = 1_760_000_000_000
ABOUT = {
    "append": {"txn.kind": "append", "txn.semantics": "opaque"},
    "upsert": {
        "txn.kind": "upsert",
        "txn.semantics": "opaque",
        "txn.keys": '["carrier"]',
        "txn.values": '[["flights", "Count()"]]',
        "txn.buckets": "1",
    },
    "log": {
        "txn.kind": "log",
        "txn.semantics": "transactional",
        "txn.keys": '["carrier"]',
        "txn.values": '[["flights", "Count()"], ["latest", "Max(at)"]]',
    },
}
"""Kind of a table -> the properties with which a topology makes it."""


def publication(
    txid: int, attempt: int = 0, topology: str = "t", *, group: int = 1, **more: Any
) -> Publication:
    """What a version says of its txids; `group` of them, the last is `txid`."""
    first = txid - group + 1
    told: dict[str, Any] = {
        "epoch": 1,
        "rows": 10,
        "read": {"flights": {"files": [{"path": f"data/2013-{txid:06d}.csv"}]}},
        "timings_ms": {"started": 4.0, "processing": 2.0, "staged": 120.0, "processed": 3.0},
        **more,
    }
    members: tuple[Member, ...] = ()
    if group > 1:
        read = told["read"]
        members = tuple(
            Member(txid=each, attempt_id=attempt, read=read, rows=told["rows"])
            for each in range(first, txid + 1)
        )
        told["rows"] *= group
    return Publication(
        topology=topology,
        first_txid=first,
        last_txid=txid,
        attempt_id=attempt,
        members=members,
        **told,
    )


def append_version(
    table: Path,
    version: int,
    said: Publication | Mapping[str, Any] | None = None,
    *,
    at_ms: int = BEGAN_MS,
    rows: pa.Table | None = None,
    removes: tuple[str, ...] = (),
    **info: Any,
) -> str | None:
    """Append one version to a table's log. Returns the file that it adds, if any.

    Args:
        said: the publication; or further keys of `commitInfo`.
        rows: what the version adds, as a Parquet file.
    """
    told = {"timestamp": at_ms, "operation": "WRITE", **info}
    if isinstance(said, Publication):
        told |= {"txn": said.model_dump(mode="json"), "txn_commit": "token"}
    elif said is not None:
        told |= said
    actions: list[dict[str, Any]] = [{"commitInfo": told}]
    path = None
    if rows is not None:
        path = f"part-{version:06d}.parquet"
        pq.write_table(rows, table / path)
        size = (table / path).stat().st_size
        stats = json.dumps({"numRecords": rows.num_rows})
        add = {"path": path, "size": size, "partitionValues": {}, "modificationTime": at_ms}
        actions.append({"add": {**add, "dataChange": True, "stats": stats}})
    gone = {"dataChange": True, "deletionTimestamp": at_ms, "size": 1}
    actions += [{"remove": {"path": each, **gone}} for each in removes]
    log = table / "_delta_log"
    text = "\n".join(map(json.dumps, actions))
    (log / f"{version:020d}.json").write_text(text, "utf-8")
    return path


def made_table(
    table: Path,
    columns: Mapping[str, Any],
    kind: str | None = "append",
    topology: str = "t",
    at_ms: int = BEGAN_MS,
) -> Path:
    """Version 0 of a table: its columns and properties."""
    (table / "_delta_log").mkdir(parents=True)
    fields = [
        {"name": name, "type": of, "nullable": True, "metadata": {}} for name, of in columns.items()
    ]
    about = {"txn.topology": topology, **ABOUT[kind]} if kind else {}
    actions = [
        {"commitInfo": {"timestamp": at_ms, "operation": "CREATE TABLE", "txn_commit": "token"}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "11111111-1111-4111-8111-111111111111",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [],
                "configuration": about,
                "createdTime": at_ms,
            }
        },
    ]
    text = "\n".join(map(json.dumps, actions))
    (table / "_delta_log" / f"{0:020d}.json").write_text(text, "utf-8")
    return table


def counts(index: LogIndex) -> dict[str, int]:
    """How many txids, versions and failures there are in an index."""
    tables = ("txids", "versions", "failures")
    return {table: index._database.ask(f"SELECT count(*) FROM {table}")[0][0] for table in tables}
