"""Report in one line the sources that a run without anything to read waits for.

A mistyped pattern, an empty folder and a topic without a record all look like a run at rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from txn.engine.reporting.report import RunReport, RunStatus

if TYPE_CHECKING:
    from txn.interfaces import Spout
    from txn.topology import Topology

__all__ = ["Idleness"]

_TELL_SECS = 2.0


class Idleness:
    """Reports once that a run has had nothing to do from its beginning on.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, topology: Topology, clock: Callable[[], float] = time.monotonic) -> None:
        self._topology = topology
        self._clock = clock
        self._since: float | None = None
        self._over = False

    def look(self, status: RunStatus) -> str | None:
        """Return a line for the user, once, if nothing was read for two seconds; else None."""
        self._over = self._over or status.batches_committed > 0
        if self._over or status.held_up_by != "idle":
            self._since = None
            return None
        now = self._clock()
        if self._since is None:
            self._since = now
        if now - self._since < _TELL_SECS:
            return None
        self._over = True
        return (
            f"{self._topology.name}: {_nothing(status)} to read, waiting for {self._sources()}. "
            "With --until caught_up a run ends instead."
        )

    def ended(self, report: RunReport) -> str | None:
        """Return a line for the user if a run caught up without reading anything; else None."""
        if report.ended != "caught_up" or report.batches_committed:
            return None
        return f"{self._topology.name}: {_nothing(report)} to read in {self._sources()}."

    def _sources(self) -> str:
        return "; ".join(f"{s.name} ({_spout_text(s.spout)})" for s in self._topology.sources)


def _nothing(seen: RunStatus | RunReport) -> str:
    return "nothing new" if seen.committed_txid else "nothing"


def _spout_text(spout: Spout[object]) -> str:  # type: ignore[type-var]
    """Return a spout's repr; its class name if that is Python's, an address in memory."""
    has_repr = type(spout).__repr__ is not object.__repr__
    return repr(spout) if has_repr else type(spout).__name__
