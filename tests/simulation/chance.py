"""What goes wrong in a run, and how often: drawn from its seed, and counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

__all__ = ["FAULTS", "Faults"]

FAULTS = (
    "crash",  # SIGKILL, at an I/O or at a named point of a batch's life
    "pause",  # SIGSTOP for a while, often for longer than the session
    "zk request lost",  # ConnectionLoss, and nothing happened
    "zk answer lost",  # ConnectionLoss, and it happened
    "zk write late",  # ConnectionLoss, and it happens later
    "zk session expired",
    "zk away",  # nobody can connect for a while
    "zk server behind",  # a new session reads what others have replaced already
    "zk restored",  # from a backup that has older STARTs
    "zk node damaged",  # somebody wrote garbage into a node while nobody led
    "append refused",  # an error, and nothing happened
    "append answer lost",  # an error, and it happened
    "append late",  # an error, and it happens later
    "append garbled",  # the version that lands lacks a file
    "job failed",  # an executor was lost
    "job hangs",  # beyond the message timeout
    "batch failed",  # FailedException of the user's code or the spout
    "poison",  # some txid cannot be planned, or not be processed, for a while
    "source away",  # SourceUnavailableError: waits, uncounted
    "part not read",  # a planned part is missing in what was read
    "staged file gone",  # somebody deleted it
    "optimize",  # somebody rewrote files of a table, rows unchanged
    "storage away",  # nothing can be read, listed or deleted for a while
    "vacuum",  # somebody deleted the files that no version names for a while
    "log cleaned",  # somebody deleted old commit files
    "stale listing",  # of a log or a folder
    "other ensemble",  # a leader of another ensemble takes a table
    "table properties",  # somebody changed properties of a table
    "rival",  # a second process wants to lead
    "stop",  # a clean stop is asked for
    "former program",  # a process is started with the program before the change
)


@dataclass
class Faults:
    """The faults of one run.

    Args:
        random: of the run.
        rates: fault -> its chance at each occasion.
        until: simulated time at which nothing goes wrong any more.
    """

    random: Random
    rates: dict[str, float]
    until: float
    counts: Counter[str] = field(default_factory=Counter)
    on: bool = True

    def strikes(self, fault: str) -> bool:
        """Whether this one happens now."""
        rate = self.rates.get(fault)
        if rate is None or not self.on or self.random.random() >= rate:
            return False
        self.counts[fault] += 1
        return True

    def first(self, *faults: str) -> str | None:
        """At most one of these."""
        if not self.on:
            return None
        roll, upto = self.random.random(), 0.0
        for fault in faults:
            upto += self.rates.get(fault, 0.0)
            if roll < upto:
                self.counts[fault] += 1
                return fault
        return None
