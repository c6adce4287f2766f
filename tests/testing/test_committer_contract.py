"""Our own tables keep the contract of committers, and the kit catches those that do not."""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from txn.errors import CommitConflictError, FencedError, StagedFileError
from txn.interfaces import (
    PUBLICATION_KEY,
    Committer,
    Prepared,
    Publication,
    Published,
    Semantics,
    Staged,
    StagedFile,
)
from txn.testing import CommitterContract, ContractError, RecordingCommitter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = Sequence[tuple[Any, ...]]


class DeltaContract(CommitterContract):
    """A table of ours, read by delta-rs: no Spark job."""

    semantics = "opaque"
    seeds = ()

    def test_a_replay_of_what_was_published(self, spark: SparkSession, tmp_path: Path) -> None:
        """A replay is taken back first, skipped without a version, or applied again, by semantics.

        Trident rows 54, 55, 56, 57 and 62.
        """
        super().test_a_replay_of_what_was_published(spark, tmp_path)
        commits = sorted((tmp_path / "table" / "_delta_log").glob("*.json"))
        infos = [json.loads(commit.read_text("utf-8").splitlines()[0]) for commit in commits]
        published = sum(PUBLICATION_KEY in info.get("commitInfo", {}) for info in infos)
        assert (
            published == {"opaque": 6, "transactional": 3, "non_transactional": 5}[self.semantics]
        )

    def stored(self, committer: Committer) -> list[dict[str, Any]]:
        """Every column of every row."""
        found: list[dict[str, Any]] = DeltaTable(committer.name).to_pyarrow_table().to_pylist()
        return found

    def leftovers(self, committer: Committer) -> Sequence[str]:
        """Parquet files that no version has ever named."""
        table = Path(committer.name)
        table_log = DeltaTable(committer.name)
        named: set[str] = set()
        for version in range(table_log.version() + 1):
            table_log.load_as_version(version)
            named |= {Path(uri).name for uri in table_log.file_uris()}
        files = [*table.glob("data/**/*.parquet"), *table.glob("_txn/**/*.parquet")]
        return [str(file.relative_to(table)) for file in files if file.name not in named]


class TestAppendTable(DeltaContract):
    """Rows with their txid."""

    def make_committer(self, folder: Path) -> Committer:
        return AppendTable(folder / "table", self.semantics)

    def read(self, spark: SparkSession, committer: Committer) -> Rows:
        return [(row["k"], row["v"], row["txid"]) for row in self.stored(committer)]

    def expected(self, applied: Sequence[tuple[int, Rows]]) -> Rows:
        return [(*row, txid) for txid, rows in applied for row in rows]


class TestTransactionalAppendTable(TestAppendTable):
    """Skips replays."""

    semantics = "transactional"


class TestNonTransactionalAppendTable(TestAppendTable):
    """Appends replays."""

    semantics = "non_transactional"


class TestUpsertTable(DeltaContract):
    """One row per key."""

    layout = "upsert"
    seeds = (1,)

    def make_committer(self, folder: Path) -> Committer:
        state = StateTable(folder / "table", self.semantics, self.layout, buckets=2)
        return state.bind(["k"], {"n": Count(), "s": Sum("v")})

    def read(self, spark: SparkSession, committer: Committer) -> Rows:
        return [(row["k"], row["n"], row["s"]) for row in self.stored(committer)]

    def expected(self, applied: Sequence[tuple[int, Rows]]) -> Rows:
        found: dict[str, tuple[int, int]] = {}
        for _, rows in applied:
            for key, value in rows:
                n, s = found.get(key, (0, 0))
                found[key] = n + 1, s + value
        return [(key, n, s) for key, (n, s) in found.items()]


class TestTransactionalUpsertTable(TestUpsertTable):
    """Skips replays."""

    semantics = "transactional"


class TestNonTransactionalUpsertTable(TestUpsertTable):
    """Applies replays again."""

    semantics = "non_transactional"


class TestLogTable(TestUpsertTable):
    """Partial aggregates per key and txid, added up here without Spark."""

    layout = "log"
    seeds = ()

    def read(self, spark: SparkSession, committer: Committer) -> Rows:
        found: dict[str, tuple[int, int]] = {}
        for row in self.stored(committer):
            n, s = found.get(row["k"], (0, 0))
            found[row["k"]] = n + row["n"], s + row["s"]
        return [(key, n, s) for key, (n, s) in found.items()]


class TestTransactionalLogTable(TestLogTable):
    """Skips replays."""

    semantics = "transactional"


class TestNonTransactionalLogTable(TestLogTable):
    """Adds replays again."""

    semantics = "non_transactional"


class TestRecordingCommitter(CommitterContract):
    """The double of the testing kit, read without Spark."""

    semantics = "opaque"

    def make_committer(self, folder: Path) -> Committer:
        return RecordingCommitter(folder / "table", self.semantics)

    def read(self, spark: SparkSession, committer: Committer) -> Rows:
        published = cast("RecordingCommitter", committer).published()
        files = [path for paths in published.values() for path in paths]
        return [
            tuple(row.values()) for file in files for row in parquet.read_table(file).to_pylist()
        ]

    def leftovers(self, committer: Committer) -> Sequence[str]:
        folder, log = Path(committer.name), Path(committer.name) / "log.jsonl"
        lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
        named = {file["path"] for line in lines for file in line.get("files", ())}
        files = [str(file.relative_to(folder)) for file in folder.glob("*/*/*.parquet")]
        return sorted(set(files) - named)


class TestTransactionalRecordingCommitter(TestRecordingCommitter):
    """Skips replays."""

    semantics = "transactional"


class TestNonTransactionalRecordingCommitter(TestRecordingCommitter):
    """Appends replays."""

    semantics = "non_transactional"


# --- a committer in a few lines, and those that break one promise each -----------------------


@dataclass
class Storage:
    """What outlives a process."""

    rows: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)
    staged: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    log: list[Publication] = field(default_factory=list)
    epoch: int = 0


class Honest(Committer):
    """Keeps every promise, in memory."""

    semantics = Semantics.OPAQUE
    sweeps = True

    def __init__(self, storage: Storage) -> None:
        self.name = "toy"
        self.storage = storage

    def required_columns(self):
        return ()

    def partials(self, batch, count_as=None):
        return batch

    def open(self, spark, context, schema):
        self.epoch = context.epoch

    def fence(self):
        self.require_leader(self.epoch)
        self.storage.epoch = self.epoch
        if self.sweeps:
            self.storage.staged.clear()

    def last_publication(self):
        log = self.storage.log
        return (len(log), log[-1]) if log else None

    def stage(self, partials, attempt):
        rows = [tuple(row) for row in partials.collect()]
        path = f"{attempt}-{self.epoch}"
        self.storage.staged[path] = rows
        return Staged(attempt, (StagedFile(path, len(rows), len(rows)),) if rows else ())

    def prepare(self, staged, publication):
        return Prepared(staged, self.new_files(staged, publication))

    def new_files(self, staged, publication):
        if self.semantics is not Semantics.TRANSACTIONAL:
            return staged.files
        members = staged.members or (staged,)
        held = {member.txid for one in self.storage.log for member in one.txids}
        return tuple(f for one in members if one.attempt.txid not in held for f in one.files)

    def publish(self, prepared, publication):
        self.require_leader(publication.epoch)
        self.require_newer(publication)
        self.take_back(prepared, publication)
        for file in prepared.adds:
            txid = int(file.path.partition(":")[0])
            if file.path not in self.storage.staged:
                raise StagedFileError(file.path)
            self.storage.rows += [(txid, row) for row in self.storage.staged.pop(file.path)]
        self.storage.log.append(publication)
        return Published(len(self.storage.log), prepared.adds)

    def take_back(self, prepared, publication):
        if self.semantics is Semantics.OPAQUE:
            first = publication.first_txid
            self.storage.rows[:] = [(t, row) for t, row in self.storage.rows if t < first]

    def require_leader(self, epoch):
        if self.storage.epoch > epoch:
            raise FencedError("there is a newer epoch")

    def require_newer(self, publication):
        last = self.storage.log[-1] if self.storage.log else None
        if last and last.epoch == publication.epoch:
            held = {member.txid: member.attempt_id for member in last.txids}
            if any(held.get(new.txid, -1) >= new.attempt_id for new in publication.txids):
                raise CommitConflictError("a newer attempt is there")

    def discard(self, attempt):
        for path in [p for p in self.storage.staged if p.startswith(f"{attempt}-")]:
            del self.storage.staged[path]

    def committed(self, attempt):
        self.discard(attempt)


class ShowsWhatIsStaged(Honest):
    """Writes where readers look."""

    def stage(self, partials, attempt):
        staged = super().stage(partials, attempt)
        self.storage.rows += [(attempt.txid, row) for f in staged.files for row in self.take(f)]
        return staged

    def take(self, file):
        return self.storage.staged[file.path]


class TakesBackTooEarly(Honest):
    """Deletes the dead attempt's rows one step before the replay's are there."""

    def prepare(self, staged, publication):
        prepared = super().prepare(staged, publication)
        self.take_back(prepared, publication)
        return prepared


class LosesDuplicates(Honest):
    """Keeps a row once, however often it came."""

    def stage(self, partials, attempt):
        return super().stage(partials.distinct(), attempt)


class KeepsKeysThatTheReplayLacks(Honest):
    """Storm's OpaqueMap: reverts only the keys that the replay brings."""

    def take_back(self, prepared, publication):
        keys = {row[0] for f in prepared.adds for row in self.storage.staged[f.path]}
        first = publication.first_txid
        self.storage.rows[:] = [
            (t, row) for t, row in self.storage.rows if t < first or row[0] not in keys
        ]


class PassesOverEmptyReplays(Honest):
    """Has nothing to do where there are no rows."""

    def take_back(self, prepared, publication):
        if prepared.adds:
            super().take_back(prepared, publication)


class CountsReplays(Honest):
    """Transactional, and applies what it has."""

    semantics = Semantics.TRANSACTIONAL

    def new_files(self, staged, publication):
        return staged.files


class SkipsByTheFirstTxid(Honest):
    """Skips a group as a whole when its first txid is there."""

    semantics = Semantics.TRANSACTIONAL

    def new_files(self, staged, publication):
        held = {member.txid for one in self.storage.log for member in one.txids}
        return () if publication.first_txid in held else staged.files


class SkipsWhatIsToBeRepeated(Honest):
    """Non-transactional by name, and skips replays."""

    semantics = Semantics.NON_TRANSACTIONAL

    def new_files(self, staged, publication):
        held = {member.txid for one in self.storage.log for member in one.txids}
        return () if publication.last_txid in held else staged.files


class RemembersInTheObject(Honest):
    """A new process does not know what the one before has published."""

    last = None

    def publish(self, prepared, publication):
        published = super().publish(prepared, publication)
        self.last = published.version, publication
        return published

    def last_publication(self):
        return self.last


class PassesOverEmptyTxids(Honest):
    """Publishes nothing where there are no rows: recovery takes the txid for a missing one."""

    def publish(self, prepared, publication):
        published = super().publish(prepared, publication)
        if not prepared.adds:
            self.storage.log.pop()
        return published


class LooksAtNoEpoch(Honest):
    """A leader that was replaced goes on."""

    def require_leader(self, epoch):
        pass


class LooksAtTheEpochTooEarly(Honest):
    """Asks who leads in prepare, when a newer leader may come before publish."""

    sweeps = False

    def prepare(self, staged, publication):
        self.require_leader(publication.epoch)
        return super().prepare(staged, publication)

    def publish(self, prepared, publication):
        newest, self.storage.epoch = self.storage.epoch, 0
        published = super().publish(prepared, publication)
        self.storage.epoch = newest
        return published


class FencesBackwards(Honest):
    """Lets an older leader fence."""

    def fence(self):
        self.storage.epoch = max(self.storage.epoch, self.epoch)
        self.storage.staged.clear()


class LetsAttemptsComeLate(Honest):
    """Replaces an attempt by an older one."""

    def require_newer(self, publication):
        pass


class LeavesScratch(Honest):
    """Never deletes what a dead attempt staged."""

    def discard(self, attempt):
        pass


class LeavesScratchOfTheDead(Honest):
    """A new leader does not clean up after the one before."""

    sweeps = False


class DiscardsWhatIsPublished(Honest):
    """Deletes the rows of a txid when one attempt of it died."""

    def discard(self, attempt):
        self.storage.rows[:] = [(t, row) for t, row in self.storage.rows if t != attempt.txid]


class PublishesTheLastOfAGroup(Honest):
    """Knows nothing of groups."""

    def new_files(self, staged, publication):
        return (staged.members or (staged,))[-1].files


class NamesNoFiles(Honest):
    """Does not say what it has published."""

    def publish(self, prepared, publication):
        return replace(super().publish(prepared, publication), files=())


class WorksOnOneThread(Honest):
    """Has a connection that only its own thread may use."""

    def open(self, spark, context, schema):
        super().open(spark, context, schema)
        self.thread = threading.get_ident()

    def stage(self, partials, attempt):
        if threading.get_ident() != self.thread:
            raise RuntimeError("objects created in a thread can only be used in that same thread")
        return super().stage(partials, attempt)


class NeedsColumnsAtOnce(Honest):
    """Cannot wait for the columns."""

    def open(self, spark, context, schema):
        super().open(spark, context, schema)
        self.columns = schema.fieldNames()


class ToyContract(CommitterContract):
    """The kit, pointed at a committer in memory."""

    committer: type[Honest]

    def make_committer(self, folder: Path) -> Committer:
        return self.committer(self.__dict__.setdefault("storage", Storage()))

    def read(self, spark: SparkSession, committer: Committer) -> Rows:
        return [row for _, row in cast("Honest", committer).storage.rows]

    def leftovers(self, committer: Committer) -> Sequence[str] | None:
        if self.committer is LooksAtTheEpochTooEarly:
            return None
        return list(cast("Honest", committer).storage.staged)


BROKEN: list[tuple[type[Honest], str, str]] = [
    (ShowsWhatIsStaged, "seen by nobody before", "1:0 staged"),
    (TakesBackTooEarly, "seen by nobody before", "3:1 is prepared"),
    (LosesDuplicates, "each of its rows once", "1:0 is published"),
    (KeepsKeysThatTheReplayLacks, "takes back all that it holds", "3:1 is published, a replay"),
    (PassesOverEmptyReplays, "takes back all that it holds", "1:1 is published, a replay"),
    (CountsReplays, "applies a txid once", "3:1 is published, a replay"),
    (SkipsByTheFirstTxid, "applies a txid once", "the group of 3:1 to 4:0 is published, a replay"),
    (SkipsWhatIsToBeRepeated, "applies a replay once more", "3:1 is published, a replay"),
    (RemembersInTheObject, "newest publication that the table holds", "starts with epoch 2"),
    (PassesOverEmptyTxids, "newest publication that the table holds", "is published"),
    (LooksAtNoEpoch, "an older one publishes nothing", "epoch 1 wakes up"),
    (LooksAtTheEpochTooEarly, "an older one publishes nothing", "epoch 1 wakes up"),
    (FencesBackwards, "an older one publishes nothing", r"epoch 1 wakes up and calls fence\(\)"),
    (LetsAttemptsComeLate, "not newer than the one", "1:1 was given up, and wakes up"),
    (LeavesScratch, "dead attempts staged is deleted", "txid 1 is committed"),
    (LeavesScratchOfTheDead, "dead attempts staged is deleted", "starts with epoch 2"),
    (DiscardsWhatIsPublished, "change no row", "txid 1 is committed"),
    (
        PublishesTheLastOfAGroup,
        "one version with the rows of all",
        "the group of 2:0 to 3:0 is published",
    ),
    (NamesNoFiles, r"returns the files of its Prepared\.adds", "1:0 is published"),
    (WorksOnOneThread, "works in the engine's order", "1:0 staged"),
    (NeedsColumnsAtOnce, "works in the engine's order", "starts with epoch 1"),
]


def check(contract: type[CommitterContract], spark: SparkSession, folder: Path) -> None:
    """Every test of the kit, as pytest runs them."""
    for name, test in vars(CommitterContract).items():
        if name.startswith("test_"):
            place = folder / name
            place.mkdir()
            given = {"spark": spark, "tmp_path": place}
            wanted = [each for each in inspect.signature(test).parameters if each in given]
            test(contract(), **{each: given[each] for each in wanted})


def contract_of(made: type[Honest]) -> type[CommitterContract]:
    """The kit, pointed at one of these committers."""

    class Contract(ToyContract):
        committer = made

    return Contract


@pytest.mark.parametrize("semantics", list(Semantics))
def test_an_honest_committer_passes(
    spark: SparkSession, tmp_path: Path, semantics: Semantics
) -> None:
    """The committer that the broken ones are made from keeps every promise."""

    class Made(Honest):
        pass

    Made.semantics = semantics
    check(contract_of(Made), spark, tmp_path)
    assert len(list(tmp_path.iterdir())) >= 10


@pytest.mark.parametrize(
    ("made", "promise", "step"), BROKEN, ids=[one[0].__name__ for one in BROKEN]
)
def test_a_broken_promise_is_named(
    spark: SparkSession, tmp_path: Path, made: type[Honest], promise: str, step: str
) -> None:
    """Who breaks one promise is caught, and told which one, at which step, and where to look."""
    with pytest.raises(ContractError) as told:
        check(contract_of(made), spark, tmp_path)
    first, at, _ = str(told.value).split("\n", 2)
    assert re.search(rf"^{made.__name__} \(\w+\) breaks a promise: .*{promise}", first), told.value
    assert re.search(rf"^At this step: .*{step}", at), told.value
    assert "\nLook at " in str(told.value)


def test_a_kit_that_is_not_filled_in_says_what_is_missing(tmp_path: Path) -> None:
    """A class without `make_committer`, one that makes something else, and one without a name."""

    class Other(CommitterContract):
        def make_committer(self, folder: Path) -> Any:
            return "table"

    with pytest.raises(ContractError, match=r"must define make_committer\(folder\)"):
        CommitterContract().test_it_says_what_it_is(tmp_path)
    with pytest.raises(ContractError, match="returned str, which is not a Committer"):
        Other().test_it_says_what_it_is(tmp_path)
    with pytest.raises(ContractError, match=r"Nameless\.name must say where"):
        contract_of(Nameless)().test_it_says_what_it_is(tmp_path)


class Nameless(Honest):
    """Does not say where it lies."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.name = ""
