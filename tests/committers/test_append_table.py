"""Append tables: every txid's rows once, whatever is replayed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.publishing.log import DeltaLog
from committers.state_table import StateTable
from tests.committers.conftest import TOPOLOGY, publication
from txn.attempts import TransactionAttempt
from txn.delta.upkeep import carry_out, plan_optimize
from txn.errors import (
    FencedError,
    RecoveryRefusedError,
    SourceChangedError,
    StagedFileError,
    TableChangedError,
    TableRefusedError,
    TopologyError,
)
from txn.interfaces import Committer, CommitterContext, Member, Publication, Staged
from txn.spark.differences import parse_ddl
from txn.storage.storage import Storage

SCHEMA = "k string, v bigint"
ONE = [("a", 1), ("a", 1), ("b", 2)]
TWO = [("c", 3), (None, None)]
REPLAY = [("d", 4), ("c", 3)]


def opened(driver: Any, path: Path, semantics: str = "opaque", epoch: int = 1) -> Committer:
    """A leader's committer."""
    committer: Committer = driver.open(AppendTable(path, semantics), SCHEMA, epoch)
    return committer


def rows(path: Path) -> Counter[tuple[Any, ...]]:
    """Multiset of (k, v, txid), as delta-rs reads it."""
    found = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return Counter((row["k"], row["v"], row["txid"]) for row in found)


def held(*batches: tuple[int, list[tuple[Any, ...]]]) -> Counter[tuple[Any, ...]]:
    """The multiset for (txid, rows)."""
    return Counter((*row, txid) for txid, batch in batches for row in batch)


def commit(driver: Any, table: Committer, batch: Any, txid: int, **how: Any) -> Any:
    return driver.commit(table, driver.frame(batch, SCHEMA), txid, **how)


def test_rows_are_stored_with_their_txid(driver: Any, warehouse: Path) -> None:
    """Duplicates and nulls included; Spark and delta-rs read the same."""
    table = opened(driver, warehouse)
    commit(driver, table, ONE, 1)
    commit(driver, table, TWO, 2)
    assert rows(warehouse) == held((1, ONE), (2, TWO))
    assert Counter(tuple(r) for r in AppendTable(warehouse).read(driver.spark).collect()) == rows(
        warehouse
    )


def test_the_log_names_the_staged_files(driver: Any, warehouse: Path) -> None:
    """Nothing is written again in the commit turn: the version holds exactly what was staged."""
    table = opened(driver, warehouse)
    staged = driver.stage(table, driver.frame(ONE, SCHEMA), 1)
    assert rows(warehouse) == Counter()
    assert driver.turn(table, staged).files == staged.files
    assert staged.rows == 3


def test_an_empty_batch_is_a_version_without_files(driver: Any, warehouse: Path) -> None:
    """A batch without rows stages no file and is published all the same.

    Trident row 38.
    """
    table = opened(driver, warehouse)
    staged = driver.stage(table, driver.frame([], SCHEMA), 1)
    published = driver.turn(table, staged)
    assert (staged.files, published.files) == ((), ())
    assert table.last_publication()[1].last_txid == 1  # type: ignore[index]
    assert [p.name for p in (warehouse / "data").rglob("part-*")] == []


def test_an_opaque_replay_after_optimize(driver: Any, warehouse: Path) -> None:
    """Rows of several txids in one file are told apart, and only the dead ones go."""
    table = opened(driver, warehouse)
    commit(driver, table, ONE, 1)
    commit(driver, table, TWO, 2)
    DeltaTable(str(warehouse)).optimize.compact()
    assert len(DeltaTable(str(warehouse)).file_uris()) == 1
    commit(driver, table, REPLAY, 2, attempt=1)
    assert rows(warehouse) == held((1, ONE), (2, REPLAY))


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_rows_are_taken_back_before_the_columns_are_known(
    driver: Any, warehouse: Path, schema: str | None
) -> None:
    """A program that does not know its columns, or was told other ones, takes back an unfinished
    txid; committed rows in the same file keep every column.
    """
    first = driver.open(AppendTable(warehouse), f"{SCHEMA}, more string")
    for txid in (1, 2):
        driver.commit(first, driver.frame([("a", 1, "kept")], f"{SCHEMA}, more string"), txid)
    DeltaTable(str(warehouse)).optimize.compact()
    table, context = AppendTable(warehouse), CommitterContext(TOPOLOGY, 2)
    if schema is not None:
        with pytest.raises(TableRefusedError, match="'more'"):
            table.open(driver.spark, context, driver.frame([], schema).schema)
    table.open(driver.spark, context, None)
    table.fence()
    driver.turn(table, Staged(TransactionAttempt(2, 1), ()), epoch=2)
    found = DeltaTable(str(warehouse)).to_pyarrow_table().to_pylist()
    assert found == [{"k": "a", "v": 1, "more": "kept", "txid": 1}]


def test_optimize_between_prepare_and_publish(
    driver: Any, warehouse: Path, make_publication: Any
) -> None:
    """When the files to be dropped are compacted meanwhile, the version is prepared again."""
    table = opened(driver, warehouse)
    commit(driver, table, ONE, 1)
    commit(driver, table, TWO, 2)
    staged = driver.stage(table, driver.frame(REPLAY, SCHEMA), 2, 1)
    own = make_publication(2, 1, rows=staged.rows)
    prepared = table.prepare(staged, own)
    DeltaTable(str(warehouse)).optimize.compact()
    published = table.publish(prepared, own)
    assert published.prepared is not None
    assert {f.path for f in published.files} == {f.path for f in published.prepared.adds}
    assert rows(warehouse) == held((1, ONE), (2, REPLAY))


def test_a_transactional_replay_that_differs_is_refused(driver: Any, warehouse: Path) -> None:
    """If a transactional source returns different data at a replay, the run stops; it never commits
    a different batch silently.
    """
    table = opened(driver, warehouse, "transactional")
    commit(driver, table, ONE, 1)
    with pytest.raises(SourceChangedError, match="1:1 staged 2 rows .* holds 3 rows"):
        commit(driver, table, TWO, 1, attempt=1)
    assert rows(warehouse) == held((1, ONE))


def test_a_transactional_replay_with_other_values_is_refused(driver: Any, warehouse: Path) -> None:
    """A transactional replay with as many rows but other bounds of a column is refused, and the
    error names the column.
    """
    table = opened(driver, warehouse, "transactional")
    commit(driver, table, TWO, 1)
    other = [("c", 4), (None, None)]
    with pytest.raises(SourceChangedError, match="1:1 staged other values in column 'v'"):
        commit(driver, table, other, 1, attempt=1)
    assert rows(warehouse) == held((1, TWO))


VALUES = """SELECT /*+ REPARTITION({files}) */ string(id % 7) AS k, id AS l, int(id) % 3 AS i,
    CASE WHEN id % 4 > 0 THEN repeat('é', int(id)) END AS s, date_add(date'2024-01-01', int(id)) d,
    timestamp_micros(id * 1000001) AS ts, CAST(id AS decimal(9,2)) AS small,
    CAST(-id AS decimal(30,10)) AS large, rand() AS f, binary(string(rand())) AS y,
    struct(rand() AS x) AS st, array(rand()) AS a FROM range(40)"""


def test_an_identical_replay_has_the_same_digest_however_it_is_spread(
    driver: Any, warehouse: Path
) -> None:
    """Numbers, text, times and decimals are compared, whatever the files; the rest is left out."""
    session = driver.spark.newSession()
    batches = [session.sql(VALUES.format(files=files)) for files in (1, 2)]
    table = AppendTable(warehouse, "transactional")
    table.open(driver.spark, CommitterContext("tests", 1), batches[0].schema)
    table.fence()
    one, two = (driver.stage(table, batch, 1, n) for n, batch in enumerate(batches))
    assert (len(one.files), len(two.files)) == (1, 2)
    compared = {part.partition("=")[0] for part in one.digest.split(",")}
    assert compared == {"k", "l", "i", "s", "d", "ts", "small", "large", "txid"}
    assert two.digest == one.digest
    driver.turn(table, one)
    assert driver.turn(table, two).skipped


def test_a_foreign_insert_is_refused(driver: Any, warehouse: Path, make_publication: Any) -> None:
    """Nothing is published on top of rows that somebody inserted; without them it goes on."""
    table = opened(driver, warehouse)
    staged = driver.stage(table, driver.frame(ONE, SCHEMA), 1)
    own = make_publication(1, rows=3)
    prepared = table.prepare(staged, own)
    driver.frame([("x", 9)], SCHEMA).write.format("delta").mode("append").save(str(warehouse))
    with pytest.raises(TableChangedError, match=r"version 1 \(WRITE by .*Delta-Lake"):
        table.publish(prepared, own)
    driver.spark.sql(f"RESTORE TABLE delta.`{warehouse}` TO VERSION AS OF 0")
    driver.open(table, SCHEMA, epoch=2)
    commit(driver, table, ONE, 1, attempt=1, epoch=2)
    commit(driver, table, TWO, 1, attempt=2, epoch=2)
    assert rows(warehouse) == held((1, TWO))


def test_a_staged_file_that_vanished(driver: Any, warehouse: Path) -> None:
    """The batch fails before anything is appended, and its other files can be discarded."""
    table = opened(driver, warehouse)
    staged = driver.stage(table, driver.frame(ONE, SCHEMA), 1)
    (warehouse / staged.files[0].path).unlink()
    with pytest.raises(StagedFileError, match="is gone"):
        driver.turn(table, staged)
    table.discard(staged.attempt)
    assert [p.name for p in (warehouse / "data").glob("1-0-*")] == []
    assert rows(warehouse) == Counter()


def test_a_leader_that_was_paused_while_it_starts_deletes_nothing_of_its_successor(
    driver: Any, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that wakes up in the midst of its start, replaced, deletes no file that its
    successor has staged or published meanwhile.
    """
    commit(driver, opened(driver, warehouse), ONE, 1)
    leader_of = {2: AppendTable(warehouse), 3: AppendTable(warehouse)}
    fence = DeltaLog.fence

    def paused(self: DeltaLog, epoch: int) -> None:
        fence(self, epoch)
        if epoch == 2:
            driver.open(leader_of[3], SCHEMA, 3)
            commit(driver, leader_of[3], TWO, 2, epoch=3)

    monkeypatch.setattr(DeltaLog, "fence", paused)
    driver.open(leader_of[2], SCHEMA, 2)
    assert rows(warehouse) == held((1, ONE), (2, TWO))


def test_a_new_leader_keeps_the_files_of_versions_that_a_replay_took_back(
    driver: Any, warehouse: Path
) -> None:
    """A group, and a replay of its first txid: the version that holds the group stays readable."""
    table = opened(driver, warehouse)
    staged = [driver.stage(table, driver.frame(ONE, SCHEMA), txid) for txid in (1, 2)]
    group = Staged.together(staged)
    members = tuple(Member(txid=one.attempt.txid, attempt_id=0, rows=one.rows) for one in staged)
    own = Publication(
        topology=TOPOLOGY, epoch=1, first_txid=1, last_txid=2, attempt_id=0, members=members
    )
    published = table.publish(table.prepare(group, own), own)
    commit(driver, table, TWO, 1, attempt=1)
    opened(driver, warehouse, epoch=2)
    before = DeltaTable(str(warehouse), version=published.version).to_pyarrow_table()
    assert before.num_rows == 2 * len(ONE)
    assert rows(warehouse) == held((1, TWO))


def test_a_new_leader_sweeps_what_dead_ones_left(driver: Any, warehouse: Path) -> None:
    """Folders of txids that were never published go; what any version refers to stays."""
    table = opened(driver, warehouse)
    commit(driver, table, ONE, 1)
    orphan = driver.stage(table, driver.frame(TWO, SCHEMA), 2)
    foreign = warehouse / "data" / "somebody-elses"
    foreign.mkdir()
    opened(driver, warehouse, epoch=2)
    assert not (warehouse / orphan.files[0].path).exists()
    assert foreign.exists()
    assert rows(warehouse) == held((1, ONE))


def test_a_new_leader_keeps_old_files_when_the_log_was_cleaned_up(
    driver: Any, warehouse: Path
) -> None:
    """Files that OPTIMIZE replaced stay for readers of older versions, even where the commit file
    of the last publication is gone and somebody has left staged files. Nobody can tell these from
    published ones then: they stay, too, until VACUUM.
    """
    table = opened(driver, warehouse)
    commit(driver, table, ONE, 1)
    commit(driver, table, TWO, 2)
    published = set((warehouse / "data").rglob("part-*.parquet"))
    table = opened(driver, warehouse, epoch=2)
    DeltaTable(str(warehouse)).optimize.compact()
    DeltaTable(str(warehouse)).create_checkpoint()
    for version in range(3):
        (warehouse / "_delta_log" / f"{version:020d}.json").unlink()
    orphan = driver.stage(table, driver.frame(TWO, SCHEMA), 3)
    opened(driver, warehouse, epoch=3)
    assert (warehouse / orphan.files[0].path).exists()
    assert {path for path in published if not path.exists()} == set()
    assert rows(warehouse) == held((1, ONE), (2, TWO))


def test_vacuum_leaves_the_table_whole(driver: Any, warehouse: Path) -> None:
    """VACUUM without retention removes what was replaced; the rows and staged work survive."""
    table = opened(driver, warehouse)
    commit(driver, table, ONE, 1)
    commit(driver, table, TWO, 2)
    commit(driver, table, REPLAY, 2, attempt=1)
    staged = driver.stage(table, driver.frame(ONE, SCHEMA), 3)
    driver.spark.sql(f"VACUUM delta.`{warehouse}`")
    driver.turn(table, staged)
    DeltaTable(str(warehouse)).vacuum(0, enforce_retention_duration=False, dry_run=False)
    assert rows(warehouse) == held((1, ONE), (2, REPLAY), (3, ONE))
    commit(driver, table, TWO, 4)
    assert rows(warehouse) == held((1, ONE), (2, REPLAY), (3, ONE), (4, TWO))


def test_statistics_never_hide_a_row(driver: Any, warehouse: Path) -> None:
    """Predicates on every type find the rows that a scan finds, nulls and odd values included."""
    schema = (
        "i int, l bigint, d double, s string, t date, ts timestamp, b boolean, "
        "m decimal(30,10), st struct<x: int>, y binary"
    )
    batch = driver.spark.sql(
        """SELECT * FROM VALUES
        (1, 5L, double('NaN'), repeat('z', 50), date'0001-01-01',
         timestamp'2024-01-01 00:00:00.123456', true, 1.0, named_struct('x', 1), X'00'),
        (2, -9223372036854775808L, -0.0D, 'ä', date'9999-12-31',
         timestamp'1970-01-01 00:00:00', false, -0.0000000001, named_struct('x', 2), X'FF'),
        (null, null, null, null, null, null, null, null, null, null),
        (2147483647, 9223372036854775807L, double('Infinity'), '', date'2024-02-29',
         timestamp'2200-12-31 23:59:59.999999', null, 99999999999999999999.5, null, null)
        AS v(i, l, d, s, t, ts, b, m, st, y)"""
    )
    cast = batch.select(*(sf.col(c).cast(t) for c, t in (f.split(" ", 1) for f in FIELDS)))
    table = AppendTable(warehouse)
    driver.open(table, schema)
    driver.commit(table, cast.select(*(f.split(" ", 1)[0] for f in FIELDS)), 1)
    driver.commit(table, cast.where("i = 1"), 2)
    stored = driver.spark.read.format("delta").load(str(warehouse))
    predicates = [
        "i >= 2147483647", "i IS NULL", "l = -9223372036854775808", "d = double('NaN')",
        "d > 1e308", "d = 0.0", "s = repeat('z', 50)", "s > 'z'", "s = ''", "s >= 'ä'",
        "t = date'0001-01-01'", "t = date'9999-12-31'", "txid = 2",
        "ts = timestamp'2024-01-01 00:00:00.123456'", "ts > timestamp'2200-12-31 23:59:59.999998'",
        "b = false", "m = -0.0000000001", "m > 99999999999999999999", "st.x = 2", "y = X'FF'",
    ]  # fmt: skip
    memory = cast.withColumn("txid", sf.lit(1)).unionByName(
        cast.where("i = 1").withColumn("txid", sf.lit(2))
    )
    expected = memory.agg(*(sf.count_if(sf.expr(p)) for p in predicates)).first()
    counts = [stored.where(predicate).agg(sf.count("*").alias("n")) for predicate in predicates]
    found = counts[0]
    for count in counts[1:]:
        found = found.unionAll(count)
    assert [row["n"] for row in found.collect()] == list(expected)


FIELDS = (
    "i int", "l bigint", "d double", "s string", "t date", "ts timestamp", "b boolean",
    "m decimal(30,10)", "st struct<x: int>", "y binary",
)  # fmt: skip


def test_optimize_hides_no_row_from_readers(driver: Any, warehouse: Path) -> None:
    """After `txn optimize` predicates find NaN, long decimals, late dates and parts of a second."""
    batch = driver.spark.sql(
        """SELECT double(d) AS d, CAST(m AS decimal(38,18)) AS m, t, ts, st FROM VALUES
        ('NaN', '12345678901234567890.123456789012345678', date'9999-12-31',
         timestamp'2024-01-01 00:00:00.123456', named_struct('x', double('NaN'))),
        ('1.5', '-12345678901234567890.123456789012345679', date'0001-01-01',
         timestamp'1969-12-31 23:59:59.999999', named_struct('x', 1.5D))
        AS v(d, m, t, ts, st)"""
    )
    table = AppendTable(warehouse)
    driver.open(table, ", ".join(f"{name} {kind}" for name, kind in batch.dtypes))
    for txid in (1, 2):
        driver.commit(table, batch.where("isnan(d)" if txid == 1 else "d = 1.5"), txid)
    storage = Storage(str(warehouse))
    assert carry_out(storage, plan_optimize(storage, "tests")).written == 1
    predicates = [
        "isnan(d)", "d = double('NaN')", "d > 1.5", "st.x = double('NaN')", "t = date'9999-12-31'",
        "m = 12345678901234567890.123456789012345678BD", "ts > timestamp'2024-01-01 00:00:00.1234'",
        "m = -12345678901234567890.123456789012345679BD", "txid = 1",
        "ts < timestamp'1970-01-01 00:00:00'", "t < date'0001-01-02'",
    ]  # fmt: skip
    stored = driver.spark.read.format("delta").load(str(warehouse))
    assert [p for p in predicates if stored.where(p).count() != 1] == []


def test_statistics_of_many_files_survive_optimize(driver: Any, warehouse: Path) -> None:
    """Spark's ZORDER and predicates over txids and values work on what we wrote."""
    table = opened(driver, warehouse)
    for txid in (1, 2, 3):
        commit(driver, table, [(f"k{i}", i) for i in range(10)], txid)
    driver.spark.sql(f"OPTIMIZE delta.`{warehouse}` ZORDER BY (v)")
    commit(driver, table, ONE, 4)
    stored = driver.spark.read.format("delta").load(str(warehouse))
    assert stored.where("txid = 4").count() == 3
    assert stored.where("v = 7").count() == 3


def test_few_files_whatever_the_partitions(driver: Any, warehouse: Path) -> None:
    """A batch of many small partitions is staged in no more files than there are task slots."""
    table = opened(driver, warehouse)
    batch = driver.frame([(str(i), i) for i in range(100)], SCHEMA).repartition(40)
    staged = driver.stage(table, batch, 1)
    assert (len(staged.files) <= 2, staged.rows) == (True, 100)


# --- settled --------------------------------------------------------------------------------


def versions(path: Path) -> int:
    """The newest version."""
    return int(DeltaTable(str(path)).version())


@pytest.mark.parametrize("semantics", ["opaque", "non_transactional"])
def test_a_settled_txid_is_marked_once(driver: Any, warehouse: Path, semantics: str) -> None:
    """One empty version says that a txid is final; another leader neither repeats nor loses it."""
    table = opened(driver, warehouse, semantics)
    table.settle(1)
    commit(driver, table, ONE, 1)
    published = table.last_publication()
    for _ in range(2):
        table.settle(1)
    assert versions(warehouse) == 2
    for epoch in (2, 3):
        table = opened(driver, warehouse, semantics, epoch)
        assert table.last_publication() == published
        table.settle(1)
    assert versions(warehouse) == 4
    commit(driver, table, TWO, 2, epoch=3)
    table.settle(1)
    assert versions(warehouse) == 5
    assert rows(warehouse) == held((1, ONE), (2, TWO))


def test_a_settled_txid_is_never_replaced(driver: Any, warehouse: Path) -> None:
    """A coordinator that has forgotten a final txid is refused."""
    table = opened(driver, warehouse)
    commit(driver, table, ONE, 1)
    table.settle(1)
    for epoch in (2, 3):
        table = opened(driver, warehouse, epoch=epoch)
        with pytest.raises(RecoveryRefusedError, match="records txid 1 as committed and final"):
            commit(driver, table, REPLAY, 1, attempt=1, epoch=epoch)
    assert rows(warehouse) == held((1, ONE))


def test_a_settled_mark_disturbs_no_publication(
    driver: Any, warehouse: Path, make_publication: Any
) -> None:
    """A mark between the preparation and the publication of the next txid is passed over."""
    table = opened(driver, warehouse)
    commit(driver, table, ONE, 1)
    staged = driver.stage(table, driver.frame(TWO, SCHEMA), 2)
    own = make_publication(2, rows=staged.rows)
    prepared = table.prepare(staged, own)
    table.settle(1)
    assert table.publish(prepared, own).version == 3
    assert rows(warehouse) == held((1, ONE), (2, TWO))


def test_a_transactional_table_needs_no_mark(driver: Any, warehouse: Path) -> None:
    """What it holds is never replaced, so nothing is appended."""
    table = opened(driver, warehouse, "transactional")
    commit(driver, table, ONE, 1)
    table.settle(1)
    assert versions(warehouse) == 1


def test_a_replaced_leader_settles_nothing(driver: Any, warehouse: Path) -> None:
    """A newer epoch in the log ends the right to mark."""
    old = opened(driver, warehouse)
    commit(driver, old, ONE, 1)
    opened(driver, warehouse, epoch=2)
    with pytest.raises(FencedError, match="epoch 2"):
        old.settle(1)
    assert versions(warehouse) == 2


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["txid", "TxId"])
def test_a_column_called_txid_is_refused(driver: Any, warehouse: Path, name: str) -> None:
    """The name is the table's own."""
    with pytest.raises(TopologyError, match=f"column '{name}' of their own"):
        driver.open(AppendTable(warehouse), f"{name} bigint")


SCHEMAS = {
    "type": ("v void", "type void"),
    "interval": ("v interval day to second", "type interval"),
    "inside": ("v array<struct<x: void>>", "type void"),
    "blank": ("`a b` int", "'a b' cannot be stored"),
    "capitals": ("a int, A int", "upper and lower case"),
}
if hasattr(StringType(), "collation"):  # Spark 3.5 has none
    SCHEMAS["collation"] = ("s string collate UNICODE_CI", "collation")


@pytest.mark.parametrize(("schema", "message"), SCHEMAS.values(), ids=SCHEMAS.keys())
def test_columns_that_delta_cannot_hold(
    driver: Any, warehouse: Path, schema: str, message: str
) -> None:
    """They are refused by name before a table is made."""
    parsed = parse_ddl(schema)
    with pytest.raises(TopologyError, match=message):
        AppendTable(warehouse).open(driver.spark, CommitterContext("tests", 1), parsed)
    assert list(warehouse.iterdir()) == []


def test_a_state_table_is_no_append_table(driver: Any, totals: Any) -> None:
    """The kind of a table is part of its definition."""
    table = totals()
    with pytest.raises(TableRefusedError, match="a table of kind 'upsert', not 'append'"):
        driver.open(AppendTable(table.path), SCHEMA, 2)


def test_a_wide_table_knows_the_txids_of_its_files(driver: Any, warehouse: Path) -> None:
    """Where a table has more columns than Delta keeps bounds of by itself, those of the txid are
    known all the same: after a restart, out of a checkpoint, of files that Spark's OPTIMIZE wrote,
    and where somebody has unset that. So a log table is compacted as any other, and an opaque
    replay rewrites nothing of the txids before.
    """
    names = [f"c{number}" for number in range(33)]
    schema, row = ", ".join(f"{name} bigint" for name in names), tuple(range(33))
    path, compacted = warehouse / "append", warehouse / "log"
    state = StateTable(compacted, layout="log", compact_files=2, compact_share=1)

    def opened(epoch: int) -> Any:
        return driver.open(AppendTable(path), schema, epoch)

    def opened_log(epoch: int) -> Any:
        return driver.open(state.bind(names, {"n": Count()}), schema, epoch)

    def bounds(table: Any) -> list[tuple[int | None, int | None]]:
        return sorted((file.txid_min, file.txid_max) for file in table._log.files_now())

    table, log = opened(1), opened_log(1)
    for txid in (1, 2, 3):
        driver.commit(table, driver.frame([row], schema), txid)
        driver.commit(log, driver.frame([row], schema), txid)
    for place in (path, compacted):
        DeltaTable(str(place)).create_checkpoint()
        for commit in sorted((place / "_delta_log").glob("*.json"))[:-1]:
            commit.unlink()
    table, log = opened(2), opened_log(2)
    assert bounds(table) == bounds(log) == [(1, 1), (2, 2), (3, 3)]
    staged = driver.stage(table, driver.frame([row], schema), 3, 1)
    prepared = table.prepare(staged, publication(3, 1, 2, staged.rows))
    assert (len(prepared.removes), prepared.adds) == (1, staged.files)
    log.maintain(2)()
    assert bounds(log) == [(2, 2), (3, 3)]
    driver.spark.sql(f"OPTIMIZE delta.`{compacted}`")
    newest = max((compacted / "_delta_log").glob("*.json"))
    (added,) = [
        json.loads(line)["add"] for line in newest.read_text().splitlines() if '"add"' in line
    ]
    assert json.loads(added["stats"])["maxValues"]["txid"] == 3
    log._log.refresh()
    assert bounds(log) == [(2, 3)]
    former = "'delta.dataSkippingNumIndexedCols' = '32'"
    now = "'delta.dataSkippingStatsColumns'"
    driver.spark.sql(f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ({now})")
    driver.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({former})")
    table = opened(3)
    assert bounds(table) == [(1, 1), (2, 2), (3, 3)]
    driver.spark.sql(f"OPTIMIZE delta.`{path}`")
    table._log.refresh()
    assert bounds(table) == bounds(opened(4)) == [(1, 3)]


def test_accepted_rows_of_others_outlive_a_replay(driver: Any, warehouse: Path) -> None:
    """Rows without a txid that OPTIMIZE put into one file with those of a dead attempt stay when
    an opaque replay takes that back, before and after a restart.
    """
    theirs = ("theirs", 0, None)
    for restarts in (False, True):
        path = warehouse / str(restarts)
        opened(driver, path)
        write_deltalake(
            path,
            pa.table({"k": ["theirs"], "v": [0], "txid": pa.array([None], "int64")}),
            mode="append",
        )
        accepted = {"txn.accepted_version": str(DeltaTable(str(path)).version())}
        DeltaTable(str(path)).alter.set_table_properties(accepted, False)
        table = opened(driver, path, epoch=2)
        commit(driver, table, ONE, 1, epoch=2)
        DeltaTable(str(path)).optimize.compact()
        table = opened(driver, path, epoch=3) if restarts else table
        commit(driver, table, TWO, 1, attempt=1, epoch=2 + restarts)
        assert rows(path) == held((1, TWO)) + Counter([theirs])


def test_rows_are_completed_under_their_own_names(driver: Any, warehouse: Path) -> None:
    """A column that differs from the table's in upper and lower case only is no missing one, and
    is refused as another name is, in words that say which; where the session tells them apart, it
    is a column of its own.
    """
    path = warehouse / "t"
    table = driver.open(AppendTable(path), "name string, v bigint")
    whole = table.complete(driver.frame([("a",)], "Name string"))
    assert whole.schema.simpleString() == "struct<Name:string,v:bigint>"
    with pytest.raises(TopologyError, match="Column 'name' of the rows for table .* is missing"):
        table.stage(whole, TransactionAttempt(1))
    driver.commit(table, driver.frame([("a", 1)], "name string, v bigint"), 1)
    with pytest.raises(TableRefusedError, match="column 'Name' is new, and old files"):
        driver.open(AppendTable(path), "Name string, v bigint", 2)
    exact = driver.spark.newSession()
    exact.conf.set("spark.sql.caseSensitive", "true")
    other = table.complete(exact.createDataFrame([("a",)], "Name string"))
    assert other.columns == ["name", "v", "Name"]
    assert [tuple(row) for row in other.collect()] == [(None, None, "a")]


_TEXT = "cast(X'61ff' AS string)"


@pytest.mark.parametrize(
    "value",
    [
        _TEXT,
        f"array(NULL, 'a', {_TEXT})",
        f"map({_TEXT}, 1)",
        f"map(1, {_TEXT})",
        f"named_struct('n', CAST(NULL AS string), 'a', array(named_struct('c', {_TEXT})))",
    ],
)
def test_text_that_is_not_utf8_reaches_no_table(driver: Any, tmp_path: Path, value: str) -> None:
    """A string with bytes that are not UTF-8, at any depth, fails the batch by name; other strings
    do not.
    """
    frame = driver.spark.sql(f"SELECT 1 AS v, {value} AS k")
    good = driver.spark.sql(f"SELECT 1 AS v, {value.replace('61ff', '61')} AS k")
    table = driver.open(AppendTable(tmp_path / "t"), f"v int, k {dict(good.dtypes)['k']}")
    with pytest.raises(Exception, match="Column 'k' of the rows for table .* is not UTF-8"):
        driver.commit(table, frame, 1)
    driver.commit(table, good, 1)
    stored = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
    assert [(row["v"], row["txid"]) for row in stored] == [(1, 1)]
