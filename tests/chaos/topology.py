"""The topology under chaos: one driver, run as a process of its own by the harness.

    python -m tests.chaos.topology '{"folder": ..., "servers": ..., ...}'

Two sources: a Kafka topic (opaque) and a folder of CSV files (transactional). Each goes into an
append table, an upsert table and a log table of its own semantics. Below them are a join of both
streams within the txid, a query of one stream's state as of the last committed txid, and in every
other run, since no txids share a version then, the new values of both upsert tables and a query as
of txid - 1.
What the driver comes to is written to `out`, a line each. It dies when its standard input ends, so
that no driver outlives the harness, and it can be told to kill itself at a named point.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from committers.aggregates import Count, Max, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from spouts.kafka import KafkaSpout
from tests.chaos.history import History
from tests.chaos.records import CHANGE
from tests.children import LOOPBACK
from txn import Topology, TopologyConfig, TransactionAttempt, TxnError
from txn.engine.base.killpoints import observe
from txn.machine.jars import S3A_PACKAGES, class_archive, delta_jars
from txn.topology import Stream, TxnState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["NAME", "TOPIC", "DriverSpec", "tables_of"]

NAME = "chaos"
TOPIC = "records"
POLL_SECS = 0.05
S3A_CONF = {
    # As it comes, Hadoop's client waits for up to half a minute after a 503.
    "spark.hadoop.fs.s3a.retry.throttle.interval": "50ms",
    "spark.hadoop.fs.s3a.retry.interval": "50ms",
}

ELASTIC_CONF = {
    "spark.cores.max": "3",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.executorIdleTimeout": "5s",
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
    # A machine that is cut off or paused is to be noticed within a run.
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "4s",
    "spark.executor.heartbeatInterval": "4s",
}
"""Executors that come, go and hand over their blocks, on machines that may be cut off."""

TABLES = {
    f"{stream}_{kind}": {"stream": stream, "shape": shape, "semantics": semantics}
    for stream, semantics in (("kafka", "opaque"), ("files", "transactional"))
    for kind, shape in (("rows", "append"), ("upsert", "state"), ("log", "state"))
} | {
    "joined": {"stream": "kafka", "shape": "joined", "semantics": "opaque", "of": "files"},
    "seen": {"stream": "kafka", "shape": "seen", "semantics": "opaque", "of": "files"},
}
"""Name -> what the checker has to know of it; `of`: the other stream that its rows depend on."""
LATE_TABLES = {
    "kafka_changes": {"stream": "kafka", "shape": "changes", "semantics": "opaque"},
    "files_changes": {"stream": "files", "shape": "changes", "semantics": "transactional"},
    "queried": {"stream": "kafka", "shape": "queried", "semantics": "opaque", "of": "files"},
}
"""Those that are computed in the commit turn; a topology that has any publishes no groups."""


def tables_of(seed: int) -> dict[str, dict[str, str]]:
    """The tables of a run; with odd seeds those of the commit turn, too."""
    return {**TABLES, **(LATE_TABLES if seed % 2 else {})}


class DriverSpec(BaseModel):
    """What one driver is to do."""

    life: int
    tables: str
    """Folder or location of the tables."""
    files: str
    """Folder or location of the files to be read."""
    storage_options: dict[str, str] = Field(default_factory=dict)
    """How a location is reached."""
    out: str
    zookeeper: str
    servers: str
    """Kafka's."""
    master: str
    session_secs: float
    late: bool
    """Whether it has `LATE_TABLES`."""
    until: str = "forever"
    kafka_records: tuple[int, int]
    files_per_batch: tuple[int, int]
    at: str | None = None
    """The point at which it kills itself and its JVM."""
    nth: int = 1
    """At which arrival there, counted from its first commit on."""
    host: str = LOOPBACK
    """The driver's address."""
    isolated: bool = False
    """Whether executors have neither the driver's folders nor its jars."""
    executor_options: str = ""
    scratch: str = "/tmp"
    """Where Spark and Java may leave things."""


def build(spec: DriverSpec) -> Topology:
    """The topology."""
    config = TopologyConfig(
        zookeeper_timeout_secs=spec.session_secs,
        zookeeper_acl="open",
        # The executors are other processes of this machine.
        shared_folders=() if spec.storage_options else (spec.tables,),
    )
    topology = Topology(NAME, config)
    kafka = KafkaSpout(spec.servers, topics=[TOPIC], max_records_per_batch=spec.kafka_records)
    files = FileSpout(
        f"{spec.files}/*.csv",
        format="csv",
        schema="id bigint, k string, v bigint",
        files_per_batch=spec.files_per_batch,
        storage_options=spec.storage_options,
    )
    streams = {
        "kafka": topology.stream("kafka", kafka).transform(_parsed),
        "files": topology.stream("files", files),
    }
    values = {"n": Count(), "total": Sum("v"), "top": Max("v")}
    states: dict[str, TxnState] = {}
    options = spec.storage_options
    for name, table in tables_of(int(spec.late)).items():
        stream, path, semantics = (
            streams[table["stream"]],
            f"{spec.tables}/{name}",
            table["semantics"],
        )
        if table["shape"] == "append":
            stream.partition_persist(AppendTable(path, semantics, storage_options=options))
        elif name.endswith("_upsert"):
            state = StateTable(path, semantics, buckets=2, storage_options=options)
            states[table["stream"]] = stream.group_by("k").persistent_aggregate(state, **values)
        elif name.endswith("_log"):
            state = StateTable(
                path,
                semantics,
                layout="log",
                compact_files=4,
                compact_share=0.3,
                storage_options=options,
            )
            stream.group_by("k").persistent_aggregate(state, **values)
        else:
            below = _below(table, streams, states)
            below.partition_persist(AppendTable(path, semantics, storage_options=options))
    return topology


def _below(
    table: dict[str, str], streams: dict[str, Stream], states: dict[str, TxnState]
) -> Stream:
    """`id` and `x` of each row: the record and what it met, or the key and what became of it."""
    stream = streams[table["stream"]]
    match table["shape"]:
        case "joined":
            other = streams[table["of"]].group_by("k").aggregate(n=Count())
            made = stream.transform(lambda df: df.select("id", "k")).join(other, "k", "left")
        case "seen":
            made = stream.transform(lambda df: df.select("id", "k"))
            made = made.state_query(states[table["of"]], on="k")
        case "queried":
            made = stream.transform(lambda df: df.select("id", "k"))
            made = made.state_query(states[table["of"]], on="k", as_of="txid-1")
        case _:
            changes = states[table["stream"]].new_values()
            moved = f"n * {CHANGE} + coalesce(prev_n, -1)"
            return changes.transform(
                lambda df: df.selectExpr("CAST(substr(k, 2) AS bigint) AS id", f"{moved} AS x")
            )
    return made.transform(lambda df: df.selectExpr("id", "coalesce(n, -1L) AS x"))


def _parsed(records: DataFrame) -> DataFrame:
    words = records.selectExpr("split(CAST(value AS string), ',') AS w")
    return words.selectExpr("CAST(w[0] AS bigint) AS id", "w[1] AS k", "CAST(w[2] AS bigint) AS v")


class Suicide:
    """Kills this process and its JVM at the n-th arrival at a point after the first commit."""

    def __init__(self, spec: DriverSpec, history: History) -> None:
        self._spec = spec
        self._history = history
        self._left = spec.nth
        self._committed = False
        self._lock = threading.Lock()

    def __call__(self, point: str, attempt: TransactionAttempt) -> None:
        """Called by the pipeline's threads."""
        with self._lock:
            if point == self._spec.at and self._committed:
                self._left -= 1
                if self._left == 0:
                    what = {"what": "point", "point": point, "attempt": str(attempt)}
                    self._history.add("driver", life=self._spec.life, **what)
                    os.killpg(os.getpgrp(), signal.SIGKILL)
            self._committed |= point == "after-committed"


def session(spec: DriverSpec) -> SparkSession:
    """A session on the cluster, with all that makes a start quick."""
    from txn.session import delta_session

    jars = os.pathsep.join(str(jar) for jar in delta_jars())
    # C2 would cost a process that lives for seconds a quarter of them.
    options = ["-XX:TieredStopAtLevel=1", "-Xss4m", f"-Djava.io.tmpdir={spec.scratch}"]
    if class_archive().is_file():
        options += [f'-XX:SharedArchiveFile="{class_archive()}"']
        options += ["-Xlog:disable", "-Xlog:all=error:stderr"]
    conf = {
        "spark.driver.memory": "1g",
        "spark.driver.host": spec.host,
        "spark.driver.bindAddress": spec.host,
        "spark.driver.extraClassPath": jars,  # as in local mode: the archive of classes fits
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.executor.extraJavaOptions": spec.executor_options,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.default.parallelism": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.locality.wait": "0",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": f"{Path(spec.out).parent}/spark-warehouse",
    }
    conf |= ELASTIC_CONF if spec.isolated else {"spark.executor.extraClassPath": jars}
    packages = [*KafkaSpout.packages]
    if spec.storage_options:
        packages += S3A_PACKAGES
        conf |= S3A_CONF
    return delta_session("chaos", master=spec.master, conf=conf, packages=packages)


def main(spec: DriverSpec) -> int:
    """Run to the end; a line for each thing that happens."""
    threading.Thread(target=_die_with_the_harness, daemon=True).start()
    history = History(Path(spec.out))
    words = "%(asctime)s %(levelname)s %(name)s %(message)s"
    logging.basicConfig(format=words, stream=sys.stdout)
    logging.getLogger("txn").setLevel(logging.INFO)

    def tell(what: str, **more: Any) -> None:
        history.add("driver", life=spec.life, what=what, **more)

    if spec.at is not None:
        observe(Suicide(spec, history))
    try:
        running = build(spec).start(session(spec), zookeeper=spec.zookeeper, until=spec.until)
        status = running.status()
        tell("leading", epoch=status.epoch, committed=status.committed_txid)
        committed, replays = status.committed_txid, 0
        while running.is_active:
            time.sleep(POLL_SECS)
            status = running.status()
            if status.committed_txid > committed:
                committed = status.committed_txid
                tell("commit", txid=committed)
            if status.replays > replays:
                replays = status.replays
                tell("replays", count=replays, last=status.last_failure)
        report = running.await_termination()
    except TxnError as error:
        tell("error", error=type(error).__name__, message=str(error)[:2000])
        return 3
    tell("report", ended=report.ended, txid=report.committed_txid, replays=report.replays)
    return 0


def _die_with_the_harness() -> None:
    while os.read(0, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(DriverSpec.model_validate(json.loads(sys.argv[1]))))
