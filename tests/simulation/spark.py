"""As much of Spark as the shell and the committers touch: frames of tuples, jobs that write files.

A job takes simulated time, may lose an executor, hang, or be cancelled by its tag. What it was
writing may stay behind, and the executors of a driver that died may write on for a while.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from committers.publishing.files import BUCKET, ActiveFile
from committers.staging.area import StagingArea
from committers.state.expiring import NEWEST
from tests.simulation import rows as model
from tests.simulation.delta import Blob, SimStorage, retried
from tests.simulation.kernel import Task
from tests.simulation.world import current_world
from txn.delta.commits import TXID
from txn.errors import StagedFileError
from txn.interfaces import WATERMARK, StagedFile
from txn.spark.file_writer import WrittenFile

__all__ = [
    "FUNCTIONS",
    "Frame",
    "NoWatch",
    "Schema",
    "SimJudged",
    "SimRowWriter",
    "SimStagingArea",
    "SparkFault",
    "SparkSession",
    "blob_of",
    "columns_of",
    "measured",
    "no_settings",
    "nothing_of",
    "query_rows",
    "same_frame",
    "same_session",
    "side_by_side",
]

ROW_BYTES = 1000
LARGE_ROW_BYTES = 40_000
"""Of a partial of a state whose keys end: a compaction takes some files and leaves earlier ones."""


class SparkFault(Exception):  # noqa: N818 - Spark's own name for it
    """An error of Spark's: `txn.engine.base.failures` tells it by its module and its condition."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(f"[{condition}] {text}")
        self._condition = condition

    def getCondition(self) -> str:  # noqa: N802 - Spark's name
        return self._condition


SparkFault.__module__ = "pyspark.errors.simulated"


class Kind(str):
    """`DataType`."""

    __slots__ = ()

    def simpleString(self) -> str:  # noqa: N802 - Spark's name
        return str(self)


@dataclass(frozen=True)
class Field:
    """`StructField`."""

    name: str
    dataType: str = "long"  # noqa: N815 - Spark's name


class Schema(tuple[Field, ...]):
    """`StructType`."""

    __slots__ = ()

    def jsonValue(self) -> dict[str, Any]:  # noqa: N802
        return {"type": "struct", "fields": [field.name for field in self]}

    def fieldNames(self) -> list[str]:  # noqa: N802
        return [field.name for field in self]

    @property
    def fields(self) -> tuple[Field, ...]:
        return tuple(self)

    def __getitem__(self, name: Any) -> Any:
        # Whoever asks by name asks for the time of a key.
        return (
            Field(name, Kind("timestamp")) if isinstance(name, str) else super().__getitem__(name)
        )


class Column:
    """`Column`: a value of each row; None is NULL."""

    def __init__(self, of: Callable[[Any], Any]) -> None:
        self.of = of

    def _with(self, other: Column, operation: Callable[[Any, Any], Any]) -> Column:
        def of(row: Any) -> Any:
            one, two = self.of(row), other.of(row)
            return None if one is None or two is None else operation(one, two)

        return Column(of)

    def __gt__(self, other: Column) -> Column:
        return self._with(other, operator.gt)

    def __le__(self, other: Column) -> Column:
        return self._with(other, operator.le)

    def __and__(self, other: Column) -> Column:
        return Column(lambda row: self.of(row) and other.of(row))

    def __or__(self, other: Column) -> Column:
        return Column(lambda row: self.of(row) or other.of(row))

    def __invert__(self) -> Column:
        return Column(lambda row: None if self.of(row) is None else not self.of(row))

    def isNull(self) -> Column:  # noqa: N802
        return Column(lambda row: self.of(row) is None)

    def cast(self, kind: str) -> Column:
        return self


class FUNCTIONS:
    """`pyspark.sql.functions`, for the conditions by which keys end."""

    @staticmethod
    def lit(value: Any) -> Column:
        return Column(lambda _: value)

    @staticmethod
    def col(name: str) -> Column:
        if name.strip("`") == NEWEST:
            return Column(lambda row: row.newest)
        return Column(lambda row: model.time_of_key(row.key))

    @staticmethod
    def timestamp_micros(value: Column) -> Column:
        return value


RECORDS = Schema([Field("record")])


class Frame:
    """A DataFrame, computed already."""

    def __init__(self, rows: Iterable[Any], parts: Sequence[Frame] = ()) -> None:
        self.rows = tuple(rows)
        self.parts = tuple(parts)
        """What it is a union of, each with files of its own."""
        self.schema = RECORDS
        self.columns = ["key", "record"]
        self.stream_parts: Sequence[str] = ()
        self.watermark: int | None = None

    def where(self, condition: Column) -> Frame:
        return Frame(row for row in self.rows if condition.of(row))

    def withColumn(self, name: str, value: Column) -> Frame:  # noqa: N802
        assert name == WATERMARK
        frame = Frame(self.rows, self.parts)
        frame.watermark = value.of(None)
        return frame

    def sortWithinPartitions(self, *_: str) -> Frame:  # noqa: N802
        return self

    def coalesce(self, _: int) -> Frame:
        return self

    def repartition(self, _: int, *columns: str) -> Frame:
        return self

    def localCheckpoint(self, eager: bool = True) -> Frame:  # noqa: N802
        return self

    def persist(self) -> Frame:
        return self

    def unpersist(self) -> None:
        return None

    def unionAll(self, other: Frame) -> Frame:  # noqa: N802
        return Frame((*self.rows, *other.rows))

    def collect(self) -> list[Any]:
        run_job(lambda: None)
        return list(self.rows)

    def unionByName(self, other: Frame) -> Frame:  # noqa: N802
        return Frame((*self.rows, *other.rows))

    def join(self, other: Frame, on: Sequence[str], how: str) -> Frame:
        assert list(on) == ["key"]
        keys = current_world().plan.keys
        return Frame(model.matches(self.rows, other.rows, keys, how))

    def select(self, *_: str) -> Frame:
        return self

    @property
    def write(self) -> Writer:
        return Writer(self)


class SimJudged:
    """In place of `txn.dataflow.expectations.Judged`: the one rule is a watermark."""

    def __init__(self, frame: Frame, rule: Any, watermark: int | None) -> None:
        self.frame = frame
        self.verdicts = {rule: "late"}
        self.counted = False
        self._rule = rule
        self._watermark = watermark

    @classmethod
    def of(cls, frame: Frame, rules: Sequence[Any], watermark: int | None = None) -> SimJudged:
        (rule,) = rules
        return cls(frame, rule, watermark)

    def passing(self, rule: object) -> Frame:
        assert rule is self._rule
        if self._rule.on_violation == "keep":
            return self.frame
        frame = Frame([row for row in self.frame.rows if not model.is_late(row, self._watermark)])
        frame.stream_parts = self.frame.stream_parts
        return frame

    def counts(self, number: int) -> Frame:
        rows = self.frame.rows
        late = sum(model.is_late(row, self._watermark) for row in rows)
        return Frame([(number, [late], "", max(map(model.event_time_of, rows), default=None))])


def columns_of(stream: str, kept: object) -> Schema:
    """In place of `txn.dataflow.columns.columns_of`."""
    assert kept == RECORDS.jsonValue()
    return RECORDS


def nothing_of(frame: object) -> Frame:
    """In place of `txn.dataflow.evaluation._empty_frame`."""
    return Frame(())


def query_rows(node: object, inputs: Sequence[Frame]) -> Frame:
    """In place of `StateQuery.compute`."""
    rows, state = inputs
    return Frame(model.asked(rows.rows, state.rows, current_world().plan.keys))


def no_rows(spark: object, schema: object) -> Frame:
    """In place of `txn.spark.rows.no_rows`."""
    return Frame(())


def same_frame(frame: Frame, session: object) -> Frame:
    """In place of `txn.spark.own_session.moved` and `to_write`: there is one session."""
    return frame


def no_settings(spark: SparkSession) -> dict[str, str]:
    """In place of `txn.spark.own_session.settings_of`."""
    return {}


def same_session(spark: SparkSession) -> SparkSession:
    """In place of `txn.spark.own_session.own_session`."""
    return spark


def no_thread(spark: SparkSession) -> None:
    """In place of `txn.spark.own_session.make_active`: no thread has a session."""


class NoWatch:
    """In place of `txn.spark.own_session.Watch`: there are no settings."""

    def __init__(self, spark: SparkSession) -> None:
        pass

    def check(self) -> None:
        """Nothing changes."""


def side_by_side(frames: Sequence[Frame], session: object = None) -> Frame:
    """In place of `committers.expressions.side_by_side`."""
    return Frame([row for frame in frames for row in frame.rows], frames)


class Context:
    """`SparkContext`: tags, and the jobs that run under them."""

    master = "local[2]"

    def __init__(self, slots: int) -> None:
        self.defaultParallelism = slots
        self.jobs: dict[Task, list[bool]] = {}

    def addJobTag(self, tag: str) -> None:  # noqa: N802
        current_world().kernel.alive().tags.add(tag)

    def removeJobTag(self, tag: str) -> None:  # noqa: N802
        current_world().kernel.alive().tags.discard(tag)

    def setLocalProperty(self, name: str, value: object) -> None:  # noqa: N802
        return None

    def setJobDescription(self, text: str) -> None:  # noqa: N802
        return None

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802
        world = current_world()
        world.io("cancel")
        for task, cancelled in self.jobs.items():
            if tag in task.tags and not cancelled:
                cancelled.append(True)
                world.kernel.wake(task)


class SparkSession:
    """One session per simulated process."""

    def __init__(self, slots: int) -> None:
        self.sparkContext = Context(slots)

    def createDataFrame(self, rows: Sequence[Any], schema: object) -> Frame:  # noqa: N802
        del schema
        return Frame(rows)


class Writer:
    """`DataFrameWriter`, for Parquet."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._bucketed = False

    def partitionBy(self, column: str) -> Writer:  # noqa: N802
        assert column == BUCKET
        self._bucketed = True
        return self

    def parquet(self, url: str) -> None:
        """Run the job."""
        world = current_world()
        files = self._files(url)
        run_job(lambda: world.put_files(url, files))

    def _files(self, url: str) -> dict[str, Blob]:
        table, folder = url.split("/", 1)
        files: dict[str, Blob] = {}
        for number, frame in enumerate(self._frame.parts or (self._frame,)):
            if not self._bucketed:
                if frame.rows:
                    files[f"{folder}/part-{number}.parquet"] = blob_of(frame.rows)
                continue
            buckets: dict[int, list[Any]] = {}
            for row in frame.rows:
                buckets.setdefault(current_world().bucket(table, row.key), []).append(row)
            for bucket, rows in buckets.items():
                files[f"{folder}/{BUCKET}={bucket}/part-{number}.parquet"] = blob_of(rows)
        return files


def blob_of(rows: Sequence[Any]) -> Blob:
    """A data file with these rows."""
    is_large = any(isinstance(row, model.Partial) and row.bound is not None for row in rows)
    return Blob(tuple(rows), (LARGE_ROW_BYTES if is_large else ROW_BYTES) * len(rows) + 1)


def run_job(write: Callable[[], None]) -> None:
    """Let a job take its time; `write` puts down what it has made."""
    world = current_world()
    world.io("job")
    kernel, random = world.kernel, world.random
    task = kernel.alive()
    context = world.context_of(task.process)
    fault = world.faults.first("job failed", "job hangs")
    if fault is not None:
        world.note(fault, task.process)
    seconds = random.uniform(0.005, 0.08)
    if fault == "job hangs":
        seconds = world.hang_secs * random.uniform(0.5, 2)
    if world.faults.on and random.random() < 0.1:
        # A driver that dies, or cancels, does not stop the tasks at once.
        kernel.at(kernel.now + seconds, write)
    cancelled: list[bool] = []
    context.jobs[task] = cancelled
    try:
        kernel.suspend(seconds)
    finally:
        context.jobs.pop(task, None)
    if cancelled:
        if world.faults.on and random.random() < 0.3:
            # The driver hears of it late: the next attempt is at work by then.
            kernel.sleep(random.uniform(0, 0.5))
        raise SparkFault("SPARK_JOB_CANCELLED", "Job 7 was cancelled")
    if fault == "job failed":
        if random.random() < 0.5:
            write()
        raise SparkFault("INTERNAL_ERROR_EXECUTOR", "ExecutorLostFailure (executor 2 exited)")
    write()


class SimRowWriter:
    """In place of `committers.staging.writing.RowWriter`: the files are those of the job."""

    def __init__(self, storage: SimStorage, options: object) -> None:
        self._storage = storage

    def write(self, rows: Frame, folder: str, partition_by: str | None = None) -> list[WrittenFile]:
        """Run the job."""
        writer = rows.write
        if partition_by is not None:
            writer = writer.partitionBy(partition_by)
        writer.parquet(self._storage.url(folder))
        return [
            WrittenFile(path, size, _partition(path, partition_by))
            for path, size in self._storage.files(folder)
        ]


def _partition(path: str, column: str | None) -> dict[str, str | None]:
    if column is None:
        return {}
    return {column: path.split(f"{column}=")[1].split("/", maxsplit=1)[0]}


class SimStagingArea(StagingArea):
    """The real staging area, but that a file's footer is known without Parquet."""

    nearby = None
    _storage: SimStorage

    def _footer(self, storage: SimStorage, written: WrittenFile) -> tuple[StagedFile, Any]:
        path = written.path
        blob = storage.table.blobs.get(path)
        if blob is None:
            raise StagedFileError(f"{path} is gone")
        rows = blob.rows
        firsts = [row[0] for row in rows]
        if type(firsts[0]) is tuple:
            firsts = [repr(one) for one in firsts]
        summary = {"first": (0, min(firsts), max(firsts))}
        file = StagedFile(path, written.size, len(rows), written.partition, stats_of(rows))
        return file, summary


def measured(file: ActiveFile, storage: SimStorage) -> StagedFile | None:
    """In place of `committers.publishing.txid_bounds.measured`."""
    retried(lambda: current_world().ask("footer"), "footer")
    blob = storage.table.blobs.get(file.path)
    if blob is None:
        return None
    rows = blob.rows
    return StagedFile(file.path, file.size, len(rows), dict(file.partition), stats_of(rows))


def stats_of(rows: Sequence[Any]) -> str:
    """Delta's statistics of one file: the bounds of its txids."""
    txids = [row.txid for row in rows]
    return json.dumps(
        {
            "numRecords": len(rows),
            "minValues": {TXID: min(txids)},
            "maxValues": {TXID: max(txids)},
        }
    )
