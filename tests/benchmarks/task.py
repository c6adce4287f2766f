"""What a contender's process is told, what it answers, and what all of them need on the way."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tests.benchmarks.data import DataSet
from tests.benchmarks.meter import Meter
from tests.benchmarks.results import percentile
from tests.benchmarks.sizes import FULL, QUICK, Sizes
from tests.benchmarks.store import Disk, FarStore, Place
from txn.session import delta_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "MASTER",
    "MEMORY",
    "Answer",
    "Task",
    "answer",
    "lap_figures",
    "measured",
    "measured_warm",
    "repeated",
    "same_counts",
    "session",
    "timed",
    "warm_up",
]

R = TypeVar("R")
T = TypeVar("T")

MASTER = "local[2]"
MEMORY = "6g"
"""Heap of every contender's JVM."""


@dataclass(frozen=True)
class Task:
    """One process: one contender (or one point of it), once."""

    workload: str
    contender: str
    module: str
    """It has `run(task) -> Iterator[Answer]`."""
    scratch: str
    """A folder that is empty at the start and deleted afterwards."""
    sizes: str = "full"
    data: str = ""
    """Folder of the input's set, for those that read one."""
    x: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    far: bool = False
    """Whether input and tables lie on a store far away."""
    warm_secs: float | None = None
    """As for `Sizes.warmed`; None: as the sizes say."""

    @property
    def place(self) -> Place:
        """Where input and tables lie: to be entered."""
        return FarStore(self.input) if self.far else Disk(self.input)

    @property
    def is_rate(self) -> bool:
        """Whether its figure is batches/s, and not seconds."""
        return self.workload in ("b", "i", "l")

    @property
    def size(self) -> Sizes:
        """The sizes of all workloads."""
        sizes = QUICK if self.sizes.startswith(QUICK.name) else FULL
        return sizes if self.warm_secs is None else sizes.warmed(self.warm_secs)

    @property
    def input(self) -> DataSet:
        """The input."""
        return DataSet(Path(self.data))

    @property
    def folder(self) -> Path:
        """The empty folder."""
        return Path(self.scratch)

    def to_json(self) -> str:
        """For the command line of the process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """What `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Answer:
    """One figure out of a contender's process; see `results.Run`."""

    value: float
    correct: bool
    contender: str | None = None
    """None: the contender of the task."""
    x: int | None = None
    """None: the x of the task."""
    noise: float | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


def warm_up(task: Task, run: Callable[[Path], object], label: str = "warm") -> None:
    """Run untimed, each time into a new folder, for `warm_secs`.

    Java compiles what runs long: a contender whose run is short has seen less of its code compiled
    after one of them than one whose run is long.
    """
    seconds = task.size.far_warm_secs if task.far else task.size.warm_secs
    if seconds < 0:
        return
    for folder in repeated(task, seconds, label):
        run(folder)
        shutil.rmtree(folder, ignore_errors=True)


def timed(task: Task, label: str = "timed") -> Iterator[Path]:
    """A new folder for each timed run, for `timed_secs`: short runs differ more from each other."""
    return repeated(task, 0.0 if task.far else task.size.timed_secs, label)


def measured(runs: Iterable[R], run: Callable[[R], T]) -> list[tuple[R, Meter, T]]:
    """Time each run, all of them before anybody looks at a result.

    Other queries in between make Java throw away what it has compiled for the run, and the next one
    is slower by a quarter.
    """
    done: list[tuple[R, Meter, T]] = []
    for one in runs:
        with Meter() as meter:
            result = run(one)
        done.append((one, meter, result))
    return done


def measured_warm(task: Task, run: Callable[[str, Path], T]) -> list[tuple[Path, Meter, T]]:
    """Warm up, then measure: what a contender does that has one way to run.

    Args:
        run: called with the part of the input ("warm", "rows") and a new folder for the results.
    """
    warm_up(task, lambda folder: run("warm", folder))
    return measured(timed(task), lambda folder: run("rows", folder))


def repeated(
    task: Task, seconds: float, label: str, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Path]:
    """Names of new folders, until `seconds` have passed; at least one."""
    began = clock()
    for number in itertools.count():
        yield task.folder / f"{label}-{number}"
        if clock() - began >= seconds:
            return


def answer(
    value: float, meter: Meter, *, correct: bool, contender: str | None = None, **detail: Any
) -> Answer:
    """An answer with what the meter saw, beside the figure itself."""
    noise = None if meter.noise is None else round(meter.noise, 4)
    return Answer(
        round(value, 4),
        correct,
        contender,
        noise=noise,
        detail={**meter.detail(), **detail},
    )


def session(
    name: str, conf: Mapping[str, str] | None = None, place: Place | None = None
) -> SparkSession:
    """The same session for every contender on Spark: two threads, six gigabytes."""
    own = {"spark.driver.memory": MEMORY, **(place.conf if place else {}), **(conf or {})}
    return delta_session(name, MASTER, own, packages=place.packages if place else ())


def same_counts(spark: SparkSession, counts: DataFrame, expected: Path) -> bool:
    """Whether `counts` (word, count) is what the oracle says, word for word, none twice."""
    from pyspark.sql import functions as sf

    wanted = spark.read.parquet(str(expected)).select("word", sf.col("count").alias("wanted"))
    found = counts.select("word", sf.col("count").cast("bigint").alias("found"))
    both = wanted.join(found, "word", "full_outer")
    wrong = both.where("wanted IS NULL OR found IS NULL OR wanted <> found").count()
    return bool(wrong == 0 and found.count() == wanted.count())


def lap_figures(seconds: Sequence[float]) -> dict[str, float]:
    """p50 and p95 of the times of batches, in milliseconds, for the raw figures."""

    def figures() -> Iterator[tuple[str, float]]:
        for name, share in (("batch_p50_ms", 0.5), ("batch_p95_ms", 0.95)):
            value = percentile(seconds, share)
            if value is not None:
                yield name, round(value * 1000, 2)

    return dict(figures())
