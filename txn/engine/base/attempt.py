"""One attempt in a run: the values that the stations hand to each other."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from txn.attempts import TransactionAttempt
from txn.dataflow.evaluation import Evaluation
from txn.engine.base.input import NOTHING_READ, Input
from txn.engine.base.row_counts import PlannedRows
from txn.engine.base.shared_rows import SharedRows
from txn.errors import FailedException, TxnError
from txn.interfaces import Prepared, Publication, Published, Staged, StoredRows
from txn.interfaces.event_time import NewestTimes
from txn.protocol.events import Metadata
from txn.protocol.ledgers import ProcessingLedger

__all__ = ["CommitResult", "Emission", "LiveAttempt", "Staging", "table_publication"]


@dataclass
class LiveAttempt:
    """The work of one live attempt so far. Owned by the protocol's thread."""

    attempt: TransactionAttempt
    metadata: Metadata
    tag: str
    ledger: ProcessingLedger
    watermark: int | None = None
    watermark_before: int | None = None
    dimensions: Mapping[str, int] = field(default_factory=dict)
    """Table that a stream looks rows up in -> the version to read."""
    empty: bool = False
    """A quarantined batch: nothing is read, every table gets an empty version."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set once the attempt is dead; its working threads check it."""
    threads: int = 0
    """Threads that are, or will be, in its processing phase or commit turn: the first may still be
    ending when the second begins."""
    had_turn: bool = False
    """Its commit turn has begun: a table may refer to its files."""
    staged: dict[str, Staged] = field(default_factory=dict)
    earlier: Sequence[LiveAttempt] = ()
    """The attempts of smaller txids that are staged and not committed, for its processing phase."""
    awaited: frozenset[str] = frozenset()
    """Its streams whose columns an attempt before waits for: it is emitted, and waits for that."""
    built_on: dict[int, TransactionAttempt] = field(default_factory=dict)
    """Smaller txid -> the attempt whose staged rows its own depend on."""
    input: Input = NOTHING_READ
    """The records and bytes that it reads, by its spouts; set in its commit turn."""
    written: Mapping[str, int | None] = field(default_factory=dict)
    """`BatchReport.written`."""

    @property
    def reads(self) -> Metadata:
        """The metadata to read; empty if the attempt is emptied."""
        return {} if self.empty else self.metadata


@dataclass(frozen=True)
class Staging:
    """The files that one job staged for a table and an attempt."""

    staged: Staged
    read: Mapping[str, Sequence[str]]
    """Stream -> the planned parts that the job has read; empty if no job ran."""


@dataclass
class Emission:
    """The rows of one attempt, from the processing phase into its commit turn."""

    evaluation: Evaluation
    parts: Mapping[str, Sequence[str]]
    """stream -> planned parts that its DataFrame reads; idle streams are left out."""
    metadata: Metadata
    """The metadata that START recorded."""
    shared: SharedRows
    planned: dict[str, PlannedRows] = field(default_factory=dict)
    """stream -> its rows, until they are counted."""
    prepared: dict[str, Prepared] = field(default_factory=dict)
    publication: Publication | None = None
    one_task: bool = False
    """True if each stream is staged by one task, because other batches use the other slots."""
    stored: list[StoredRows] = field(default_factory=list)
    """The files that were read from tables."""
    earlier: Sequence[LiveAttempt] = ()
    """`LiveAttempt.earlier`."""
    built_on: dict[int, TransactionAttempt] = field(default_factory=dict)
    """`LiveAttempt.built_on`."""
    violations: dict[str, dict[str, int]] = field(default_factory=dict)
    """stream -> rule -> rows that broke it, of those counted so far."""
    newest_times: NewestTimes = field(default_factory=dict)
    """The newest event times, of the rows counted so far."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Run jobs over its rows; report a deleted table file as lost work.

        Raises:
            FailedException: a file of a table is gone; the replay looks the rows up anew.
        """
        try:
            yield
        except TxnError:
            raise
        except Exception as error:
            gone = next(filter(None, (stored.missing() for stored in self.stored)), None)
            if gone is None:
                raise
            raise FailedException(
                f"File {gone} of a table that attempt {self.evaluation.attempt} reads was "
                "deleted before it was read: an OPTIMIZE moved its rows into other files, and "
                "VACUUM deleted the former ones. The batch is replayed.",
                number="TXN-312",
            ) from error

    def let_go(self) -> None:
        """Forget all DataFrames: in Java each keeps its plan, and what its joins have broadcast.

        The functions of an evaluation refer to its emission, so by themselves both would wait for
        Python's collector. The objects of py4j below a DataFrame still may: they are cycles, too.
        """
        self.shared.release()
        self.evaluation.forget()
        self.stored.clear()

    def check_rows(self, stagings: Collection[Staging]) -> None:
        """Compare the rows that these jobs have read with the planned numbers."""
        empty = not any(staging.staged.rows for staging in stagings)
        for stream in {stream for staging in stagings for stream in staging.read}:
            if counted := self.planned.pop(stream, None):
                counted.check(self.evaluation.attempt, empty=empty)


@dataclass(frozen=True)
class CommitResult:
    """The result of a commit turn, for every table."""

    prepared: Mapping[str, Prepared]
    published: Mapping[str, Published]
    late: Mapping[str, Staging]
    """Table -> files that were staged in the turn itself."""
    inputs: Mapping[TransactionAttempt, Input] = field(default_factory=dict)
    """The records and bytes that each attempt of the turn reads, by its spouts."""

    @property
    def tables(self) -> dict[str, int]:
        """Table -> version that holds the txid; a table that does not exist yet is left out.

        Such a table has received only empty batches of a stream whose columns are unknown.
        """
        held = {name: published.version for name, published in self.published.items()}
        return {name: version for name, version in held.items() if version >= 0}

    @property
    def written(self) -> dict[str, int | None]:
        """Table -> rows in the files that its version adds; None: its log has no counts."""
        return {
            name: None if any(file.rows < 0 for file in files) else sum(f.rows for f in files)
            for name, published in self.published.items()
            if not published.skipped
            for files in (published.files,)
        }


def table_publication(publication: Publication, staged: Staged) -> Publication:
    """The turn's publication with this table's own rows and digests."""
    members = tuple(
        member.model_copy(update=_own_fields(part))
        for member, part in zip(publication.members, staged.members, strict=True)
    )
    return publication.model_copy(update={**_own_fields(staged), "members": members})


def _own_fields(staged: Staged) -> dict[str, Any]:
    names = ("rows", "digest", "violations", "unasked", "forms")
    return {name: getattr(staged, name) for name in names}
