"""The driver of test_row_replays.py: files of records, some malformed, into rows and totals.

    python -m tests.faults.row_replay_driver '{"folder": ..., "zookeeper": ...}'

The folder's files end in its name: `FOLDER/in/*.csv` for a folder that is called csv.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from tests.faults.driver import main
from tests.faults.harness import Spec
from txn import Topology, TopologyConfig

__all__ = ["build"]


def build(spec: Spec) -> Topology:
    """The topology over the files of the folder."""
    folder = Path(spec.folder)
    form: Any = folder.name
    spout = FileSpout(
        f"{folder}/in/*.{form}",
        format=form,
        schema="id bigint, k string, v int",
        bad_rows="set_aside",
        **({"header": True} if form == "csv" else {}),
    )
    config = TopologyConfig(zookeeper_acl="open", **spec.config)
    topology = Topology("faults", config, bad_rows=AppendTable(folder / "bad", "transactional"))
    stream = topology.stream("records", spout)
    stream.partition_persist(AppendTable(folder / "rows", "transactional"))
    totals = StateTable(folder / "totals", "transactional", buckets=2)
    stream.group_by("k").persistent_aggregate(totals, n=Count(), total=Sum("v"))
    return topology


if __name__ == "__main__":
    given = Spec.model_validate_json(sys.argv[1])
    sys.exit(main(given, build(given)))
