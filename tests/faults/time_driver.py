"""A driver that counts in event time: duplicates, sessions, and keys that end.

    python -m tests.faults.time_driver '{"folder": ..., "kind": "opaque", ...}'

The value of a record is its event time, in seconds since `BEGIN`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.published_table import PublishedTable
from committers.state_table import StateTable
from tests.faults.driver import LogSpout, main
from tests.faults.harness import Spec
from txn import Topology, TopologyConfig
from txn.interfaces import SpoutKind

__all__ = [
    "AFTER",
    "BEGIN",
    "DELAY",
    "GAP",
    "WITHIN",
    "append_table",
    "build",
    "published_table",
    "state_table",
]

BEGIN = 1_767_225_600
"""Seconds since 1970."""
DELAY, WITHIN, GAP, AFTER = 120, 300, 180, 240
"""Seconds: of the watermark, of duplicates, of sessions, of keys."""


def append_table(spec: Spec, name: str) -> AppendTable:
    """One of the tables "rows", "once" and "visits"."""
    where = f"{spec.root}/{name}"
    return AppendTable(where, semantics=spec.kind, storage_options=spec.storage_options)


def state_table(spec: Spec, layout: str) -> StateTable:
    """The state in one of its layouts."""
    options = spec.storage_options
    return StateTable(f"{spec.root}/{layout}", spec.kind, layout, storage_options=options)


def published_table(spec: Spec, layout: str) -> PublishedTable:
    """What the state in one of its layouts is published as."""
    where = f"{spec.root}/{layout}-shown"
    return PublishedTable(where, storage_options=spec.storage_options)


def build(spec: Spec) -> Topology:
    """All rows, each key once, all sessions that are over, and what has not ended."""
    records = [(k, v) for k, v in json.loads((Path(spec.folder) / "records.json").read_text())]
    topology = Topology("time", TopologyConfig(**spec.config))
    spout = LogSpout(records, SpoutKind(spec.kind))
    stream = topology.stream("records", spout).transform(
        lambda rows: rows.selectExpr("k", "v", f"timestamp_seconds({BEGIN} + v) AS at")
    )
    stream.partition_persist(append_table(spec, "rows"))
    events = stream.watermark("at", f"{DELAY} seconds", late="drop")
    once = events.drop_duplicates("k", within=f"{WITHIN} seconds")
    once.partition_persist(append_table(spec, "once"))
    visits = events.session_windows("k", f"{GAP} seconds")
    visits.partition_persist(append_table(spec, "visits"))
    for layout in ("upsert", "log"):
        state = events.group_by("k").persistent_aggregate(
            state_table(spec, layout),
            expire_after=f"{AFTER} seconds",
            by="last event",
            n=Count(),
            total=Sum("v"),
        )
        state.publish(f"{spec.root}/{layout}-shown", every="2 txids")
    return topology


if __name__ == "__main__":
    given = Spec.model_validate_json(sys.argv[1])
    sys.exit(main(given, build(given)))
