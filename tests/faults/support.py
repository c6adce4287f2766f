"""For fault tests within one process: observers that come off again, tables as tuples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import deltalake
import pytest

from tests.one_by_one import OneByOne
from txn.attempts import TransactionAttempt
from txn.engine.base.killpoints import observe
from txn.errors import FailedException, TxnError

__all__ = [
    "CrashedError",
    "Points",
    "attempts",
    "clean_logs",
    "crash_at",
    "crashing_at",
    "failing_first",
    "first_other",
    "observing",
    "rows_of",
    "staged_files",
]

Rows = TypeVar("Rows")
Observer = Callable[[str, TransactionAttempt], None]


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Call `observer` at every point of every batch within the block.

    Tables publish one after the other, so that between publications the first is alone.
    """
    stop = observe(OneByOne(observer))
    try:
        yield
    finally:
        stop()


class Points:
    """An observer that remembers, and does something when an attempt comes to a point."""

    def __init__(self, **at: Callable[[TransactionAttempt], None]) -> None:
        self.seen: list[tuple[str, str]] = []
        self._at = {point.replace("_", "-"): action for point, action in at.items()}

    def __call__(self, point: str, attempt: TransactionAttempt) -> None:
        """Called by the pipeline's threads."""
        self.seen.append((point, str(attempt)))
        if point in self._at:
            self._at[point](attempt)


class CrashedError(TxnError):
    """The run ends here, as if the process had died."""


def crash_at(point: str, txid: int = 1) -> Points:
    """An observer that ends the run when this txid, or a later one, comes to a point."""

    def crash(attempt: TransactionAttempt) -> None:
        if attempt.txid >= txid:
            raise CrashedError(f"{attempt} at {point}")

    return Points(**{point.replace("-", "_"): crash})


def crashing_at(point: str, txids: Sequence[int], run: Callable[[], object]) -> None:
    """Run until each of these txids has crashed at a point, and once more to the end."""
    for txid in txids:
        with observing(crash_at(point, txid)), pytest.raises(CrashedError):
            run()
    run()


def failing_first(point: str) -> Points:
    """An observer that fails the first attempt of every other txid at a point."""

    def fail(attempt: TransactionAttempt) -> None:
        if attempt.attempt_id == 0 and attempt.txid % 2:
            raise FailedException("staged or published, but not committed")

    return Points(**{point: fail})


def rows_of(
    path: Path, *columns: str, key: Callable[[Any], Any] | None = None
) -> list[tuple[Any, ...]]:
    """The rows of a Delta table, sorted (by `key`, where NULLs do not compare); without Spark."""
    found = deltalake.DeltaTable(str(path)).to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted((tuple(row[column] for column in columns) for row in found), key=key)


def staged_files(table: Path, attempt: TransactionAttempt) -> list[Path]:
    """Every Parquet file that an attempt has written below a table's folder."""
    folder = f"{attempt.txid}-{attempt.attempt_id}-*"
    return sorted(
        path for area in ("data", "_txn") for path in table.glob(f"{area}/{folder}/**/*.parquet")
    )


def attempts(report: Any) -> Sequence[str]:
    """The attempts that were committed, in order."""
    return [str(batch.attempt) for batch in report.batches]


def first_other(batches: Sequence[Rows], others: Sequence[Rows]) -> dict[tuple[int, int], Rows]:
    """What an opaque spout emits: of each txid other rows in attempt 0 than in those after it."""
    return {
        (txid, n): rows if n else other
        for txid, (rows, other) in enumerate(zip(batches, others, strict=True), 1)
        for n in range(12)
    }


def clean_logs(*tables: Path) -> None:
    """Checkpoint tables, and delete every commit file but the newest."""
    for path in tables:
        table = deltalake.DeltaTable(str(path))
        table.create_checkpoint()
        for file in (path / "_delta_log").glob("[0-9]*.json"):
            if int(file.stem) < table.version():
                file.unlink()
