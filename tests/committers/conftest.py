"""A driver that takes committers through their calls as the pipeline does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from committers.aggregates import Count, Sum
from committers.state_table import StateTable
from txn.attempts import TransactionAttempt
from txn.interfaces import (
    Aggregate,
    Committer,
    CommitterContext,
    Member,
    Publication,
    Published,
    Staged,
)
from txn.spark.differences import parse_ddl
from txn.spark.rows import local_frame

TOPOLOGY = "tests"


def publication(
    txid: int, attempt: int = 0, epoch: int = 1, rows: int = 0, first: int | None = None
) -> Publication:
    """A publication of one txid (or of [first..txid], the rows in the last one)."""
    group = range(txid if first is None else first, txid + 1)
    members = [Member(txid=t, attempt_id=attempt, rows=rows * (t == txid)) for t in group]
    return Publication(
        topology=TOPOLOGY,
        epoch=epoch,
        first_txid=txid if first is None else first,
        last_txid=txid,
        attempt_id=attempt,
        spouts={"s": {"upto": txid}},
        rows=rows,
        members=members if len(members) > 1 else (),
    )


@dataclass
class Driver:
    """Calls committers in the pipeline's order, with rows given as tuples."""

    spark: SparkSession

    def frame(self, rows: Iterable[Sequence[Any]], schema: str) -> DataFrame:
        """A DataFrame of literal rows."""
        return local_frame(self.spark, [tuple(row) for row in rows], parse_ddl(schema))

    def open(
        self, committer: Committer, schema: str, epoch: int = 1, topology: str = TOPOLOGY
    ) -> Committer:
        """`open` and `fence`, as at the start of a run."""
        partials = committer.partials(self.frame([], schema))
        committer.open(self.spark, CommitterContext(topology, epoch), partials.schema)
        committer.fence()
        return committer

    def stage(self, committer: Committer, batch: DataFrame, txid: int, attempt: int = 0) -> Staged:
        """The processing phase."""
        return committer.stage(committer.partials(batch), TransactionAttempt(txid, attempt))

    def turn(
        self, committer: Committer, staged: Staged, epoch: int = 1, first: int | None = None
    ) -> Published:
        """The commit turn."""
        attempt = staged.attempt
        own = publication(attempt.txid, attempt.attempt_id, epoch, staged.rows, first)
        own = own.model_copy(update={"digest": staged.digest})
        return committer.publish(committer.prepare(staged, own), own)

    def commit(
        self,
        committer: Committer,
        batch: DataFrame,
        txid: int,
        attempt: int = 0,
        epoch: int = 1,
        first: int | None = None,
    ) -> Published:
        """Stage and publish one batch."""
        return self.turn(committer, self.stage(committer, batch, txid, attempt), epoch, first)


@pytest.fixture
def driver(spark: SparkSession) -> Driver:
    """See `Driver`."""
    return Driver(spark)


class Totals:
    """A state table of (k -> n, s) over rows (k string, v bigint): most tests need no other."""

    SCHEMA = "k string, v bigint"

    def __init__(self, driver: Driver, path: Path, semantics: str = "opaque") -> None:
        self.driver = driver
        self.path = path
        self.semantics = semantics
        self.committer = self.reopen(1)

    def reopen(self, epoch: int) -> Committer:
        """A new process's committer on the same table."""
        values: Mapping[str, Aggregate] = {"n": Count(), "s": Sum("v")}
        self.committer = StateTable(self.path, self.semantics).bind(["k"], values)
        self.driver.open(self.committer, self.SCHEMA, epoch)
        return self.committer

    def commit(
        self, txid: int, rows: Iterable[Sequence[Any]], attempt: int = 0, epoch: int = 1
    ) -> Published:
        """Stage and publish rows."""
        batch = self.driver.frame(rows, self.SCHEMA)
        return self.driver.commit(self.committer, batch, txid, attempt, epoch)

    def rows(self) -> list[dict[str, Any]]:
        """Whole rows, bookkeeping included, as delta-rs reads them (no Spark job)."""
        found: list[dict[str, Any]] = DeltaTable(str(self.path)).to_pyarrow_table().to_pylist()
        return found

    def read(self) -> dict[Any, tuple[Any, ...]]:
        """K -> (n, s), with every row seen once."""
        rows = self.rows()
        keyed = {row["k"]: (row["n"], row["s"]) for row in rows}
        assert len(keyed) == len(rows)
        return keyed


@pytest.fixture
def totals(driver: Driver, warehouse: Path) -> Any:
    """A factory of `Totals`, by semantics."""
    return lambda semantics="opaque": Totals(driver, warehouse / f"totals-{semantics}", semantics)


@pytest.fixture
def make_publication() -> Any:
    """See `publication`."""
    return publication


def _in_utc(spark: SparkSession, frame: Callable[[], DataFrame]) -> pa.Table:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        return frame().toArrow()
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


@pytest.fixture
def as_spark(driver: Driver) -> Any:
    """What Spark reads of a table, as a table of Arrow in UTC."""

    def read(state: StateTable, txid: int | None = None) -> pa.Table:
        return _in_utc(driver.spark, lambda: state.read(driver.spark, txid))

    return read


@pytest.fixture
def in_spark(driver: Driver) -> Any:
    """What the query that a table prints for Spark gives, as a table of Arrow in UTC."""

    def read(table: Any, txid: int | None = None, **arguments: Any) -> pa.Table:
        text = table.sql(txid, dialect="spark", **arguments)
        return _in_utc(driver.spark, lambda: driver.spark.sql(text))

    return read


@pytest.fixture
def with_delta_alone(driver: Driver) -> Any:
    """What Spark reads of a table's columns with nothing but Delta, as a table of Arrow in UTC."""

    def read(path: str, columns: list[str]) -> pa.Table:
        rows = driver.spark.read.format("delta").load(path).select(*columns)
        return _in_utc(driver.spark, lambda: rows)

    return read
