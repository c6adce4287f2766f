"""Size new batches: larger while a stream is behind, smaller once it is caught up.

A large batch costs less per row; a small one is committed sooner. Planning shows which of the two
matters, once per new txid and stream:

    behind      the window of txids in flight is full, or the spout had something to read every
                time it was asked, several times in a row: the share doubles, up to 1.0
    caught up   the spout had nothing to read: the share halves, down to 0.0

The spout turns a share into records, files or versions (`set_batch_target`).
Nothing is durable: a run begins with the smallest batches and is at the cap a few txids later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from txn.interfaces import Spout
from txn.interfaces.spout_capabilities import SizesBatches

__all__ = ["BatchTarget", "BatchTargets"]

FIRST_STEP = 1 / 16
"""From the smallest batches to the largest in five doublings."""
ANSWERS_IN_A_ROW = 3
"""Answers with something to read, without a pause, that show a source ahead of the planning."""


@dataclass(frozen=True)
class BatchTarget:
    """The target of one stream, and the answers that decided it. Pure."""

    share: float = 0.0
    """From 0.0, as small as the user allows, to 1.0, the user's cap."""
    answers: int = 0
    """Consecutive answers of the spout with something to read."""

    def answered(self, *, window_full: bool) -> BatchTarget:
        """The target after the spout had something to read for a new txid.

        Args:
            window_full: this txid fills the window of txids in flight.
        """
        answers = self.answers + 1
        if not window_full and answers < ANSWERS_IN_A_ROW:
            return replace(self, answers=answers)
        return BatchTarget(min(1.0, max(FIRST_STEP, 2 * self.share)), answers)

    def idle(self) -> BatchTarget:
        """The target after the spout had nothing to read for a new txid."""
        half = self.share / 2
        return BatchTarget(half if half >= FIRST_STEP else 0.0)


@dataclass
class BatchTargets:
    """The targets of all streams of a run. Used by the planner's thread alone."""

    spouts: Mapping[str, Spout]  # type: ignore[type-arg]  # of any metadata
    _targets: dict[str, BatchTarget] = field(default_factory=dict)

    def apply(self) -> None:
        """Set every spout's target, before it plans a new txid."""
        for stream, spout in self.spouts.items():
            if isinstance(spout, SizesBatches):
                spout.set_batch_target(self.share(stream))

    def learn(self, answers: Mapping[str, object | None], *, window_full: bool) -> None:
        """Adjust the targets to the spouts' answers for a new txid, by stream."""
        for stream, answer in answers.items():
            target = self._targets.get(stream, BatchTarget())
            self._targets[stream] = (
                target.idle() if answer is None else target.answered(window_full=window_full)
            )

    def share(self, stream: str) -> float:
        """The target of one stream, 0.0 to 1.0."""
        return self._targets.get(stream, BatchTarget()).share
