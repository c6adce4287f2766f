"""Count the rows that break rules, before anything is staged from the others.

One job counts for all rules of an attempt, or of a group of attempts. It reads the shared rows that
the staging jobs read after it, so the source and the transforms above the rules are computed once.
An aggregation is used instead of an `Observation`: that one counts a task's rows again if a shuffle
stage is run again, is lost behind a local checkpoint, and sees only some rows below a limit or a
join that finds its other side empty.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from txn.dataflow.expectations import MOST_PARTITIONS, Expectation, Judged
from txn.engine.base.attempt import Emission
from txn.errors import RuleViolatedError, TopologyError
from txn.spark.own_session import moved
from txn.text import placed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["count_violations"]


def count_violations(emissions: Sequence[Emission], session: SparkSession) -> None:
    """Count violations in judged rows that are not counted yet; without such rows, run no job.

    Raises:
        RuleViolatedError: rows break a rule with `on_violation="fail"`.
    """
    waiting = [
        (emission, judged)
        for emission in emissions
        for judged in emission.evaluation.judged.values()
        if not judged.counted
    ]
    if not waiting:
        return
    counts = (judged.counts(number) for number, (_, judged) in enumerate(waiting))
    whole = functools.reduce(lambda one, other: one.unionAll(other), counts)
    labels = {rule.label(): None for _, judged in waiting for rule in judged.verdicts}
    with placed(f"the rules of stream '{', '.join(labels)}'"):
        results = moved(whole, session).collect()
    for number, broken, partition, newest in results:
        emission, judged = waiting[number]
        if broken is not None:
            _record(emission, judged, broken)
        if newest is not None:
            (label,) = {rule.label() for rule in judged.verdicts}
            times = emission.newest_times.setdefault(label, {})
            times[partition] = max(newest, times.get(partition, newest))
            if len(times) > MOST_PARTITIONS:
                raise _too_many_partitions(label)
    for emission, judged in waiting:
        _refuse(emission, judged)


def _too_many_partitions(stream: str) -> TopologyError:
    return TopologyError(
        f"The watermark of stream '{stream}' names a column for the partitions that has more than "
        f"{MOST_PARTITIONS:,} values in one batch: each has an entry in ZooKeeper and in every "
        "table's log. Name a column with the partitions of the source, or leave by= out.",
        number="TXN-123",
    )


def _record(emission: Emission, judged: Judged, broken: Sequence[int]) -> None:
    judged.counted = True
    for rule, rows in zip(judged.verdicts, broken, strict=True):
        emission.violations.setdefault(rule.label(), {})[rule.name] = rows


def _refuse(emission: Emission, judged: Judged) -> None:
    for rule in judged.verdicts:
        rows = emission.violations[rule.label()][rule.name]
        if rule.on_violation == "fail" and rows:
            raise _violation_error(emission, rule, rows)


def _violation_error(emission: Emission, rule: Expectation, rows: int) -> RuleViolatedError:
    evaluation = emission.evaluation
    names = [s.name for s in rule.sources_read() if s.name in evaluation.positions]
    read = "; ".join(f"{name}: {evaluation.positions[name]}" for name in names)
    return RuleViolatedError(
        f"{rows} row{'s' if rows > 1 else ''} of stream '{rule.label()}' in attempt "
        f"{evaluation.attempt} break{'' if rows > 1 else 's'} the rule '{rule.name}' "
        f"({rule.condition_text}){f'; the batch read {read}' if read else ''}. Nothing of the "
        "batch was committed. Correct the program or the rule and run again: the batch is "
        "replayed, a quarantined one by `txn quarantine replay`. To see the rows and go on without "
        "them, give the rule on_violation='set_aside'."
    )
