"""State in event time beside Structured Streaming, whose state is in RocksDB, on the same files.

    python -m tests.benchmarks.event_time duplicates|join|sessions [--rows N] [--rounds 1]
    python -m tests.benchmarks.event_time ends [--keys N]
    python -m tests.benchmarks.event_time rest [--txids N] [--plot FILE.svg]

- duplicates: events of which each id comes twice on average; all ids stay known.
- join: orders and payments within an hour of each other, half of which match.
- sessions: clicks of users with one in forty minutes on average, sessions after thirty without one.
- ends: the commit turn of a `log` state of which each txid ends one key of a hundred, with the rule
  and without it.
- rest: bytes of all tables that a program in event time keeps, over txids.

Each contender has a process of its own, one after the other. Printed as JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from spouts.rate import RateSpout
from tests.benchmarks.meter import Meter
from tests.benchmarks.ours import stations_ms, together_ms
from tests.benchmarks.peers.streaming import CONF
from tests.benchmarks.results import percentile
from tests.benchmarks.task import session
from txn import Topology, TopologyConfig
from txn.embedded import EmbeddedZooKeeper
from txn.operations.changes.tables import RebuildCost

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.engine.reporting.report import RunReport
    from txn.topology import Stream

TURN = ("turn", "prepared", "published", "committed")
FILES, APART_MS = 20, 4
"""Files of a stream, and milliseconds of event time between two of its rows."""
HOUR = 3_600_000 // APART_MS
"""Rows in an hour of event time."""
TIME = f"timestamp_millis(1767225600000 + id * {APART_MS})"
COLUMNS: Mapping[str, Mapping[str, list[str]]] = {
    "duplicates": {
        "events": [
            "xxhash64(IF(id % 2 = 0, id, pmod(xxhash64(id), id + 1)) DIV 2) AS event",
            "CAST(id % 1000 AS int) AS value",
            f"{TIME} AS at",
        ]
    },
    "join": {
        "orders": ["id AS number", "CAST(id % 1000 AS int) AS amount", f"{TIME} AS at"],
        "payments": [
            f"id - pmod(xxhash64(id), {2 * HOUR}) AS number",
            "CAST(id % 7 AS int) AS method",
            f"{TIME} AS paid",
        ],
    },
    "sessions": {
        "clicks": [
            f"pmod(xxhash64(id), {2 * HOUR // 3}) AS user",
            "CAST(id % 1000 AS int) AS value",
            f"{TIME} AS at",
        ]
    },
}
ROWS = {"duplicates": 20_000_000, "join": 10_000_000, "sessions": 10_000_000}


def write_files(spark: SparkSession, work: str, folder: Path, rows: int) -> None:
    """The files of each stream, in the order of event time."""
    for stream, columns in COLUMNS[work].items():
        for number in range(FILES):
            part = spark.range(number * rows // FILES, (number + 1) * rows // FILES, 1, 2)
            target = folder / stream
            part.selectExpr(*columns).coalesce(1).write.mode("append").parquet(str(target))
            (made,) = (file for file in target.glob("part-*") if file.suffix == ".parquet")
            made.rename(target / f"file-{number:03}.parquet")


# --- the same work in both ---------------------------------------------------------------------


def _ours(work: str, streams: Mapping[str, Stream]) -> Stream:
    if work == "duplicates":
        events = streams["events"].watermark("at", "10 minutes")
        return events.drop_duplicates("event", within="7 days")
    if work == "join":
        orders = streams["orders"].watermark("at", "10 minutes")
        payments = streams["payments"].watermark("paid", "10 minutes")
        return orders.join(payments, "number", within="1 hour")
    clicks = streams["clicks"].watermark("at", "10 minutes", late="drop")
    sessions = clicks.session_windows("user", "30 minutes")
    return sessions.group_by("user", "session_window").aggregate(n=Count())


def _theirs(work: str, streams: Mapping[str, DataFrame]) -> DataFrame:
    from pyspark.sql import functions as sf

    if work == "duplicates":
        # The delay is the only time that there is for a key to stay known.
        events = streams["events"].withWatermark("at", "7 days")
        return events.dropDuplicatesWithinWatermark(["event"])
    if work == "join":
        orders = streams["orders"].withWatermark("at", "10 minutes").alias("o")
        payments = streams["payments"].withWatermark("paid", "10 minutes").alias("p")
        near = "paid BETWEEN at - INTERVAL 1 HOUR AND at + INTERVAL 1 HOUR"
        joined = orders.join(payments, sf.expr(f"o.number = p.number AND {near}"))
        return joined.select("o.number", "amount", "at", "method", "paid")
    clicks = streams["clicks"].withWatermark("at", "10 minutes")
    sessions = clicks.groupBy("user", sf.session_window("at", "30 minutes"))
    return sessions.agg(sf.count(sf.lit(1)).alias("n"))


def run_ours(spark: SparkSession, work: str, files: Path, folder: Path) -> dict[str, Any]:
    """Run the work as a topology; what its commit turns took."""
    topology = Topology(work, TopologyConfig(max_spout_pending=3))
    streams = {
        name: topology.stream(
            name, FileSpout(files / name / "*.parquet", format="parquet", files_per_batch=1)
        )
        for name in COLUMNS[work]
    }
    _ours(work, streams).partition_persist(AppendTable(folder / "table"))
    report = _run(spark, topology, folder)
    turns = together_ms(stations_ms(list(report.batches)), TURN)
    return {"turn_p50_ms": percentile(turns, 0.5), "replays": report.replays}


def run_theirs(spark: SparkSession, work: str, files: Path, folder: Path) -> dict[str, Any]:
    """Run the work as a streaming query with `availableNow` into Delta's sink."""
    streams = {}
    for name in COLUMNS[work]:
        schema = spark.read.parquet(str(files / name)).schema
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        streams[name] = stream.parquet(str(files / name))
    writer = _theirs(work, streams).writeStream.format("delta").outputMode("append")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "table"))
    query.awaitTermination()
    return {"batches": len(query.recentProgress)}


CONTENDERS: Mapping[str, Callable[[SparkSession, str, Path, Path], dict[str, Any]]] = {
    "ours": run_ours,
    "SS": run_theirs,
}


def contend(work: str, contender: str, files: Path, folder: Path) -> dict[str, Any]:
    """Run one contender; seconds, rows of its table, and a sum over them to compare."""
    spark = session("event-time", CONF if contender == "SS" else None)
    with Meter() as meter:
        told = CONTENDERS[contender](spark, work, files, folder)
    rows = spark.read.format("delta").load(str(folder / "table"))
    columns = [name for name in rows.columns if name != "txid" and name not in ("value", "at")]
    of = columns if work == "duplicates" else [name for name in rows.columns if name != "txid"]
    found = rows.selectExpr("count(*)", f"bit_xor(xxhash64({', '.join(sorted(of))}))").first()
    spark.stop()
    noise = None if meter.noise is None else round(meter.noise, 3)
    return {"seconds": round(meter.seconds, 1), "found": list(found or ()), "noise": noise, **told}


# --- the end of keys -----------------------------------------------------------------------------


def ends(folder: Path, keys: int, *, with_rule: bool) -> dict[str, Any]:
    """Bring all keys in a hundred txids, then a hundred that end as many: the turns of these."""
    spark = session("ends")
    topology = Topology("ends", TopologyConfig(max_spout_pending=3))
    each = keys // 100
    # A key per row; a row per second of event time.
    numbers = topology.stream("numbers", RateSpout(each, total=200 * each))
    events = numbers.transform(
        lambda rows: rows.selectExpr("value AS key", "timestamp_seconds(1767225600 + value) AS at")
    )
    rule = {"expire_after": f"{100 * each} seconds", "by": "last event"} if with_rule else {}
    table = StateTable(folder / "table", layout="log")
    grouped = events.watermark("at", "1 second").group_by("key")
    grouped.persistent_aggregate(table, **rule, n=Count())  # type: ignore[arg-type]
    report = _run(spark, topology, folder)
    turns = together_ms(stations_ms(list(report.batches)[110:]), TURN)
    left = table.read(spark).count()
    spark.stop()
    return {
        "seconds": round(report.seconds, 1),
        "turn_p50_ms": percentile(turns, 0.5),
        "turn_p95_ms": percentile(turns, 0.95),
        "keys_left": left,
    }


# --- tables at rest ------------------------------------------------------------------------------

LABELS = {
    "keys": "keys of the last hour (drop_duplicates)",
    "sessions": "rows of open sessions",
    "log": "users of the last hour, log",
    "upsert": "users of the last hour, upsert",
}


def rest(folder: Path, txids: int) -> dict[str, Any]:
    """Run a program that keeps all kinds of state in event time; bytes of its tables by txid."""
    spark = session("rest")
    topology = Topology("rest", TopologyConfig(max_spout_pending=3))
    numbers = topology.stream("numbers", RateSpout(1_000, total=1_000 * txids))
    # A minute of event time per txid; each event twice; a user has a click in three minutes.
    events = numbers.transform(
        lambda rows: rows.selectExpr(
            "value DIV 2 AS event",
            "pmod(xxhash64(value), 3000) + (value DIV 600000) * 3000 AS user",
            "timestamp_millis(1767225600000 + value * 60) AS at",
        )
    ).watermark("at", "1 minute", late="drop")
    once = events.drop_duplicates("event", within="1 hour")
    once.partition_persist(AppendTable(folder / "once"))
    visits = events.session_windows("user", "10 minutes").group_by("user", "session_window")
    visits.aggregate(n=Count()).partition_persist(AppendTable(folder / "visits"))
    for layout in ("log", "upsert"):
        users = StateTable(folder / f"users-{layout}", layout=layout)  # type: ignore[arg-type]
        events.group_by("user").persistent_aggregate(
            users, expire_after="1 hour", by="last event", n=Count()
        )
    own = {
        "keys": folder / "rest_numbers_keys_event",
        "sessions": folder / "rest_numbers_sessions_user_600s",
        **{layout: folder / f"users-{layout}" for layout in ("log", "upsert")},
    }
    sizes: dict[str, list[int]] = {name: [] for name in own}
    with EmbeddedZooKeeper(folder / "zookeeper", protect=True) as server:
        for until in range(txids // 40, txids + 1, txids // 40):
            topology.run(spark, zookeeper=server.hosts, until=until)
            for name, table in own.items():
                sizes[name].append(_active_bytes(table))
    spark.stop()
    return {"every": txids // 40, "bytes": sizes}


def plot(told: Mapping[str, Any], file: Path) -> None:
    """Draw the bytes of each table over txids."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    mpl.rcParams |= {"svg.hashsalt": "at rest", "font.size": 9}
    figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    for name, sizes in told["bytes"].items():
        txids = [told["every"] * (n + 1) for n in range(len(sizes))]
        axes.plot(txids, [size / 1e6 for size in sizes], label=LABELS[name])
    axes.set(xlabel="txid", ylabel="MB", yscale="log", xlim=(0, txids[-1]))
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(file, metadata={"Date": None})


def _active_bytes(table: Path) -> int:
    from deltalake import DeltaTable

    return RebuildCost.of(DeltaTable(str(table))).bytes


def _run(spark: SparkSession, topology: Topology, folder: Path) -> RunReport:
    with EmbeddedZooKeeper(folder / "zookeeper", protect=True) as server:
        return topology.run(spark, zookeeper=server.hosts, until="caught_up")


# --- the command ---------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=[*COLUMNS, "ends", "rest"])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--txids", type=int, default=2_000)
    parser.add_argument("--plot", type=Path, help="a file for the picture of `rest`")
    parser.add_argument("--one", help="a contender; for a process of its own")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(_one(options)))
        return
    with tempfile.TemporaryDirectory(prefix="event-time-") as scratch:
        told = _all(options, Path(scratch))
    print(json.dumps(told, indent=1))
    if options.plot is not None:
        plot(told["ours"][0], options.plot)


def _one(options: argparse.Namespace) -> dict[str, Any]:
    folder: Path = options.folder
    if options.work == "ends":
        return ends(folder, options.keys, with_rule=options.one == "with the rule")
    if options.work == "rest":
        return rest(folder, options.txids)
    return contend(options.work, options.one, folder.parent / "files", folder)


def _all(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    contenders = {"ends": ["with the rule", "without it"], "rest": ["ours"]}
    if options.work in COLUMNS:
        spark = session("files")
        rows = options.rows or ROWS[options.work]
        write_files(spark, options.work, scratch / "files", rows)
        spark.stop()
    told: dict[str, Any] = {}
    for number in range(options.rounds):
        for contender in contenders.get(options.work, list(CONTENDERS)):
            folder = scratch / f"{contender.replace(' ', '-')}-{number}"
            folder.mkdir()
            command = [sys.executable, "-m", "tests.benchmarks.event_time", *sys.argv[1:]]
            command += ["--one", contender, "--folder", str(folder)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr[-3000:])
            told.setdefault(contender, []).append(json.loads(done.stdout.splitlines()[-1]))
            print(f"{contender}: {told[contender][-1]}", file=sys.stderr, flush=True)
    return told


if __name__ == "__main__":
    main()
