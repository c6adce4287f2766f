"""The program under fault: run as a process of its own by `tests.faults.harness`.

    python -m tests.faults.driver '{"folder": ..., "kind": "opaque", ...}'

One stream of records (k, v) out of `FOLDER/records.json` into an append table "rows", an upsert
table "totals", and "log", which holds the same totals in the other layout. At a named point of a
batch's life it sends itself a signal. Every point that it reaches is a line of `FOLDER/points.log`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from committers.aggregates import Count, Max, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from tests.faults.harness import SCHEMA, Spec, planned_end, wait_for
from tests.faults.warm import adopt
from tests.one_by_one import OneByOne
from txn import Topology, TopologyConfig, TransactionAttempt, TxnError
from txn.engine.base.killpoints import MAINTENANCE_POINTS, observe
from txn.engine.running import RunningTopology
from txn.interfaces import Spout, SpoutKind
from txn.topology import TxnState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


CONF = {
    "spark.driver.memory": "1g",
    # A process that lives for seconds: C2 would cost it a quarter of them (measured).
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "2",
}


class Span(BaseModel):
    """Records [start, end) of the log."""

    start: int
    end: int


class LogSpout(Spout[Span]):
    """A log of records. How many a batch has depends on txid and attempt: see `planned_end`.

    As an opaque spout it plans each attempt anew, so a replay takes other records than the
    attempt that failed; as a transactional one it is asked once per txid.
    """

    metadata_type = Span

    def __init__(self, records: list[tuple[str, int]], kind: SpoutKind) -> None:
        self.kind = kind
        self._records = records

    def open(self, spark: SparkSession, previous: Span | None) -> StructType:
        """The schema of the records."""
        from txn.spark.differences import parse_ddl

        return parse_ddl(SCHEMA)

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: Span | None
    ) -> Span | None:
        """The records after `previous`; None at the end of the log."""
        start = previous.end if previous is not None else 0
        if start >= len(self._records):
            return None
        wanted = planned_end(start, attempt.txid, attempt.attempt_id)
        return Span(start=start, end=min(wanted, len(self._records)))

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: Span
    ) -> DataFrame:
        """The planned records."""
        # Spark's own literals: no Python worker has to be started for them.
        records = self._records[metadata.start : metadata.end]
        values = ", ".join(f"('{key}', {value}L)" for key, value in records)
        return spark.sql(f"SELECT * FROM VALUES {values} AS records(k, v)")


class Observer:
    """Writes down every point, and sends this process a signal at one of them."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._log = (Path(spec.folder) / "points.log").open("a", buffering=1, encoding="ascii")
        self._commits = 0
        self._sent = False
        self.running: RunningTopology | None = None

    def __call__(self, point: str, attempt: TransactionAttempt) -> None:
        """Called by the pipeline's threads."""
        spec = self._spec
        due = spec.fresh or self._commits > 0
        if point == "before-publish":
            if spec.group and not self._commits:
                behind = spec.group
                wait_for(lambda: self._phases().count("processed") >= behind, what=self._phases)
            group = self._phases().count("committing")
            self._log.write(f"{os.getpid()} group-of-{group} {attempt}\n")
        if point == "after-plan" and spec.at in MAINTENANCE_POINTS and self._commits >= 4:
            wait_for(lambda: False, what="maintenance")  # the end must not come before it
        self._commits += point == "after-committed"
        self._log.write(f"{os.getpid()} {point} {attempt}\n")
        if due and point == spec.at and not self._sent:
            self._sent = True
            self._log.write(f"{os.getpid()} {spec.signal} {attempt}\n")
            os.kill(os.getpid(), getattr(signal, spec.signal))

    def _phases(self) -> str:
        """The phases of the open batches."""
        if self.running is None:
            return ""
        return " ".join(batch.phase for batch in self.running.status().in_flight)


def _spout(spec: Spec, records: list[tuple[str, int]]) -> Spout[Any]:
    if spec.source == "log":
        return LogSpout(records, SpoutKind(spec.kind))
    return FileSpout(
        f"{spec.root}/in/*.csv",
        format="csv",
        schema=SCHEMA,
        files_per_batch=(1, 2),
        storage_options=spec.storage_options,
    )


def build(spec: Spec) -> Topology:
    """The topology that `spec` describes."""
    records = [(k, v) for k, v in json.loads((Path(spec.folder) / "records.json").read_text())]
    topology = Topology("faults", TopologyConfig(**spec.config))
    stream = topology.stream(spec.stream, _spout(spec, records), was=spec.was)

    def append(name: str) -> AppendTable:
        where = f"{spec.root}/{name}"
        return AppendTable(where, semantics=spec.kind, storage_options=spec.storage_options)

    def rows() -> None:
        stream.partition_persist(append("rows"))

    kept: list[TxnState] = []

    def totals() -> None:
        state = StateTable(
            f"{spec.root}/totals",
            semantics=spec.kind,
            buckets=2,
            storage_options=spec.storage_options,
        )
        values = {"n": Count(), "total": Sum("v"), "top": Max("v")}
        kept.append(stream.group_by("k").persistent_aggregate(state, **values))

    def log() -> None:
        state = StateTable(
            f"{spec.root}/log",
            semantics=spec.kind,
            layout="log",
            compact_files=2,
            compact_share=1,
            storage_options=spec.storage_options,
        )
        values = {"n": Count(), "total": Sum("v"), "top": Max("v")}
        stream.group_by("k").persistent_aggregate(state, **values)

    def changes() -> None:
        kept[0].new_values().partition_persist(append("changes"))

    for table in spec.tables:
        {"rows": rows, "totals": totals, "changes": changes, "log": log}[table]()
    return topology


def main(spec: Spec, topology: Topology, packages: Sequence[str] = ()) -> int:
    """Run the topology; its report as JSON on stdout, an error of ours as JSON on stderr."""
    from txn.session import delta_session

    observer = Observer(spec)
    observe(OneByOne(observer) if spec.at == "between-publications" else observer)
    adopt()
    conf = {**CONF, "spark.sql.warehouse.dir": f"{spec.folder}/spark-warehouse", **spec.conf}
    needed = (*packages, *spec.packages)
    spark = delta_session("txn-faults", master=spec.master, conf=conf, packages=needed)
    try:
        observer.running = topology.start(spark, zookeeper=spec.zookeeper, until=spec.until)
        report = observer.running.await_termination(signals=True)
    except TxnError as error:
        failure: dict[str, Any] = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(failure), file=sys.stderr)
        return 3
    print(json.dumps(report.to_json()))
    return 0


if __name__ == "__main__":
    given = Spec.model_validate_json(sys.argv[1])
    sys.exit(main(given, build(given)))
