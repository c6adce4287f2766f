"""The edges of a batch: everything that the acker's ledger of one attempt tracks.

As Trident anchors its coordination tuples and not the data, an edge stands for a whole thing that
must arrive: a planned source partition or file (out of START, into each staging job that read
it), a staging job, a staged file (out of its job, into the published version, where it must be
found unchanged), a table (out of its publication, into COMMITTED).

An attempt has two ledgers, one after the other, as a Trident batch has two tuple trees: one for
the processing phase, which opens the commit turn, one for the commit turn, which opens COMMITTED.
Each has a root id of its own, drawn afresh: keyed by txid, a late ack of a failed attempt could
complete the replay's ledger (edge case E8 in docs/acker.md).

Pure: ids come from the `ids` argument. The pipeline carries each value to the acker itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import xor

from txn.acker import Acker, Status
from txn.attempts import TransactionAttempt
from txn.interfaces import Prepared, Published, Staged, StagedFile

__all__ = ["CommitLedger", "Ledger", "ProcessingLedger", "Tracking"]

Ids = Callable[[], int]
Key = tuple[str, ...]


def _arrive(edges: dict[Key, int], key: Key, ids: Ids) -> int:
    """Close the edge of an arrival; an unannounced arrival gets a new edge that stays open."""
    return edges.pop(key) if key in edges else edges.setdefault(("unexpected", *key), ids())


def _planned(parts: Mapping[str, Mapping[str, Iterable[str]]], ids: Ids) -> dict[Key, int]:
    """Return the edges of the sinks' staging jobs, and of the parts that each must read."""
    edges: dict[Key, int] = {}
    for sink, streams in parts.items():
        edges[("job", sink)] = ids()
        for stream, names in streams.items():
            edges.update({("part", sink, stream, name): ids() for name in names})
    return edges


def _arrived(sink: str, read: Mapping[str, Iterable[str]]) -> list[Key]:
    """Return the edges of one staging job: its own, and those of the parts that it read."""
    parts: list[Key] = [("part", sink, s, name) for s, names in read.items() for name in names]
    return [("job", sink), *parts]


def _xor_all(values: Iterable[int]) -> int:
    return reduce(xor, values, 0)


@dataclass
class Ledger:
    """The open edges of one phase of an attempt, and the root id under which the acker has them."""

    ids: Ids
    root: int = field(init=False)
    edges: dict[Key, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.root = self.ids()

    @property
    def initial(self) -> int:
        """The value that opens the ledger: the XOR of its first edges."""
        return _xor_all(self.edges.values())

    def missing(self) -> str:
        """Return the missing edges, for the message of a ledger that does not close."""
        return ", ".join(" ".join(key) for key in sorted(self.edges)) or "nothing"


@dataclass
class ProcessingLedger(Ledger):
    """Edges of the processing phase of one attempt: at first, all that START sends out.

    Args:
        parts: sink -> stream -> names of the source partitions or files that it must read, for the
            sinks that are staged in this phase (possibly none).
    """

    parts: Mapping[str, Mapping[str, Iterable[str]]]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.edges[("emission",)] = self.ids()
        self.edges.update(_planned(self.parts, self.ids))

    def staged(self, sink: str, read: Mapping[str, Iterable[str]]) -> int:
        """Return the ack of one staging job: its own edge, and those of the parts it really read.

        A part that was never planned brings an edge that nothing closes: the batch must fail.
        """
        return _xor_all(_arrive(self.edges, key, self.ids) for key in _arrived(sink, read))

    def emitted(self) -> int:
        """Return the ack of the phase itself: every job was started and has ended."""
        return _arrive(self.edges, ("emission",), self.ids)


@dataclass
class CommitLedger(Ledger):
    """Edges of the commit turn of one attempt: at first, every staged file and every table.

    Args:
        staged: table -> the files that the processing phase staged for it.
        parts: as in `ProcessingLedger`, for the tables that are staged in the turn itself.
    """

    staged: Mapping[str, Staged]
    parts: Mapping[str, Mapping[str, Iterable[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for table in (*self.staged, *self.parts):
            self.edges[("table", table)] = self.ids()
        for table, staged in self.staged.items():
            for file in staged.files:
                self.edges[self._key(table, file)] = self.ids()
        self.edges.update(_planned(self.parts, self.ids))

    def staged_late(self, table: str, staged: Staged, read: Mapping[str, Iterable[str]]) -> int:
        """Return the ack of a staging job of the turn: itself and its parts in, its files out."""
        value = _xor_all(_arrive(self.edges, key, self.ids) for key in _arrived(table, read))
        for file in staged.files:
            self.edges[self._key(table, file)] = edge = self.ids()
            value ^= edge
        return value

    def prepared(self, table: str, prepared: Prepared) -> int:
        """Return the ack of one rewrite: staged files that it consumed in, new files out.

        Staged files that are themselves added keep their edge until they are found published.
        """
        adds = {self._key(table, file) for file in prepared.adds}
        consumed = [self._key(table, file) for file in prepared.staged.files]
        value = _xor_all(self.edges.pop(key, 0) for key in consumed if key not in adds)
        for key in adds - set(self.edges):
            self.edges[key] = self.ids()
            value ^= self.edges[key]
        return value

    def published(self, table: str, published: Published) -> int:
        """Return the ack of one publication: each file that the version names, unchanged.

        A file that was never staged brings an edge that nothing closes. A skipped publication is an
        older version, whose files were acknowledged when it was made.
        """
        if published.skipped:
            return 0
        arrivals = [self._key(table, file) for file in published.files]
        return _xor_all(_arrive(self.edges, key, self.ids) for key in arrivals)

    def committed(self, tables: Iterable[str]) -> int:
        """Return the ack of COMMITTED: each table whose version it names."""
        return _xor_all(self.edges.pop(("table", table), 0) for table in tables)

    @staticmethod
    def _key(table: str, file: StagedFile) -> Key:
        return ("file", table, file.path, str(file.size), str(file.rows))


class Tracking:
    """The acker with the attempts behind its root ids.

    Args:
        ticks: an untouched ledger expires at this tick after it was opened.
        enabled: False switches tracking off (`ackers = 0`): no ledger is ever open.
    """

    def __init__(self, ticks: int, *, enabled: bool) -> None:
        self.enabled = enabled
        self._acker = Acker(timeout_ticks=ticks)
        self._roots: dict[int, TransactionAttempt] = {}

    def open(self, attempt: TransactionAttempt, ledger: Ledger) -> None:
        """Initialise a ledger; it always has an edge, so it cannot be complete already."""
        if self.enabled:
            self._roots[ledger.root] = attempt
            self._acker.init(ledger.root, ledger.initial)

    def is_open(self, ledger: Ledger) -> bool:
        """True if the ledger is open: neither closed, nor expired, nor dropped."""
        return ledger.root in self._roots

    def ack(self, ledger: Ledger, value: int) -> bool:
        """Acknowledge edges; return whether that closes the ledger."""
        outcome = self._acker.ack(ledger.root, value) if self.is_open(ledger) else None
        if outcome is None:
            return False
        del self._roots[ledger.root]
        return outcome.status is Status.ACKED

    def progress(self, ledger: Ledger) -> None:
        """Give a ledger its full time again, because its attempt makes progress."""
        if self.is_open(ledger):
            self._acker.reset_timeout(ledger.root)

    def drop(self, attempt: TransactionAttempt) -> None:
        """Forget an attempt: later outcomes of its ledger are ignored."""
        for root in [root for root, owner in self._roots.items() if owner == attempt]:
            del self._roots[root]
            self._acker.fail(root)

    def tick(self) -> list[TransactionAttempt]:
        """Let time pass; return the attempts whose ledgers expired."""
        roots = [outcome.root for outcome in self._acker.tick()]
        return [self._roots.pop(root) for root in roots if root in self._roots]
