"""A bench for one committer: plays the engine, and checks the table after every step.

The bench takes committers through the calls of a run in the engine's order and on separate threads,
lets processes die between any two of them, and models in plain Python the rows that a reader must
see. Only the storage outlives a crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from txn.attempts import TransactionAttempt
from txn.errors import FailedException, FencedError, StagedFileError, TxnError
from txn.interfaces import (
    Committer,
    CommitterContext,
    Member,
    Prepared,
    Publication,
    Published,
    Semantics,
    Staged,
)
from txn.interfaces.committer_capabilities import (
    CleansUp,
    KeepsOwnLog,
    SettlesTxids,
    StagesTogether,
)
from txn.testing.capability_check import capabilities
from txn.testing.spout_bench import ContractError
from txn.text import first_items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Self

__all__ = ["Batches", "CommitterBench", "CommitterTarget", "Leader", "Promise", "Rows", "Turn"]

T = TypeVar("T")

Row = tuple[Any, ...]
Rows = Sequence[Row]
Batches = Mapping[int, Rows]
"""Txid -> its rows."""

TOPOLOGY = "contract"


class CommitterTarget:
    """The half of `CommitterContract` that a plugin's author writes: the table and its reader."""

    def make_committer(self, folder: Path) -> Committer:
        """A new object over the table in `folder`; called again after every crash."""
        raise ContractError(f"{type(self).__name__} must define make_committer(folder).")

    def read(self, spark: SparkSession, committer: Committer) -> Rows:
        """The rows that a reader of the table sees now, as tuples, in any order.

        Read as your readers do, not from the object's memory: it may be a new one.
        """
        raise ContractError(f"{type(self).__name__} must define read(spark, committer).")

    def expected(self, applied: Sequence[tuple[int, Rows]]) -> Rows:
        """The rows that `read` must return after these; override it if the table sums rows up.

        A plain computation, independent of the committer. By default the rows themselves.
        """
        return [row for _, rows in applied for row in rows]

    def batch(self, spark: SparkSession, rows: Rows) -> DataFrame:
        """Make the DataFrame of a batch; override it for a table with other columns."""
        values = ", ".join(f"('{k}', {v}L)" for k, v in rows) or "('', 0L)"
        frame = spark.sql(f"SELECT * FROM VALUES {values} AS rows(k, v)")  # noqa: S608 - rows of this kit
        return frame if rows else frame.limit(0)

    def leftovers(self, committer: Committer) -> Sequence[str] | None:
        """Names of staged files that are in no version of the table; None: not known."""
        return None


@dataclass(frozen=True)
class Promise:
    """One sentence of the contract, and the place to look at when it is broken."""

    says: str
    look_at: str


HIDDEN = Promise(
    "what is staged or prepared is seen by nobody before it is published",
    "stage() and prepare(): they must write where no reader looks",
)
SHOWN = Promise(
    "a published txid is seen at once, each of its rows once, and nothing else changes",
    "publish(): it must add the rows of this attempt, and only those",
)
SKIPPED = Promise(
    "a transactional table applies a txid once, however often it is replayed",
    "prepare(): an earlier attempt has applied what the table holds with a txid >= "
    "publication.first_txid; apply only those txids of a replay that the table does not hold",
)
TAKEN_BACK = Promise(
    "an opaque table takes back all that it holds from publication.first_txid on before it applies "
    "a replay, whether or not the replay has the same keys or any rows",
    "prepare() and publish(): everything with a txid >= publication.first_txid must go, in the "
    "same step that adds the replay's rows",
)
REPEATED = Promise(
    "a non-transactional table applies a replay once more: at least once",
    "publish(): it must not skip or take back what an earlier attempt published",
)
OF_A_REPLAY = {
    Semantics.TRANSACTIONAL: SKIPPED,
    Semantics.OPAQUE: TAKEN_BACK,
    Semantics.NON_TRANSACTIONAL: REPEATED,
}
GROUPED = Promise(
    "a group of txids is one version with the rows of all its members",
    "prepare() and publish(): `staged.files` has the files of all members, `staged.members` says "
    "whose they are; a committer that cannot do this has `groups = False`",
)
REMEMBERED = Promise(
    "last_publication() is the newest publication that the table holds, as it was handed over",
    "publish(): store the publication (`model_dump_json`) in the same step as the rows; "
    "last_publication(): read it from the table, not from the object",
)
LISTED = Promise(
    "an object that was never opened lists what the table holds, for operators",
    "publications(): yield the newest first; newest_epoch(): count fences, too; read both from the "
    "table, not from the object",
)
CLOSED = Promise(
    "publish() returns the files of its Prepared.adds, with the same sizes and rows",
    "publish(): the acker waits for each file of `prepared.adds` and fails the batch without it",
)
FENCED = Promise(
    "after a newer leader has called fence(), an older one publishes nothing",
    "fence(): store the epoch; publish(): refuse with FencedError, in the step that writes, when "
    "the table holds a newer epoch than publication.epoch",
)
NEWEST = Promise(
    "an attempt that is not newer than the one that the table holds of its txid changes nothing",
    "publish(): compare attempt_id with that of last_publication() when epoch and txid are the "
    "same, and raise CommitConflictError",
)
HARMLESS = Promise(
    "discard(), committed(), settle() and close() change no row, may be missed and may be repeated",
    "discard() and committed(): delete only what was staged and is in no version",
)
CLEANED = Promise(
    "what dead attempts staged is deleted, by discard() or by the fence() of a new leader",
    "discard(): delete all that stage() and prepare() wrote for the attempt; fence(): delete what "
    "older epochs staged and never published",
)
WORKS = Promise(
    "every call works in the engine's order, on any thread, with a fresh object on an old table",
    "the error below; stage() runs on other threads than prepare() and publish()",
)


@dataclass
class Leader:
    """A process that leads, or has led."""

    committer: Committer
    epoch: int


@dataclass
class Turn:
    """An attempt, or a group of consecutive txids, on its way through one committer."""

    leader: Leader
    batches: dict[int, list[Row]]
    staged: Staged
    publication: Publication
    prepared: Prepared | None = None

    def __str__(self) -> str:
        members = self.staged.members
        first, last = members[0].attempt if members else None, self.staged.attempt
        return f"the group of {first} to {last}" if first else str(last)


@dataclass
class CommitterBench:
    """One table, the committer object that leads now, and the rows that a reader must see.

    Args:
        folder: an empty folder for the table.

    Raises:
        ContractError: the committer breaks its contract; every method may raise it.
    """

    spark: SparkSession
    target: CommitterTarget
    folder: Path
    committed: int = 0
    """The newest txid that is durable everywhere."""
    applied: list[tuple[int, list[Row]]] = field(default_factory=list)
    """The (txid, rows) that the table must hold, in the order in which they came."""
    story: list[str] = field(default_factory=list)
    """The history, for messages."""
    leader: Leader = field(init=False)

    def __post_init__(self) -> None:
        self._attempts: Counter[int] = Counter()
        self._held: Publication | None = None
        self._there = False
        self._dead: list[Leader] = []
        self._stagers = ThreadPoolExecutor(3, "txn-processing")
        self._turns = ThreadPoolExecutor(1, "txn-commit")
        self._others = ThreadPoolExecutor(1, "txn-clean-up")
        self.leader = Leader(self.target.make_committer(self.folder), 0)
        self.semantics = Semantics(self.leader.committer.semantics)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for leader in (*self._dead, self.leader):
            leader.committer.close()
        for pool in (self._stagers, self._turns, self._others):
            pool.shutdown()

    # --- processes ---------------------------------------------------------------------------

    def start(self, *, columns_known: bool = True) -> None:
        """Let a process lead: attach to the table, open it, fence it, ask for its last publication.

        Args:
            columns_known: False: nothing was ever read, so the table is not made yet.
        """
        if self.leader.epoch:
            self._dead.append(self.leader)
            self.leader = Leader(self.target.make_committer(self.folder), self.leader.epoch)
        leader = self.leader
        leader.epoch += 1
        self._step(f"a process starts with epoch {leader.epoch}")
        self._call(f"open(schema=None) of epoch {leader.epoch}", lambda: self._open(leader, False))
        self._check_remembered()
        if columns_known:
            self.open_for_rows()
        self._call(f"fence() of epoch {leader.epoch}", leader.committer.fence)
        self._check_remembered()
        self._check_own_log()
        if columns_known:
            self.look(SHOWN)

    def open_for_rows(self) -> None:
        """Let the leader open the table once the columns are known."""
        leader, self._there = self.leader, True
        self._call(f"open() of epoch {leader.epoch}", lambda: self._open(leader, True))

    def crash(self) -> None:
        """Let the process die, and another one lead."""
        self._step("the process dies")
        self.start()

    def _open(self, leader: Leader, columns_known: bool) -> None:
        partials = leader.committer.partials(self.target.batch(self.spark, ()))
        context = CommitterContext(TOPOLOGY, leader.epoch)
        leader.committer.open(self.spark, context, partials.schema if columns_known else None)

    # --- a turn, step by step ----------------------------------------------------------------

    def stage(self, batches: Batches) -> Turn:
        """Stage a new attempt of each of these txids, to be published as one version."""
        turns = self.stage_apart(batches)
        if len(turns) == 1:
            return turns[0]
        staged = Staged.together([turn.staged for turn in turns])
        rows = {txid: rows for turn in turns for txid, rows in turn.batches.items()}
        return Turn(self.leader, rows, staged, self._make_publication(staged, self.leader))

    def stage_apart(
        self, batches: Batches, *, together: bool = False, by: Leader | None = None
    ) -> list[Turn]:
        """Stage a new attempt of each of these txids, each for a version of its own.

        Args:
            together: with one call of `stage_together`; else side by side on threads.
            by: an older leader that still believes it leads.
        """
        leader = by or self.leader
        committer = leader.committer
        work: dict[TransactionAttempt, DataFrame] = {}
        for txid, rows in batches.items():
            attempt = TransactionAttempt(txid, self._attempts[txid])
            work[attempt] = committer.partials(self.target.batch(self.spark, rows))
            self._attempts[txid] += 1
        named = ", ".join(map(str, work))
        how = (" with one call" if together else "") + (f" by epoch {by.epoch}" if by else "")
        self._step(f"{named} staged{how}")
        if together and isinstance(committer, StagesTogether):
            group = [(partials, attempt) for attempt, partials in work.items()]
            one = self._stagers.submit(committer.stage_together, group)
            staged = self._call(f"stage_together() of {named}", one.result)
        else:
            futures = [self._stagers.submit(committer.stage, p, a) for a, p in work.items()]
            staged = [self._call(f"stage() of {named}", future.result) for future in futures]
        staged_for = [str(part.attempt) for part in staged]
        is_right = staged_for == list(map(str, work))
        self._require(is_right, WORKS, f"stage() of {named} is for {staged_for}")
        self.look(HIDDEN)
        return [
            Turn(
                leader, {part.attempt.txid: list(rows)}, part, self._make_publication(part, leader)
            )
            for part, rows in zip(staged, batches.values(), strict=True)
        ]

    def idle(self) -> Turn:
        """Begin the turn of a next txid that has no rows for this table and is not staged."""
        attempt = TransactionAttempt(self.committed + 1, self._attempts[self.committed + 1])
        self._attempts[attempt.txid] += 1
        staged = Staged(attempt, ())
        self._step(f"{attempt} has nothing for this table")
        return Turn(
            self.leader, {attempt.txid: []}, staged, self._make_publication(staged, self.leader)
        )

    def prepare(self, turn: Turn) -> Turn:
        """Do the first half of a commit turn."""
        self._step(f"{turn} is prepared")
        turn.prepared = self._call(f"prepare() of {turn}", lambda: self._prepare(turn))
        self.look(HIDDEN)
        return turn

    def publish(self, turn: Turn) -> Published:
        """Do the second half: readers see the txids now, and a fresh object reports them."""
        if turn.prepared is None:
            self.prepare(turn)
        replayed = any(txid >= turn.publication.first_txid for txid, _ in self.applied)
        self._step(f"{turn} is published{', a replay' if replayed else ''}")
        published = self._call(f"publish() of {turn}", lambda: self._publish(turn))
        self._apply(turn)
        first_time = GROUPED if len(turn.batches) > 1 else SHOWN
        self.look(OF_A_REPLAY[self.semantics] if replayed else first_time)
        self._check_published(turn, published)
        return published

    def finish(self, turn: Turn) -> None:
        """Make the txids durable everywhere: their scratch files may be deleted."""
        self.committed = turn.staged.attempt.txid
        self._step(f"txid {self.committed} is committed")
        committer = turn.leader.committer
        for one in turn.staged.members or (turn.staged,):
            if isinstance(committer, CleansUp):
                self._run_beside(f"committed({one.attempt})", committer.committed, one.attempt)
        self.look(HARMLESS)

    def commit(self, batches: Batches) -> None:
        """Do all the steps of these txids, as one version."""
        turn = self.stage(batches)
        self.publish(turn)
        self.finish(turn)

    def discard(self, turn: Turn) -> None:
        """Discard dead attempts: their staged files may be deleted."""
        self._step(f"{turn} is discarded")
        for one in turn.staged.members or (turn.staged,):
            self._run_beside(f"discard({one.attempt})", turn.leader.committer.discard, one.attempt)
        self.look(HARMLESS)

    def settle(self) -> None:
        """Mark the newest txid as final: nothing follows for now."""
        committer, txid = self.leader.committer, self.committed
        if not isinstance(committer, SettlesTxids):
            return
        self._step(f"txid {txid} is settled")
        self._call(f"settle({txid})", self._turns.submit(committer.settle, txid).result)
        self.look(HARMLESS)
        self._check_remembered()

    # --- calls that must fail ----------------------------------------------------------------

    def wake_up(self, turn: Turn) -> None:
        """Let an older leader go on with its turn: FencedError, and nothing may change."""
        self._step(f"epoch {turn.leader.epoch} wakes up and goes on with {turn}")
        try:
            turn.prepared = turn.prepared or self._prepare(turn)
            self._publish(turn)
        except (FencedError, StagedFileError):
            pass  # the newer leader may have deleted the older one's staged files
        except Exception as error:
            raise self.broken(
                FENCED, f"{turn} raised {type(error).__name__} and not FencedError: {error}"
            ) from error
        else:
            raise self.broken(
                FENCED,
                f"epoch {turn.leader.epoch} published {turn}, though epoch {self.leader.epoch} "
                "has fenced the table",
            )
        self.look(FENCED)
        self._check_remembered(FENCED)

    def fence_late(self, leader: Leader) -> None:
        """Let an older leader fence: FencedError."""
        self._step(f"epoch {leader.epoch} wakes up and calls fence()")
        try:
            leader.committer.fence()
        except FencedError:
            return
        raise self.broken(
            FENCED, f"fence() of epoch {leader.epoch} was accepted after epoch {self.leader.epoch}"
        )

    def come_late(self, turn: Turn) -> None:
        """Let an attempt that was given up publish after its replay: nothing may change."""
        self._step(f"{turn} was given up, and wakes up")
        try:
            turn.prepared = turn.prepared or self._prepare(turn)
            self._publish(turn)
        except FailedException:
            pass
        except Exception as error:
            raise self.broken(
                NEWEST, f"{turn} raised {type(error).__name__} and no FailedException: {error}"
            ) from error
        self.look(NEWEST)
        self._check_remembered(NEWEST)

    def differ(self, turn: Turn) -> None:
        """Replay other rows of a transactional source: refused or skipped, never applied."""
        self._step(f"{turn} is published with other rows than before")
        try:
            turn.prepared = self._prepare(turn)
            self._publish(turn)
        except TxnError as error:
            self._step(f"it is refused with {type(error).__name__}")
        self.look(SKIPPED)

    # --- checks ------------------------------------------------------------------------------

    def look(self, promise: Promise) -> None:
        """Check that a reader sees the model's rows. Skipped before the columns are known."""
        if not self._there:
            return
        rows = self._call(
            "read()", lambda: self.target.read(self.spark, self.leader.committer), promise
        )
        seen = Counter(tuple(row) for row in rows)
        expected = Counter(tuple(row) for row in self.target.expected(self.applied))
        if seen != expected:
            differences = ("miss", expected - seen), ("see, and must not", seen - expected)
            lines = [f"readers {verb}: {_listed(more)}" for verb, more in differences if more]
            raise self.broken(promise, "\n  ".join(lines))

    def check_leftovers(self) -> None:
        """Check that no file is left that was staged and not published."""
        paths = self.target.leftovers(self.leader.committer)
        if paths is not None:
            self._require(not paths, CLEANED, f"still there: {sorted(set(paths))}")

    def _check_remembered(self, promise: Promise = REMEMBERED) -> None:
        committer = self.leader.committer
        last = self._call("last_publication()", committer.last_publication)
        publication = None if last is None else last[1]
        self._require(
            publication == self._held,
            promise,
            f"last_publication() should be {_named(self._held)}, and is {_named(publication)}",
        )

    def _check_own_log(self) -> None:
        unopened = self.target.make_committer(self.folder)
        if not isinstance(unopened, KeepsOwnLog):
            return
        newest = self._call("publications()", lambda: next(iter(unopened.publications()), None))
        publication, epoch = newest.publication if newest else None, unopened.newest_epoch()
        self._require(
            (publication, epoch) == (self._held, self.leader.epoch),
            LISTED,
            f"the newest should be {_named(self._held)} and epoch {self.leader.epoch}, and are "
            f"{_named(publication)} and epoch {epoch}",
        )

    def _check_published(self, turn: Turn, published: Published) -> None:
        if not published.skipped:
            self._held = turn.publication
            prepared = published.prepared or turn.prepared
            adds = {(f.path, f.size, f.rows) for f in (prepared.adds if prepared else ())}
            files = {(f.path, f.size, f.rows) for f in published.files}
            self._require(
                adds == files,
                CLOSED,
                f"prepare() of {turn} was to add {sorted(adds)}, and publish() returned "
                f"{sorted(files)}",
            )
        self._check_remembered()
        last = self.leader.committer.last_publication()
        version = -1 if last is None else last[0]
        self._require(
            version == published.version,
            REMEMBERED,
            f"publish() of {turn} returned version {published.version}, and last_publication() "
            f"says {version}",
        )

    def broken(self, promise: Promise, what: str) -> ContractError:
        """The error for a broken promise."""
        name = type(self.leader.committer).__name__
        has = ", ".join(capabilities(self.leader.committer)) or "none"
        story = "\n  ".join(self.story)
        return ContractError(
            f"{name} ({self.semantics.value}) breaks a promise: {promise.says}.\n"
            f"At this step: {self.story[-1] if self.story else 'the first'}.\n"
            f"  {what}\n"
            f"Look at {promise.look_at}.\n"
            f"Its capabilities: {has}.\n"
            f"What happened:\n  {story}"
        )

    # --- helpers -----------------------------------------------------------------------------

    def _make_publication(self, staged: Staged, leader: Leader) -> Publication:
        """Make the engine's publication of these txids for this table."""
        members = staged.members or (staged,)
        last = staged.attempt
        return Publication(
            topology=TOPOLOGY,
            epoch=leader.epoch,
            first_txid=members[0].attempt.txid,
            last_txid=last.txid,
            attempt_id=last.attempt_id,
            spouts={"s": {"upto": last.txid, "share": 0.1}},
            read={"s": {"upto": last.txid}},
            rows=staged.rows,
            digest=staged.digest,
            members=tuple(
                Member(
                    txid=one.attempt.txid,
                    attempt_id=one.attempt.attempt_id,
                    rows=one.rows,
                    digest=one.digest,
                )
                for one in staged.members
            ),
        )

    def _apply(self, turn: Turn) -> None:
        """Update the model: the rows that the table must hold after this publication."""
        new = list(turn.batches.items())
        if self.semantics is Semantics.TRANSACTIONAL:
            held = {txid for txid, _ in self.applied}
            new = [(txid, rows) for txid, rows in new if txid not in held]
        if self.semantics is Semantics.OPAQUE:
            first = turn.publication.first_txid
            self.applied = [(txid, rows) for txid, rows in self.applied if txid < first]
        self.applied += new

    def _prepare(self, turn: Turn) -> Prepared:
        committer, staged, own = turn.leader.committer, turn.staged, turn.publication
        return self._turns.submit(committer.prepare, staged, own).result()

    def _publish(self, turn: Turn) -> Published:
        committer, prepared, own = turn.leader.committer, turn.prepared, turn.publication
        if prepared is None:
            raise ValueError("publish comes after prepare")
        return self._turns.submit(committer.publish, prepared, own).result()

    def _run_beside(
        self,
        name: str,
        call: Callable[[TransactionAttempt], None],
        attempt: TransactionAttempt,
    ) -> None:
        self._call(name, self._others.submit(call, attempt).result, HARMLESS)

    def _call(self, name: str, call: Callable[[], T], promise: Promise = WORKS) -> T:
        try:
            return call()
        except Exception as error:
            raise self.broken(promise, f"{name} raised {type(error).__name__}: {error}") from error

    def _require(self, holds: bool, promise: Promise, what: str) -> None:
        if not holds:
            raise self.broken(promise, what)

    def _step(self, what: str) -> None:
        self.story.append(what)


def _listed(rows: Counter[Row]) -> str:
    return first_items(sorted(map(repr, rows.elements())), 10)


def _named(publication: Publication | None) -> str:
    if publication is None:
        return "None"
    attempts = ", ".join(f"{member.txid}:{member.attempt_id}" for member in publication.txids)
    return f"that of {attempts} by epoch {publication.epoch} ({publication.model_dump_json()})"
