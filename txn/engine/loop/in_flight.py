"""The attempts at work, and the end of each: committed, cancelled, cleaned up.

Owned by the protocol's thread, except for `LiveAttempt.cancelled`, which working threads check.
"""

from __future__ import annotations

from functools import partial

from txn.attempts import TransactionAttempt
from txn.engine.base.attempt import LiveAttempt
from txn.engine.base.threads import Straggler, Threads
from txn.engine.work.stations import Stations

__all__ = ["LiveAttempts"]


class LiveAttempts:
    """The attempts that were ordered to process and are neither committed nor cancelled."""

    def __init__(self, stations: Stations, threads: Threads) -> None:
        self._stations = stations
        self._threads = threads
        self._attempts: dict[TransactionAttempt, LiveAttempt] = {}

    def __getitem__(self, attempt: TransactionAttempt) -> LiveAttempt:
        return self._attempts[attempt]

    def add(self, live: LiveAttempt) -> None:
        """Add an attempt that begins its work."""
        self._attempts[live.attempt] = live

    def before(self, live: LiveAttempt) -> list[LiveAttempt]:
        """The attempts of smaller txids."""
        return [one for one in self._attempts.values() if one.attempt.txid < live.attempt.txid]

    def committed(self, attempt: TransactionAttempt) -> None:
        """Forget an attempt that is durable everywhere: it can no longer be cancelled."""
        self._attempts.pop(attempt, None)

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Stop an attempt's work and delete its staged files; an unknown one changes nothing."""
        live = self._attempts.pop(attempt, None)
        if live is None:
            return
        live.cancelled.set()
        if live.threads:
            # Its thread deletes the staged files when it ends; until then more may appear.
            self._threads.clean(lambda: self._stations.cancel(live.tag))
        else:
            self._discard(live)

    def thread_ended(self, live: LiveAttempt) -> None:
        """Note that a thread of this attempt's processing phase or commit turn has ended."""
        live.threads -= 1
        if live.cancelled.is_set():
            self._discard(live)

    def shut_down(self) -> list[Straggler]:
        """Cancel the attempts at work, wait, delete their files. Returns the threads that hang."""

        def cancel() -> None:
            for live in self._attempts.values():
                self._threads.quietly(partial(self._stations.cancel, live.tag))

        for live in self._attempts.values():
            live.cancelled.set()
        cancel()
        stragglers = self._threads.join(cancel)
        for live in self._attempts.values():
            if not live.had_turn:
                self._threads.quietly(partial(self._stations.discard, live.attempt))
        return stragglers

    def _discard(self, live: LiveAttempt) -> None:
        """Delete a dead attempt's staged files, unless it came to its commit turn.

        A commit turn that failed may still have published (an append whose answer was lost):
        then a table needs the files. The next run or VACUUM deletes those that it does not need.
        """
        if not live.had_turn:
            self._threads.clean(lambda: self._stations.discard(live.attempt))
