"""This project's runs: (a), (b), (d), (e), (k) and (l).

Timed: `Topology.run`, from its call to its return: connecting, leadership, making and fencing the
tables, every batch, the end. Not timed: Python, JVM, session and ZooKeeper server starting, and the
same topology over the warm-up files before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from tests.benchmarks.data import SCHEMA
from tests.benchmarks.meter import Meter
from tests.benchmarks.results import percentile
from tests.benchmarks.store import Place
from tests.benchmarks.task import (
    Answer,
    Task,
    answer,
    lap_figures,
    measured,
    same_counts,
    session,
    timed,
    warm_up,
)
from tests.benchmarks.watching import watching
from txn import Topology, TopologyConfig
from txn.embedded import EmbeddedZooKeeper
from txn.engine.reporting.report import BatchReport, RunReport
from txn.machine.heap import settled
from txn.observers import Observer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "run",
    "run_topology",
    "spout",
    "stations_ms",
    "stations_p50_ms",
    "table_of",
    "together_ms",
]

SEMANTICS = "transactional"
"""As the spout is; the peers' guards are of the same kind."""
STEADY_SHARE = 4
"""The steady state leaves out this part of the batches: the first quarter."""


class Ran(NamedTuple):
    """A run that is over."""

    report: RunReport
    table: AppendTable | StateTable
    requests: dict[str, Any]
    """What it asked of a store."""


def spout(files: str, options: Mapping[str, str] | None = None) -> FileSpout:
    """One file, one txid."""
    return FileSpout(
        f"{files}/*.parquet",
        format="parquet",
        schema=SCHEMA,
        files_per_batch=1,
        storage_options=options,
    )


def table_of(
    layout: str, path: str, options: Mapping[str, str] | None = None
) -> AppendTable | StateTable:
    """The table of a run: "append", "log" or "upsert"."""
    if layout == "append":
        return AppendTable(path, SEMANTICS, storage_options=options)
    return StateTable(path, SEMANTICS, layout, storage_options=options)


def run(task: Task) -> Iterator[Answer]:
    """Options: `layout`, and what goes into `TopologyConfig`; or `variants`: name -> config.

    Beside the config, `watched` says that all that can be looked at is looked at meanwhile.
    """
    options = dict(task.options)
    layout = str(options.pop("layout"))
    variants: dict[str, dict[str, Any]] = options.pop("variants", {task.contender: options})
    with EmbeddedZooKeeper(task.folder / "zookeeper", protect=True) as server, task.place as place:
        spark = session("ours", place=place)
        for name, config in variants.items():
            warm = partial(run_topology, spark, place, "warm", server.hosts, layout, config)
            warm_up(task, warm, f"warm-{name}")

        def run_one(one: tuple[str, Path]) -> Ran:
            name, folder = one
            return run_topology(
                spark, place, "rows", server.hosts, layout, variants[name], folder, observers
            )

        observers: list[Observer] = []

        def watched() -> Iterator[tuple[str, Path]]:
            for name, folder in _timed(task, [*variants]):
                if not variants[name].get("watched"):
                    observers[:] = []
                    yield name, folder
                    continue
                with watching(f"embedded:{task.folder}/zookeeper", _name(folder)) as observers[:]:
                    yield name, folder

        for (name, _), meter, ran in measured(watched(), run_one):
            yield _answer(spark, task, name, meter, ran)
        spark.stop()


def _timed(task: Task, names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """(name, folder) of each timed run; several in turn, so often as the sizes say."""
    if len(names) == 1:
        yield from ((names[0], folder) for folder in timed(task, names[0]))
        return
    for lap in range(task.size.laps):
        # Another one begins each time: what comes first in a lap is not always the same.
        for name in (*names[lap % len(names) :], *names[: lap % len(names)]):
            yield name, task.folder / f"{name}-{lap}"


def run_topology(
    spark: SparkSession,
    place: Place,
    part: str,
    zookeeper: str,
    layout: str,
    config: Mapping[str, Any],
    folder: Path,
    observers: Sequence[Observer] = (),
) -> Ran:
    settings = {name: value for name, value in config.items() if name != "watched"}
    topology = Topology(_name(folder), TopologyConfig(**settings))
    rows = topology.stream("rows", spout(place.files(part), place.options))
    table = table_of(layout, place.at(folder), place.options)
    if isinstance(table, AppendTable):
        rows.partition_persist(table)
    else:
        rows.group_by("word").persistent_aggregate(table, count=Count())
    place.forget()
    with settled():  # as `txn run` does
        report = topology.run(spark, zookeeper=zookeeper, until="caught_up", observers=observers)
    return Ran(report, table, place.told(report.batches_committed))


def _name(folder: Path) -> str:
    return f"bench-{folder.name}".replace(" ", "-").replace(",", "")


def _answer(spark: SparkSession, task: Task, name: str, meter: Meter, ran: Ran) -> Answer:
    report, table = ran.report, ran.table
    shown: DataFrame = table.read(spark)
    counts = shown.groupBy("word").count() if isinstance(table, AppendTable) else shown
    batches = list(report.batches)
    correct = same_counts(spark, counts, task.input.expected)
    with Meter() as reading:
        shown.write.format("noop").mode("overwrite").save()
    rate = report.batches_committed / meter.seconds
    return answer(
        rate if task.is_rate else meter.seconds,
        meter,
        correct=correct and report.batches_committed == len(list(task.input.rows.iterdir())),
        contender=name,
        seconds=round(meter.seconds, 3),
        batches=report.batches_committed,
        replays=report.replays,
        read_s=round(reading.seconds, 3),
        **ran.requests,
        steady_batches_per_s=_steady(batches),
        versions=len({version for batch in batches for version in batch.tables.values()}),
        stations_p50_ms=stations_p50_ms(stations_ms(batches)),
        **lap_figures([after - before for before, after in pairwise(_committed(batches))]),
    )


def stations_ms(batches: Sequence[BatchReport]) -> dict[str, list[float]]:
    """Station -> milliseconds since the station before it, one per batch."""
    series: dict[str, list[float]] = {}
    for batch in batches:
        for (_, before), (station, now) in pairwise(batch.times.items()):
            series.setdefault(station, []).append((now - before) * 1000)
    return series


def stations_p50_ms(stations: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The raw figure of that name, out of `stations_ms`."""
    return {name: round(percentile(each, 0.5) or 0.0, 2) for name, each in stations.items()}


def together_ms(stations: Mapping[str, Sequence[float]], names: Sequence[str]) -> list[float]:
    """Milliseconds of some stations of `stations_ms` together, one per batch."""
    return [sum(steps) for steps in zip(*(stations[name] for name in names), strict=True)]


def _committed(batches: Sequence[BatchReport]) -> list[float]:
    return [batch.times["committed"] for batch in batches if "committed" in batch.times]


def _steady(batches: Sequence[BatchReport]) -> float | None:
    """Batches/s without the first quarter, and without start and end of the run."""
    times = _committed(batches)[len(batches) // STEADY_SHARE :]
    if len(times) < 2 or times[-1] <= times[0]:
        return None
    return round((len(times) - 1) / (times[-1] - times[0]), 2)
