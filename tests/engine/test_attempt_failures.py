"""What becomes of a failed attempt: an event, the end of the run, or nothing if it is dead."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from txn.attempts import TransactionAttempt
from txn.config import TopologyConfig
from txn.engine.loop.attempt_failures import AttemptFailures
from txn.engine.reporting.broadcast import Broadcast
from txn.errors import (
    BatchError,
    ColumnsUnknownError,
    FailedException,
    FencedError,
    ProgressUnavailableError,
    SourceChangedError,
    SourceUnavailableError,
    TopologyError,
)
from txn.protocol.events import Batch, BatchFailed, Phase, PlanFailed, PlanRefused
from txn.spark.causes import cause_line
from txn.text import placed

LIVE, DEAD = TransactionAttempt(5, 1), TransactionAttempt(5)


@dataclass
class Run:
    """The shell of a run with txid 5 in flight: what its parts ask of it is kept."""

    phase: Phase = Phase.PROCESSING
    leading: Exception | None = None
    grouped: bool = False
    state: Any = None
    events: list[Any] = field(default_factory=list)
    ended: list[BaseException] = field(default_factory=list)
    timers: list[Any] = field(default_factory=list)
    told: list[Any] = field(default_factory=list)
    config: TopologyConfig = field(default_factory=TopologyConfig)
    quarantined: str | None = None
    replay_of: int | None = None

    def __post_init__(self) -> None:
        batch = Batch(
            LIVE,
            self.phase,
            metadata={"s": 1},
            quarantined=self.quarantined,
            replay_of=self.replay_of,
        )
        self.state = SimpleNamespace(
            batches={5: batch}, committed=2, until=None, until_caught_up=True, stopping=False
        )
        shell: Any = self
        broadcast = Broadcast("t", lambda: 0.0)
        broadcast.read_by(self.told.append)
        self.failures = AttemptFailures("t", self.config, shell, broadcast, shell)

    def post(self, fact: Any) -> None:
        """Steps of the shell's own are done at once."""
        if callable(fact):
            fact()
        else:
            self.events.append(fact)

    def after(self, seconds: float, fact: Any) -> None:
        """A timer."""
        self.timers.append(fact)

    def end(self, error: BaseException) -> None:
        """The end of the run."""
        self.ended.append(error)

    def group_failed(self, attempt: TransactionAttempt, error: str) -> bool:
        """Whether the group whose turn runs fails with it."""
        return self.grouped

    def assert_leading(self, seconds: float | None = None) -> None:
        """Whether somebody else leads."""
        if self.leading is not None:
            raise self.leading


def test_a_lost_attempt_is_replayed_and_a_dead_one_changes_nothing() -> None:
    """What a replay may mend is an event of the attempt that lives, and of no other."""
    run = Run()
    for attempt in (DEAD, LIVE):
        run.failures.raised(attempt, FailedException("gone"))
    assert run.events == [BatchFailed(LIVE, "FailedException: gone")]
    run.failures.raised(DEAD, ValueError("its own fault"))
    assert (len(run.events), run.ended) == (1, [])


def test_a_question_that_finds_a_source_away_waits() -> None:
    """An attempt that is being planned fails its plan; a source that is away blocks it."""
    run = Run(Phase.PLANNING)
    run.failures.raised(LIVE, SourceUnavailableError("away"))
    assert run.events == [PlanFailed(LIVE, "SourceUnavailableError: away", True)]


def test_an_error_of_planning_ends_the_run_when_all_before_it_is_committed() -> None:
    """The coordinator is told, and says when; a lost leadership ends the run at once."""
    run, error = Run(Phase.PLANNING), TopologyError("no such column")
    run.failures.raised(LIVE, error)
    assert run.events == [PlanRefused(LIVE, "TopologyError: no such column")]
    assert (run.ended, run.failures.refusal(LIVE)) == ([], error)
    fenced = Run(Phase.PLANNING, leading=FencedError("another one leads"))
    fenced.failures.raised(LIVE, error)
    assert (fenced.events, fenced.ended) == ([], [fenced.leading])


def test_the_failure_of_a_group_is_nobodys_own() -> None:
    """A member of a group that fails is not failed: the group is dissolved instead."""
    run = Run(Phase.COMMITTING, grouped=True)
    run.failures.failed(LIVE, "no progress", "timeout")
    assert run.events == []


def test_an_error_of_the_users_code_ends_the_run() -> None:
    """It names the batch and what it read; also where ZooKeeper cannot be asked who leads."""
    for leading in (None, ProgressUnavailableError("away")):
        run = Run(leading=leading)
        run.failures.raised(LIVE, ValueError("not a number"))
        (error,) = run.ended
        assert isinstance(error, BatchError)
        assert "Batch 5:1 of topology 't'" in str(error)
        assert "It read s: 1." in str(error)


def test_a_quarantine_takes_errors_of_the_users_code_and_of_rows() -> None:
    """They fail the attempt, and name the place; a batch without rows of its own ends the run."""
    quarantine = TopologyConfig(on_exhausted="quarantine")
    poison = ValueError("not a number")
    with pytest.raises(ValueError, match="not"), placed("the spout of stream 's'"):
        raise poison
    run = Run(config=quarantine)
    run.failures.raised(LIVE, poison)
    told = "ValueError: not a number (in the spout of stream 's')"
    assert (run.events, run.ended) == ([BatchFailed(LIVE, told)], [])
    emptied = Run(config=quarantine, quarantined="x")
    emptied.failures.raised(LIVE, poison)
    assert (emptied.events, len(emptied.ended)) == ([], 1)
    planned = Run(Phase.PLANNING, config=quarantine)
    planned.failures.raised(LIVE, poison)
    assert ([type(event) for event in planned.events], planned.ended) == ([PlanRefused], [])
    for fault in (FencedError("epoch 3 leads"), TopologyError("no column"), OSError("no disk")):
        run = Run(config=quarantine)
        run.failures.raised(LIVE, fault)
        assert (run.events, len(run.ended)) == ([], 1)


def test_lost_records_fail_the_attempt_where_they_may_be_set_aside() -> None:
    """With a quarantine, a batch whose records are gone is one that fails for good."""
    lost = SourceChangedError("records are gone")
    for config, may in (
        (TopologyConfig(), False),
        (TopologyConfig(on_exhausted="quarantine"), True),
    ):
        run = Run(config=config)
        run.failures.raised(LIVE, lost)
        failed = [BatchFailed(LIVE, "SourceChangedError: records are gone")] if may else []
        assert (run.events, run.ended) == (failed, [] if may else [lost])


def test_what_came_out_of_the_quarantine_fails_without_ending_the_run() -> None:
    """Whatever on_exhausted says: its records are still set aside. Not what would meet any run."""
    for error in (SourceChangedError("gone"), ValueError("bad"), TopologyError("no column")):
        run = Run(replay_of=3)
        run.failures.raised(LIVE, error)
        assert (run.events, run.ended) == ([BatchFailed(LIVE, cause_line(error))], [])
    for error in (FencedError("epoch 3 leads"), OSError("no disk")):
        run = Run(replay_of=3)
        run.failures.raised(LIVE, error)
        assert (run.events, len(run.ended)) == ([], 1)


def test_who_was_replaced_says_so() -> None:
    """What goes wrong after a successor took over is its doing: it deletes files of this run."""
    successor = FencedError("epoch 3 leads")
    run = Run(leading=successor)
    run.failures.raised(LIVE, ValueError("not a number"))
    assert run.ended == [successor]


def test_a_run_that_is_to_end_does_not_wait_for_columns_for_ever() -> None:
    """It waits for them once as long as for anything else, and then says what it waits for."""
    run = Run()
    for _ in range(2):
        run.failures.raised(LIVE, ColumnsUnknownError("nobody knows", frozenset({"s"})))
    (timer,) = run.timers
    blocked = "ColumnsUnknownError: nobody knows"
    run.state.batches[5] = Batch(LIVE, Phase.WAITING, blocked=blocked)
    timer()
    (error,) = run.ended
    assert "nobody knows Nothing was lost" in str(error)
