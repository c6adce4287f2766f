"""(c) and (g): the measurements of `commit` and `memory`, as contenders of the benchmark."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks import commit, memory
from tests.benchmarks.meter import Meter
from tests.benchmarks.results import percentile
from tests.benchmarks.task import Answer, Task, answer, session
from txn.errors import SetupError

__all__ = ["run"]

MEMORY_SERIES = {"Java heap": "java_heap_mb", "Python": "python_rss_mb"}


def run(task: Task) -> Iterator[Answer]:
    """(c): option `way`, and `x` is the number of keys; (g): option `table`."""
    if task.workload == "c":
        yield _commits(task)
    else:
        yield from _memory(task)


def _commits(task: Task) -> Answer:
    assert task.x is not None
    spark = session("commits")
    with Meter() as meter:
        told = commit.measure(
            spark,
            task.folder,
            way=task.options["way"],
            keys=task.x,
            batches=task.size.commits,
            rows=task.size.commit_rows,
        )
    spark.stop()
    each = told["commit_ms"]
    return answer(
        percentile(each, 0.5) or 0.0,
        meter,
        correct=told["correct"],
        commit_ms=each,
        p95_ms=round(percentile(each, 0.95) or 0.0, 2),
        build_s=told["build_s"],
        **told["detail"],
    )


def _memory(task: Task) -> Iterator[Answer]:
    # A small heap: what is kept by mistake shows sooner, and full collections are quick.
    spark = session("memory", {"spark.driver.memory": "1g"})
    batches, every = task.size.memory_batches, task.size.memory_every
    try:
        with Meter() as meter:
            samples = memory.measure(
                spark, task.folder, batches=batches, every=every, table=task.options["table"]
            )
    except RuntimeError as error:  # no jcmd: a Java runtime, and no JDK
        raise SetupError(str(error)) from error
    spark.stop()
    complete = [sample.batch // every for sample in samples] == [
        number + 1 for number in range(batches // every)
    ]
    for sample in samples:
        for name, attribute in MEMORY_SERIES.items():
            told = answer(
                getattr(sample, attribute),
                meter,
                correct=complete,
                contender=name,
                committed=sample.batch,
                metaspace_mb=sample.java_metaspace_mb,
                java_rss_mb=sample.java_rss_mb,
                table_files=sample.table_files,
            )
            yield Answer(**{**vars(told), "x": sample.batch // every * every})
