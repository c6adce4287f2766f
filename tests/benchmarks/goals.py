"""The goals of the project's speed, and how far what was measured is from them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

from tests.benchmarks.results import Key, Results

__all__ = ["GOALS", "Goal", "Verdict", "judge"]


@dataclass(frozen=True)
class Goal:
    """A figure, or the ratio of two figures of one workload, and the bound that it should keep."""

    workload: str
    text: str
    figure: Key
    bound: float
    at: Literal["most", "least"] = "most"
    against: Key | None = None
    """None: the bound is for the figure itself."""
    unit: str = "x"


@dataclass(frozen=True)
class Verdict:
    """What became of a goal."""

    goal: Goal
    measured: float | None
    """The median of the ratios of single rounds (or of the figures); None: not measured."""
    least: float | None = None
    """The smallest of the ratios (or figures) of single rounds."""
    most: float | None = None
    note: str = ""
    """Why there is no figure, or why it must not be believed."""
    noisy: int = 0
    """Runs among those that it rests on which other processes disturbed."""

    @property
    def reached(self) -> bool | None:
        """None: not measured, or the result of the work was wrong."""
        if self.measured is None or self.note:
            return None
        if self.goal.at == "most":
            return self.measured <= self.goal.bound
        return self.measured >= self.goal.bound


def judge(results: Results, goal: Goal) -> Verdict:
    """Hold one goal against what was measured."""
    wanted = [goal.figure] if goal.against is None else [goal.figure, goal.against]
    found = [results.summary(goal.workload, key) for key in wanted]
    missing = [key for key, summary in zip(wanted, found, strict=True) if summary is None]
    summaries = [summary for summary in found if summary is not None]
    if missing:
        whys = [why for key in missing if (why := _why_missing(results, goal.workload, key))]
        return Verdict(goal, None, note="; ".join(["not measured", *whys]))
    wrong = [str(summary.key) for summary in summaries if not summary.correct]
    note = f"wrong result: {', '.join(wrong)}" if wrong else ""
    noisy = sum(summary.runs - summary.quiet for summary in summaries)
    if goal.against is None:
        each = list(results.by_round(goal.workload, goal.figure).values())
        return Verdict(goal, summaries[0].median, min(each), max(each), note, noisy)
    both = results.ratios(goal.workload, goal.figure, goal.against)
    if not both:
        return Verdict(goal, None, note="no round has measured both")
    return Verdict(goal, statistics.median(both), min(both), max(both), note, noisy)


def _why_missing(results: Results, workload: str, key: Key) -> str:
    """What it said when it was tried; "": it never was."""
    for failure in results.failures:
        whose = (failure.workload, failure.contender) == (workload, key.contender)
        if whose and failure.x in (None, key.x):
            return f"{key}: {failure.why.splitlines()[-1]}"
    return ""


def _state(keys: int) -> str:
    return f"{keys:,} keys"


_LOG, _UPSERT, _APPEND = Key("log"), Key("upsert"), Key("append")
_UNSEEN, _LOOKED_AT = Key("not looked at"), Key("metrics, traces, page")
_STATES = (10_000, 100_000, 1_000_000, 10_000_000)

GOALS: tuple[Goal, ...] = (
    Goal(
        "a",
        "`log` against the same Spark jobs writing Parquet with no guarantee, time",
        _LOG,
        1.10,
        against=Key("no guarantee, log"),
    ),
    Goal(
        "a",
        "append against the same Spark jobs writing Parquet with no guarantee, time",
        _APPEND,
        1.10,
        against=Key("no guarantee, append"),
    ),
    Goal("a", "`log` against one plain Spark job, time", _LOG, 1.6, against=Key("one Spark job")),
    Goal("a", "`log` against Flink, heap, 1 s checkpoints, time", _LOG, 1.2, against=Key("Flink")),
    Goal("a", "`log` against SS `MERGE`, throughput", Key("SS MERGE"), 8, "least", _LOG),
    Goal("a", "`upsert` against SS `MERGE`, throughput", Key("SS MERGE"), 4, "least", _UPSERT),
    Goal("a", "`log` against SS stateful, throughput", Key("SS stateful"), 6, "least", _LOG),
    Goal("b", "append against SS append, batches/s", _APPEND, 5, "least", Key("SS append")),
    Goal("b", "append, batches/s", _APPEND, 10, "least", unit="/s"),
    Goal("b", "`log` against SS append, batches/s", _LOG, 5, "least", Key("SS append")),
    Goal("b", "`log`, batches/s", _LOG, 10, "least", unit="/s"),
    *(
        Goal("c", f"commit turn of `log`, {_state(keys)}, p50", Key("log", keys), 25, unit="ms")
        for keys in _STATES
    ),
    Goal(
        "c",
        f"commit turn of `log`, {_state(_STATES[-1])} against {_state(_STATES[0])}",
        Key("log", _STATES[-1]),
        1.3,
        against=Key("log", _STATES[0]),
    ),
    *(
        Goal(
            "c",
            f"commit of `upsert` against tuned `MERGE`, {_state(keys)}",
            Key("upsert", keys),
            1.0 if keys == _STATES[-1] else 0.5,
            against=Key("MERGE", keys),
        )
        for keys in _STATES
    ),
    Goal("d", "acker on against off, time", Key("acker on"), 1.02, against=Key("acker off")),
    Goal(
        "d",
        'verify="rows" against "edges", time',
        Key("verify rows"),
        1.15,
        against=Key("acker on"),
    ),
    Goal("f", "coordination per batch, 1 partition, p50", Key("batch", 1), 20, unit="ms"),
    Goal("f", "coordination per batch, 1,000 partitions, p50", Key("batch", 1_000), 20, unit="ms"),
    Goal(
        "g",
        "Java heap, batch 2,000 against batch 200",
        Key("Java heap", 2_000),
        1.05,
        against=Key("Java heap", 200),
    ),
    Goal(
        "g",
        "Python, batch 2,000 against batch 200",
        Key("Python", 2_000),
        1.05,
        against=Key("Python", 200),
    ),
    Goal("h", "`log` on S3 against SS `MERGE`, throughput", Key("SS MERGE"), 5, "least", _LOG),
    Goal(
        "h", "`upsert` on S3 against SS `MERGE`, throughput", Key("SS MERGE"), 5, "least", _UPSERT
    ),
    Goal("i", "append on S3 against SS append, batches/s", _APPEND, 5, "least", Key("SS append")),
    Goal("i", "`log` on S3 against SS append, batches/s", _LOG, 5, "least", Key("SS append")),
    Goal(
        "j",
        f"full read of `log`, compacted, {_state(_STATES[-1])}, against a plain Delta table, time",
        Key("log, all", _STATES[-1]),
        1.5,
        against=Key("plain, all", _STATES[-1]),
    ),
    Goal(
        "j",
        f"the same, at the end of a busy run, {_state(_STATES[-1])}, time",
        Key("log, all, run ended", _STATES[-1]),
        3,
        against=Key("plain, all, run ended", _STATES[-1]),
    ),
    Goal("f", "coordination per batch, 5,000 partitions, p50", Key("batch", 5_000), 20, unit="ms"),
    Goal(
        "f", "coordination per batch, 50,000 partitions, p50", Key("batch", 50_000), 100, unit="ms"
    ),
    Goal("m", "`log` against SS `MERGE`, bytes written", _LOG, 0.2, against=Key("SS MERGE")),
    Goal(
        "p",
        "commit turn of 20 tables against that of one, p50",
        Key("turn", 20),
        3,
        against=Key("turn", 1),
    ),
    Goal("q", "`log` against one plain Spark job, time", _LOG, 1.25, against=Key("one Spark job")),
    Goal("q", "`log` against SS `MERGE`, throughput", Key("SS MERGE"), 6, "least", _LOG),
    Goal("q", "`log` against Flink, time", _LOG, 1.3, against=Key("Flink")),
    Goal("r", "first batch, beyond a bare session", Key("beyond the bare session"), 1.0, unit="s"),
    Goal("k", "looked at against not, time", _LOOKED_AT, 1.02, against=_UNSEEN),
    Goal("l", "looked at against not, batches/s", _LOOKED_AT, 0.98, "least", _UNSEEN),
    *(
        Goal(
            "j",
            f"`get` of 100 keys of `{layout}`, {_state(_STATES[-1])}, p50",
            Key(f"{layout}, 100 keys", _STATES[-1]),
            150,
            unit="ms",
        )
        for layout in ("log", "upsert")
    ),
)
