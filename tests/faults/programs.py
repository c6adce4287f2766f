"""The program under fault, changed again and again while its state lives.

    python -m tests.faults.programs '{"folder": ..., "program": 2, ...}'

Its tables: "totals" (at first upsert), "log" (at first log) and "rows" (append), which publish in
this order. What differs from
program to program is in `build`; every change of issue "A program changes" that tables take is in
one of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from committers.aggregates import Count, Max, Min, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from tests.faults.driver import LogSpout, main
from tests.faults.harness import Spec
from txn import Topology, TopologyConfig
from txn.interfaces import Aggregate, SpoutKind


def build(spec: Spec) -> Topology:
    """The topology of one program.

    0: as it was at first. 1: a value and a column are new. 2: other buckets, a value renamed, the
    column gone. 3: each state table has the other's layout.
    """
    number = spec.program
    records = [(k, v) for k, v in json.loads((Path(spec.folder) / "records.json").read_text())]
    tables = {name: f"{spec.folder}/{name}" for name in ("rows", "totals", "log")}
    config: dict[str, Any] = {**spec.config}
    if number >= 2:
        config["rebuilt_tables"] = (tables["totals"], tables["log"])
        config["dropped_columns"] = (f"{tables['rows']}:w",)
    topology = Topology("faults", TopologyConfig(**config))
    stream = topology.stream("records", LogSpout(records, SpoutKind(spec.kind)))
    values: dict[str, Aggregate] = {"n": Count(), "total": Sum("v"), "top": Max("v")}
    if number >= 1:
        values["least"] = Min("v")
    layouts = ("log", "upsert") if number == 3 else ("upsert", "log")
    for name, layout in zip(("totals", "log"), layouts, strict=True):
        own, options = dict(values), {}
        if name == "log" and number >= 2:
            own["sum"] = own.pop("total")
            options["columns_were"] = {"sum": "total"}
        state = StateTable(
            tables[name],
            semantics=spec.kind,
            layout=layout,
            buckets=2 if number < 2 else 3,
            **options,  # type: ignore[arg-type]
        )
        stream.group_by("k").persistent_aggregate(state, **own)
    rows = stream.transform(lambda df: df.selectExpr("*", "v * 2 AS w")) if number == 1 else stream
    rows.partition_persist(AppendTable(tables["rows"], semantics=spec.kind))
    return topology


if __name__ == "__main__":
    given = Spec.model_validate_json(sys.argv[1])
    sys.exit(main(given, build(given)))
