"""Mutants of what counts in event time, and a program in which each of them shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from committers.state_committer import StateCommitter
from tests.differential import oracle
from tests.differential.declaration import Life, Program, Source, Step
from tests.differential.event_time import BEGIN, MINUTE
from tests.differential.time_joins import JoinedInTime
from tests.differential.time_sessions import InSessions
from txn.dataflow.sessions import Sessions
from txn.dataflow.spans import Span
from txn.dataflow.time_joins import JoinInTime
from txn.interfaces import Expiry

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["TIME_MUTANTS", "everything_in_time"]

ON_TIME = (
    ([("a", 1, 100), ("b", 2, 100), (None, 3, 100)], [("a", 4, 111)], [("c", 5, 121)]),
    ([("a", 10, 90), ("b", 20, 110.5), (None, 25, 100)], [("a", 30, 111)], [("c", 40, 115)]),
)
"""Rows of two streams by txid: key, number, minute."""
LATE = (
    ([("a", 1, 100)], [("y", 2, 111)], [("y", 3, 121)], [("b", 4, 140)], [("a", 5, 142)]),
    ([("a", 10, 90), ("x", 20, 110)], [("x", 30, 111)], [("x", 40, 121)], [("a", 50, 95)]),
)
"""Rows of two streams in which late rows go on."""
LAST = (("a", 6, 140), ("d", 50, 140), ("e", 6, 160), ("x", 60, 160))
EXPIRE_AFTER = 11 * MINUTE
SESSIONS = {"keys": ["k"], "time": "at", "gap": 11 * MINUTE}


def everything_in_time() -> Program:
    """Joins and ends at their bounds, with late rows and without, over a restart."""
    left, right = ([*rows, [LAST[n]], [LAST[n + 2]]] for n, rows in enumerate(ON_TIME))
    kept, late = list(LATE[0]), [[*LATE[1][3], LAST[3]], [LAST[3]]]
    sources = (
        _source("s0", "v", "at", left),
        _source("s1", "w", "paid", right),
        _source("s2", "v", "at", kept),
        _source("s3", "w", "paid", [*LATE[1][:3], *late]),
    )
    marks = [
        Step(id=f"w{n}", op="watermark", of=(f"s{n}",), args=_watermark(time, late_rows))
        for n, (time, late_rows) in enumerate(
            (("at", "drop"), ("paid", "drop"), ("at", "keep"), ("paid", "keep"))
        )
    ]
    ends = {"expire_after": EXPIRE_AFTER, "by": "last event", "time": "at"}
    steps = (
        *marks,
        _join("n0", ("w0", "w1"), "full"),
        _append("t0", "n0"),
        _join("n1", ("w0", "w1"), "as_of"),
        _append("t1", "n1"),
        _join("n2", ("w2", "w3"), "left_semi"),
        _append("t2", "n2"),
        _state("t3", "w0", "upsert", ends),
        Step(id="n3", op="new_values", of=("t3",)),
        _append("t4", "n3"),
        _state("t5", "w2", "log", ends),
        Step(id="n4", op="session_windows", of=("w0",), args=SESSIONS),
        _append("t6", "n4"),
    )
    return Program(
        seed=0,
        config={"max_spout_pending": 1},
        sources=sources,
        steps=steps,
        lives=(Life(until=3), Life()),
    )


def _source(name: str, value: str, time: str, batches: Sequence[Sequence[Any]]) -> Source:
    """Make a source; half a minute stands for a microsecond."""
    columns = (("k", "string"), (value, "bigint"), (time, "timestamp"))
    rows = [
        tuple((k, n, BEGIN + int(m) * MINUTE + (m % 1 > 0)) for k, n, m in batch)
        for batch in batches
    ]
    return Source(
        name=name,
        kind="transactional",
        partitions=0,
        known=True,
        columns=columns,
        batches=tuple(((batch,),) for batch in rows),
    )


def _watermark(column: str, late: str) -> dict[str, Any]:
    given = {"name": "late", "column": column, "on_violation": late}
    return {**given, "delay": 0, "by": None, "idle_after": None}


def _join(name: str, of: tuple[str, str], how: str) -> Step:
    args = {"on": ["k"], "how": how, "within": 10 * MINUTE}
    args |= {"times": ["at", "paid"], "sorted": False}
    return Step(id=name, op="join_in_time", of=of, args=args)


def _append(name: str, of: str) -> Step:
    return Step(id=name, op="append", of=(of,), args={"semantics": "opaque"})


def _state(name: str, of: str, layout: str, ends: dict[str, Any]) -> Step:
    args: dict[str, Any] = {"layout": layout, "semantics": "opaque", "keys": ["k"]}
    args |= {"aggregates": {"n": ["Count"], "total": ["Sum", "v"]}, **ends}
    return Step(id=name, op="state", of=(of,), args=args)


_joined, _matches, _newest = JoinInTime._joined, JoinInTime._matches, JoinInTime._newest


def further(self: JoinInTime, *arguments: Any) -> DataFrame:
    return _joined(replace(self, within=self.within + 1), *arguments)


def nearer(self: JoinInTime, *arguments: Any) -> DataFrame:
    return _newest(replace(self, within=self.within - 1), *arguments)


def forgetful(self: JoinInTime, *arguments: Any) -> list[DataFrame]:
    *others, span = arguments
    return _matches(self, *others, Span(None, span.watermark))


def without_begin(self: Span, time: Column, after: int = 0) -> Column:
    from txn.spark.event_times import moment

    assert self.watermark is not None
    return time <= moment(self.watermark - after)


def equal_nulls(self: JoinedInTime, one: dict[str, Any], other: dict[str, Any]) -> bool:
    at, paid = one[self._times[0]], other[self._times[1]]
    return one["k"] == other["k"] and abs(at - paid) <= self._within


_in_session = Sessions.result


def only_new(self: Sessions, new: DataFrame, kept: Any, span: Span) -> DataFrame:
    return _in_session(self, new, None, span)


def begins_at_end(self: InSessions, row: dict[str, Any], session: list[Any]) -> bool:
    return bool(row["at"] >= self._end(session))


TIME_MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "a key ends after its bound, not at it": (
        Expiry,
        "bound",
        lambda self, watermark: watermark - self.after - 1,
    ),
    "no table below hears of ends": (StateCommitter, "_ending", lambda self, *others: None),
    "the oracle's keys begin anew as if they had not ended": (
        oracle.Ends,
        "has_ended",
        lambda self, *others: False,
    ),
    "rows match that are further apart": (JoinInTime, "_joined", further),
    "the newest row before may be less old": (JoinInTime, "_newest", nearer),
    "a late row is a second first match": (JoinInTime, "_matches", forgetful),
    "a row without a match comes in each txid": (Span, "ends", without_begin),
    "the oracle's NULL matches NULL": (JoinedInTime, "_same", equal_nulls),
    "rows of open sessions are forgotten": (Sessions, "result", only_new),
    "the oracle's row at the end of a session begins one": (InSessions, "_begins", begins_at_end),
}
"""What is mutated -> object, attribute, what stands there instead."""
