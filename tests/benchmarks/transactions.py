"""Requests and times of one transaction on an object store, by kind of table.

    python -m tests.benchmarks.transactions [--latency 0.03] [--batches 7] [append log upsert-4 ...]
    python -m tests.benchmarks.transactions --master 'local-cluster[1,2,1024]' upsert-16
    python -m tests.benchmarks.transactions append+log     # both tables of one topology

One file of 1,000 rows a transaction, on an S3 server each request to which takes 30 ms. Staging,
`prepare` and `publish` are called as the pipeline calls them, one after the other; p50 of all
batches but the warm ones. Below the table: the requests of the last batch, by operation.

Kinds with a `+` are tables of one topology, which the engine takes through the same transactions,
one txid at a time: seconds of the whole commit turn, and of `publish`. `append+` is one alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.rate import RateSpout
from tests.benchmarks.store import LATENCY_SECS, FarStore
from txn import Topology, TopologyConfig
from txn.attempts import TransactionAttempt
from txn.interfaces import Committer, CommitterContext, Member, Publication, Staged
from txn.observers import RunEvent, StationEnded
from txn.session import delta_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["KINDS", "Figures", "measure", "measure_together"]

KINDS = ("append", "log", "upsert-4", "upsert-16")
SCHEMA = "id bigint, k string, v bigint"
ROWS, KEYS, WARM = 1_000, 500, 3
STATIONS = ("staging", "prepare", "publish")


@dataclass(frozen=True)
class Figures:
    """Of one kind of table, one entry per batch."""

    operations: dict[str, dict[str, int]] = field(default_factory=dict)
    """By station, those of the last batch."""
    requests: dict[str, list[int]] = field(default_factory=dict)
    """By station."""
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, station: str, seconds: float, store: Mapping[str, Any]) -> None:
        self.operations[station] = store["operations"]
        self.requests.setdefault(station, []).append(store["requests"])
        self.seconds.setdefault(station, []).append(seconds)

    def line(self, kind: str) -> str:
        """A row of the table."""
        all_of = [sum(each) for each in zip(*self.requests.values(), strict=True)]
        counts = "+".join(f"{statistics.median(self.requests[name]):g}" for name in STATIONS)
        times = (f"{statistics.median(self.seconds[name]):.2f} s" for name in STATIONS)
        return f"| {kind} | {statistics.median(all_of):g} ({counts}) | {' | '.join(times)} |"

    def listed(self, kind: str) -> str:
        """The operations of each station in one line."""
        asked = (
            f"{name}: {' + '.join(f'{count} {which}' for which, count in found.items()) or 'none'}"
            for name, found in self.operations.items()
        )
        return f"{kind}: {'; '.join(asked)}"


def measure(spark: SparkSession, store: FarStore, kind: str, batches: int) -> Figures:
    """Take one table through `batches` transactions, after some warm ones."""
    committer = _committer(kind, store)
    rows = _batch(spark, 0)
    context = CommitterContext("transactions", 1)
    committer.open(spark, context, _staged_of(committer, kind, rows).schema)
    committer.fence()
    figures, ignored = Figures(), Figures()
    for txid in range(1, WARM + batches + 1):
        kept = ignored if txid <= WARM else figures
        partials = _staged_of(committer, kind, _batch(spark, txid))
        staged = _timed(
            store, kept, "staging", lambda p=partials, t=txid: committer.stage(p, _attempt(t))
        )
        publication = _publication(staged)
        prepared = _timed(
            store, kept, "prepare", lambda s=staged, p=publication: committer.prepare(s, p)
        )
        _timed(store, kept, "publish", lambda q=prepared, p=publication: committer.publish(q, p))
        committer.committed(_attempt(txid))
    return figures


class Turns:
    """An observer that keeps how long each commit turn, and the publication in it, took."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {"turn": [], "publish": []}

    def observe(self, event: RunEvent) -> None:
        if isinstance(event, StationEnded) and event.table is None and event.error is None:
            self.seconds.get(event.station, []).append(event.seconds)


def measure_together(spark: SparkSession, store: FarStore, kinds: str, batches: int) -> str:
    """Take the tables of one topology through `batches` transactions: a row of their table."""
    topology = Topology("together", TopologyConfig(max_spout_pending=1))
    spout = RateSpout(ROWS, total=ROWS * (WARM + batches))
    rows = topology.stream("rows", spout).transform(
        lambda df: df.selectExpr("value AS id", f"concat('k', value % {KEYS}) AS k", "value AS v")
    )
    for kind in filter(None, kinds.split("+")):
        place, options = store.at(Path(f"{kinds}-{kind}")), store.options
        if kind == "append":
            rows.partition_persist(AppendTable(place, storage_options=options))
        else:
            state = _state(kind, place, options)
            rows.group_by("k").persistent_aggregate(state, n=Count(), s=Sum("v"))
    turns = Turns()
    with tempfile.TemporaryDirectory() as folder:
        at = f"embedded:{folder}/zookeeper"
        topology.start(
            spark, zookeeper=at, until="caught_up", observers=[turns]
        ).await_termination()
    turn, publish = (statistics.median(turns.seconds[name][WARM:]) for name in ("turn", "publish"))
    return f"| {kinds} | {len(turns.seconds['turn']) - WARM} | {turn:.3f} s | {publish:.3f} s |"


def _committer(kind: str, store: FarStore) -> Committer:
    place, options = store.at(Path(kind)), store.options
    if kind == "append":
        return AppendTable(place, "opaque", storage_options=options)
    return _state(kind, place, options).bind(["k"], {"n": Count(), "s": Sum("v")})


def _state(kind: str, place: str, options: Mapping[str, str]) -> StateTable:
    layout, _, buckets = kind.partition("-")
    more = {"buckets": int(buckets)} if buckets else {}
    return StateTable(place, "opaque", layout, storage_options=options, **more)  # type: ignore[arg-type]


def _batch(spark: SparkSession, txid: int) -> DataFrame:
    keys = f"concat('k', pmod(xxhash64(id, {txid}), {KEYS})) AS k"
    return spark.range(0, ROWS, 1, 1).selectExpr("id", keys, f"id + {txid} AS v")


def _staged_of(committer: Any, kind: str, rows: DataFrame) -> DataFrame:
    found: DataFrame = rows if kind == "append" else committer.partials(rows)
    return found


def _attempt(txid: int) -> TransactionAttempt:
    return TransactionAttempt(txid, 0)


def _publication(staged: Staged) -> Publication:
    (member,) = staged.members or (staged,)
    txid = staged.attempt.txid
    return Publication(
        topology="transactions",
        epoch=1,
        first_txid=txid,
        last_txid=txid,
        attempt_id=0,
        rows=staged.rows,
        digest=staged.digest,
        members=(Member(txid=txid, attempt_id=0, rows=member.rows, digest=member.digest),),
    )


def _timed(store: FarStore, figures: Figures, station: str, act: Any) -> Any:
    store.forget()
    began = time.perf_counter()
    result = act()
    seconds = time.perf_counter() - began
    figures.add(station, seconds, store.told(1)["store"])
    return result


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--batches", type=int, default=7)
    parser.add_argument("--latency", type=float, default=LATENCY_SECS)
    parser.add_argument("--master", default="local[2]", help="executors apart: local-cluster[...]")
    given = parser.parse_args(arguments)
    with FarStore(None, given.latency) as store, tempfile.TemporaryDirectory() as folder:
        conf = {"spark.driver.memory": "2g", "spark.sql.warehouse.dir": folder, **store.conf}
        spark = delta_session("transactions", given.master, conf, packages=store.packages)
        sys.stdout.write(
            "| table | requests | staging | prepare | publish |\n|---|---|---|---|---|\n"
        )
        lists = []
        for kind in given.kinds or KINDS:
            if "+" in kind:
                lists.append(measure_together(spark, store, kind, given.batches))
                continue
            found = measure(spark, store, kind, given.batches)
            sys.stdout.write(found.line(kind) + "\n")
            sys.stdout.flush()
            lists.append(found.listed(kind))
        sys.stdout.write("\n" + "\n".join(lists) + "\n")
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
