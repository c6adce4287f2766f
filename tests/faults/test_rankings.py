"""Rankings within the stream: whole, as of each txid, after crashes and replays that differ."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout
from tests.faults.support import Points, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.errors import TopologyError
from txn.operations.plan import plan_topology
from txn.spark.ranking import touched_rankings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

Row = tuple[str | None, str | None, int]
"""Day, customer and amount."""
KEPT = "day string, k string, v int"
TOP = 2


def batches(seed: int, count: int = 6) -> list[list[Row]]:
    """Customers of two days who also get money back; some batches are empty, one day comes late."""
    chance = random.Random(seed)
    days, names = ["mon", "tue", None], ["a", "b", "c", None]
    return [
        [
            (
                chance.choice(days[: 1 + n]),
                chance.choice(names),
                chance.randint(-4, 6),
            )
            for _ in range(chance.choice([0, 2, 4] if n in (2, 4) else [2, 4]))
        ]
        for n in range(count)
    ]


def first(totals: dict[Any, int], day: str | None, *, is_daily: bool) -> list[tuple[Any, ...]]:
    """The first customers, by what they have spent and then by name, NULL first."""
    some = [(key, spent) for key, spent in totals.items() if not is_daily or key[0] == day]

    def order(one: tuple[Any, int]) -> tuple[Any, ...]:
        (of_day, customer), spent = one
        names = [(name is not None, name or "") for name in (of_day, customer)]
        return (-spent, *names)

    return [(*key, spent, at) for at, (key, spent) in enumerate(sorted(some, key=order)[:TOP], 1)]


def expected(committed: Sequence[Sequence[Row]], *, is_daily: bool) -> list[tuple[Any, ...]]:
    """Txid, day, customer, spent and rank; keys that have spent less than nothing are removed."""
    totals: dict[Any, int] = {}
    rows = []
    for txid, batch in enumerate(committed, 1):
        sums: dict[Any, int] = {}
        for day, customer, amount in batch:
            sums[day, customer] = sums.get((day, customer), 0) + amount
        touched: set[str | None] = set()
        for key, amount in sums.items():
            spent = totals.get(key, 0) + amount
            if key in totals or spent >= 0:
                touched.add(key[0])
            totals.pop(key, None)
            if spent >= 0:
                totals[key] = spent
        for of_day in touched if is_daily else [None] * bool(touched):
            rows += [(txid, *row) for row in first(totals, of_day, is_daily=is_daily)]
    return rows


@pytest.mark.parametrize("layout", ["upsert", "log"])
@pytest.mark.parametrize("seed", [1, 2])
def test_rankings_follow_each_txid(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path, layout: str, seed: int
) -> None:
    """A txid hands on the rankings that it changes, whole and as of that txid, also after an
    opaque replay that differs and with keys that are removed.
    """
    final, dead = batches(seed), batches(seed + 100)
    script = {(txid, 0): batch for txid, batch in enumerate(final, 1)}
    script |= {(2, 0): dead[1], (2, 1): final[1], (4, 0): dead[3], (4, 1): final[3]}
    made = Topology(
        f"rank-{layout}-{seed}", TopologyConfig(retry_backoff_ms=1, max_spout_pending=1)
    )
    rows = made.stream("s", MemoryOpaqueSpout(script, "day string, customer string, amount int"))
    state = StateTable(warehouse / "totals", "opaque", layout, remove_where="spent < 0")
    spent = rows.group_by("day", "customer").persistent_aggregate(state, spent=Sum("amount"))
    for name, per in (("daily", "day"), ("all", None)):
        ranking = spent.top(TOP, by="spent desc", per=per)
        ranking.partition_persist(AppendTable(warehouse / name, "opaque"))

    def fail(attempt: TransactionAttempt) -> None:
        if str(attempt) in ("2:0", "4:0"):
            raise FailedException("once")

    with observing(Points(between_publications=fail)):
        report = made.run(spark, zookeeper=zookeeper.hosts, until=len(final))
    assert report.replays == 2
    columns = ("txid", "day", "customer", "spent", "rank")
    for name, is_daily in (("daily", True), ("all", False)):
        found = rows_of(warehouse / name, *columns, key=str)
        assert found == sorted(expected(final, is_daily=is_daily), key=str)
        assert len(found) > TOP


@pytest.mark.parametrize("per", [(), ("day",)])
def test_a_key_without_a_value_has_no_rank(spark: SparkSession, per: tuple[str, ...]) -> None:
    """Whether the txid has changed it or not."""
    before = spark.createDataFrame([("mon", "a", None), ("mon", "b", 2)], KEPT)
    changes = [("mon", "c", 1, None), ("mon", "d", None, 5)]
    changed = spark.createDataFrame(changes, f"{KEPT}, prev_v int")
    found = touched_rankings(before, changed, 9, ["v desc"], per, ["day", "k"])
    assert sorted(map(tuple, found.collect())) == [("mon", "b", 2, 1), ("mon", "c", 1, 2)]


def test_a_plan_shows_what_a_ranking_is_computed_from(warehouse: Path) -> None:
    """The changes of the state's table, which are a stage of their own."""
    made = Topology("rank")
    rows = made.stream("s", MemoryOpaqueSpout({}, "k string, v int"))
    state = StateTable(warehouse / "t", "opaque")
    totals = rows.group_by("k").persistent_aggregate(state, n=Count())
    totals.top(3, by="n desc", per="k").partition_persist(AppendTable(warehouse / "a", "opaque"))
    stages = {stage.id: (stage.reads, stage.detail) for stage in plan_topology(made).stages}
    assert stages["s/new_values-1"][0] == (totals.name,)
    assert stages["s/top-1"] == (("s/new_values-1",), "3 by n desc per k")


def test_half_a_ranking_is_refused(warehouse: Path) -> None:
    """Each refusal names the table and what is wrong."""
    made = Topology("rank")
    rows = made.stream("s", MemoryOpaqueSpout({}, "k string, rank int"))
    counts = rows.group_by("k").persistent_aggregate(
        StateTable(warehouse / "t", "opaque"), n=Count()
    )
    for asked, words in (
        ({"n": 0, "by": "n"}, "top=0 is not a number of rows"),
        ({"n": 3, "by": "m desc"}, "no column 'm'. It has k, n"),
        ({"n": 3, "by": "n", "per": "m"}, "no column 'm'. It has k, n"),
        ({"n": 3, "by": ()}, "needs top= and by="),
    ):
        with pytest.raises(TopologyError, match=words):
            counts.top(**asked)  # type: ignore[arg-type]
    taken = rows.group_by("rank").persistent_aggregate(
        StateTable(warehouse / "u", "opaque"), n=Count()
    )
    with pytest.raises(TopologyError, match="column 'rank' already"):
        taken.top(3, by="n")
