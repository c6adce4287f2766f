"""The workloads, letter by letter, and who competes in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks.sizes import Rows, Sizes

__all__ = ["WORKLOADS", "Contender", "Workload"]

_OURS = "tests.benchmarks.ours"
_PEERS = "tests.benchmarks.peers"
_BARE = "bare session"


@dataclass(frozen=True)
class Contender:
    """One process of each round."""

    name: str
    module: str
    options: Mapping[str, Any] = field(default_factory=dict)
    x: int | None = None
    several: tuple[str, ...] = ()
    """Names of its figures, if they are not its own."""

    @property
    def figures(self) -> tuple[str, ...]:
        """The contenders whose figures it gives."""
        return self.several or (self.name,)


@dataclass(frozen=True)
class Workload:
    """What is measured, in which unit, and how a chart of it looks."""

    letter: str
    title: str
    unit: str
    """Of `Run.value`."""
    x: str = ""
    """What is varied; "": nothing."""
    log_axes: str = ""
    """Axes of the chart with logarithmic scale: "", "x" or "xy"."""
    baseline: str = ""
    """The contender beside which the table puts the others, where nothing is varied."""

    far: bool = False
    """Whether input and tables lie on an S3 server, each request to which takes 30 ms."""

    def input(self, sizes: Sizes) -> Rows | None:
        """The set of files that its contenders read."""
        if self.far:
            return sizes.far_tiny if self.letter == "i" else sizes.far_big
        if self.letter in ("b", "l"):
            return sizes.tiny
        if self.letter == "m":
            return sizes.kept
        return sizes.big if self.letter in ("a", "d", "e", "k", "q") else None

    def contenders(self, sizes: Sizes) -> tuple[Contender, ...]:
        """Who competes, in the order of a round."""
        return tuple(_CONTENDERS[self.letter](sizes))


WORKLOADS: dict[str, Workload] = {
    workload.letter: workload
    for workload in (
        Workload("a", "large batches: the whole run", "s", baseline="log"),
        Workload("b", "tiny batches: committed batches a second", "batches/s", baseline="append"),
        Workload(
            "c", "one commit, by size of the state: p50", "ms", x="keys in the table", log_axes="xy"
        ),
        Workload("d", "tracking: the whole run", "s", baseline="acker on"),
        Workload("e", "txids in flight: the whole run", "s", x="max_spout_pending"),
        Workload(
            "f",
            "coordination of one batch: p50",
            "ms",
            x="partitions of the source",
            log_axes="x",
        ),
        Workload("g", "memory of the driver, garbage collected", "MB", x="batches committed"),
        Workload("h", "(a) on S3, 30 ms a request: the whole run", "s", baseline="log", far=True),
        Workload(
            "i",
            "(b) on S3, 30 ms a request: committed batches a second",
            "batches/s",
            baseline="append",
            far=True,
        ),
        Workload("k", "(a), looked at: the whole run", "s", baseline="not looked at"),
        Workload("l", "(b), looked at: batches a second", "batches/s", baseline="not looked at"),
        Workload("j", "reading a state: p50", "ms", x="keys in the table", log_axes="xy"),
        Workload("m", "bytes written, by bytes of the result", "x", baseline="SS MERGE"),
        Workload("p", "commit turn of many tables: p50", "ms", x="tables of the topology"),
        Workload("q", "(a), a cold process: start to exit", "s", baseline="log"),
        Workload("r", "a cold process: start to its first batch", "s", baseline=_BARE),
    )
}


def _large(_: Sizes) -> Iterator[Contender]:
    for layout in ("log", "append", "upsert"):
        yield Contender(layout, _OURS, {"layout": layout})
        if layout != "upsert":
            options = {"layout": layout}
            yield Contender(f"no guarantee, {layout}", f"{_PEERS}.unguarded", options)
    yield Contender("one Spark job", f"{_PEERS}.plain")
    yield Contender("Flink", f"{_PEERS}.flink")
    yield Contender("Flink, Parquet", f"{_PEERS}.flink", {"format": "parquet"})
    yield Contender("SS MERGE", f"{_PEERS}.streaming", {"mode": "merge"})
    yield Contender("SS stateful", f"{_PEERS}.streaming", {"mode": "stateful"})


def _tiny(_: Sizes) -> Iterator[Contender]:
    for layout in ("append", "log"):
        yield Contender(layout, _OURS, {"layout": layout})
    yield Contender("SS append", f"{_PEERS}.streaming", {"mode": "append"})


def _commits(sizes: Sizes) -> Iterator[Contender]:
    for keys in sizes.states:
        for name, way in (("log", "log"), ("upsert", "upsert"), ("MERGE", "merge")):
            yield Contender(name, "tests.benchmarks.wrapped", {"way": way}, keys)


def _tracking(_: Sizes) -> Iterator[Contender]:
    """One process: differences of a hundredth are lost between two JVMs."""
    variants = {
        "acker on": {"ackers": 1},
        "acker off": {"ackers": 0},
        "verify rows": {"verify": "rows"},
    }
    options = {"layout": "log", "variants": variants}
    yield Contender("tracking", _OURS, options, several=tuple(variants))


def _in_flight(sizes: Sizes) -> Iterator[Contender]:
    for pending in sizes.pending:
        for layout in ("log", "upsert"):
            options = {"layout": layout, "max_spout_pending": pending}
            yield Contender(layout, _OURS, options, pending)


def _partitions(sizes: Sizes) -> Iterator[Contender]:
    for partitions in sizes.partitions:
        yield Contender("batch", "tests.benchmarks.coordination", x=partitions)


def _memory(_: Sizes) -> Iterator[Contender]:
    series = ("Java heap", "Python")
    yield Contender("driver", "tests.benchmarks.wrapped", {"table": "append"}, several=series)


def _looked_at(layout: str) -> Callable[[Sizes], Iterator[Contender]]:
    """One process, as for (d)."""
    variants = {"not looked at": {}, "metrics, traces, page": {"watched": True}}
    options = {"layout": layout, "variants": variants}
    return lambda _: iter((Contender("looked at", _OURS, options, several=tuple(variants)),))


def _far_large(_: Sizes) -> Iterator[Contender]:
    for layout in ("log", "append", "upsert"):
        yield Contender(layout, _OURS, {"layout": layout})
    yield Contender("SS MERGE", f"{_PEERS}.streaming", {"mode": "merge"})


def _far_tiny(_: Sizes) -> Iterator[Contender]:
    for layout in ("append", "log"):
        yield Contender(layout, _OURS, {"layout": layout})
    for name, checkpoint in (("SS append", "far"), ("SS append, checkpoint on disk", "disk")):
        options = {"mode": "append", "checkpoint": checkpoint}
        yield Contender(name, f"{_PEERS}.streaming", options)


def _storage(_: Sizes) -> Iterator[Contender]:
    for layout in ("log", "upsert"):
        yield Contender(layout, "tests.benchmarks.storage", {"layout": layout})
    yield Contender("SS MERGE", "tests.benchmarks.storage", {"mode": "merge"})


def _tables(sizes: Sizes) -> Iterator[Contender]:
    for tables in sizes.tables:
        yield Contender("turn", "tests.benchmarks.tables", x=tables)


def _cold(_: Sizes) -> Iterator[Contender]:
    programs = {"log": "ours", "one Spark job": "plain", "SS MERGE": "merge", "Flink": "flink"}
    for name, program in programs.items():
        yield Contender(name, "tests.benchmarks.cold", {"be": program})


def _first_batch(_: Sizes) -> Iterator[Contender]:
    """One process, as for (d): the goal is about their difference."""
    programs = {_BARE: "bare", "first batch": "first"}
    series = (*programs, "beyond the bare session")
    yield Contender("both", "tests.benchmarks.cold", {"several": programs}, several=series)


def _reads(sizes: Sizes) -> Iterator[Contender]:
    for keys in sizes.read_states:
        for way in ("log", "upsert", "plain"):
            series = (f"{way}, all", f"{way}, all, run ended", f"{way}, 100 keys")
            yield Contender(way, "tests.benchmarks.reads", {"way": way}, keys, several=series)


_CONTENDERS = {
    "a": _large,
    "b": _tiny,
    "c": _commits,
    "d": _tracking,
    "e": _in_flight,
    "f": _partitions,
    "g": _memory,
    "h": _far_large,
    "i": _far_tiny,
    "j": _reads,
    "k": _looked_at("log"),
    "l": _looked_at("append"),
    "m": _storage,
    "p": _tables,
    "q": _cold,
    "r": _first_batch,
}
