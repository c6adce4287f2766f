"""Publication into a Delta log: one conditional append, fenced, checked and read back."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from pyarrow import parquet

from committers.publishing.checkpoints import Checkpoints
from committers.publishing.log import AppendFailedError, DeltaLog, StaleFilesError
from committers.publishing.spec import TableSpec
from committers.staging.parquet_stats import delta_stats
from committers.verifying import same_table
from txn.delta.commits import ACCEPTED, commit_path, fingerprint_of
from txn.delta.log import TableLog
from txn.errors import (
    CommitConflictError,
    FencedError,
    RecoveryRefusedError,
    StagedFileError,
    StorageRefusedError,
    StorageUnavailableError,
    TableChangedError,
    TableRefusedError,
)
from txn.interfaces import Publication, Semantics, StagedFile
from txn.storage.retrying import RetryLimits, retried
from txn.storage.storage import Storage

ROOT = Path(__file__).parents[3]
COLUMNS = (("id", "long"), ("txid", "long"))
SPEC = TableSpec("tests", "append", Semantics.OPAQUE, COLUMNS)


def open_log(path: Path, epoch: int = 1, spec: TableSpec = SPEC, **settings: Any) -> DeltaLog:
    """A leader's log: opened and fenced."""
    log = DeltaLog(Storage(str(path)), **settings)
    log.open(spec, epoch)
    log.fence(epoch)
    return log


def put(path: Path, txid: int, count: int = 3, name: str = "part-0") -> StagedFile:
    """A staged file of `count` rows."""
    relative = f"data/{txid}-0-{name.replace('-', '')}/{name}.parquet"
    target = path / relative
    target.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": list(range(count)), "txid": pa.array([txid] * count, pa.int64())})
    parquet.write_table(table, target)
    stats = delta_stats(parquet.read_metadata(target))
    return StagedFile(relative, target.stat().st_size, count, {}, stats)


def test_a_publication_is_one_version(warehouse: Path, make_publication: Any) -> None:
    """The append is the next version, and what is read back is what was staged."""
    log = open_log(warehouse)
    before = log.version
    files = [put(warehouse, 1, 3, "a"), put(warehouse, 1, 4, "b")]
    published = log.publish(files, [], make_publication(1, rows=7), before)
    assert (published.version, published.files) == (before + 1, tuple(files))
    assert DeltaTable(str(warehouse)).to_pyarrow_table().num_rows == 7


def test_the_log_carries_everything_for_recovery(warehouse: Path, make_publication: Any) -> None:
    """A log that knows nothing but the path finds version and publication again."""
    log = open_log(warehouse)
    own = make_publication(1, attempt=3, rows=3)
    published = log.publish([put(warehouse, 1)], [], own, log.version)
    again = DeltaLog(Storage(str(warehouse)))
    assert again.attach("tests")
    assert again.last_publication() == (published.version, own)
    table = DeltaTable(str(warehouse))
    assert table.transaction_version("txn/tests") == 1
    assert table.transaction_version("txn/tests/epoch") == 1


def test_what_landed_stands_although_storage_goes_away_behind_it(
    warehouse: Path, make_publication: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version is published, the attempt has not failed, and the next one finds its place."""
    log = open_log(warehouse)
    read = Storage.read

    def away(storage: Storage, path: str) -> bytes | None:
        if path == commit_path(1):  # read back: from then on nothing answers
            patch.setattr(Storage, "read", gone)
            patch.setattr(Storage, "read_many", gone)
        return read(storage, path)

    def gone(*_: Any) -> NoReturn:
        raise StorageUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "read", away)
        first = log.publish([put(warehouse, 1)], [], make_publication(1, rows=3), log.version)
    second = log.publish([put(warehouse, 2)], [], make_publication(2, rows=3), first.version)
    assert second.version == first.version + 1
    assert DeltaTable(str(warehouse)).to_pyarrow_table().num_rows == 6


def test_a_refused_append_is_told_at_once(
    warehouse: Path, make_publication: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A permission that is missing fails no attempt again and again: it ends the run."""
    log, sent = open_log(warehouse), []

    def refused(storage: Storage, path: str, data: bytes) -> NoReturn:
        sent.append(path)
        raise DeltaError("Generic S3 error: 403 Forbidden: AccessDenied")

    monkeypatch.setattr(Storage, "put_if_absent", refused)
    with pytest.raises(StorageRefusedError, match="refuses to append version 1 to table"):
        log.publish([put(warehouse, 1)], [], make_publication(1), log.version)
    assert len(sent) == 1


def test_publications_lists_the_newest_first(warehouse: Path, make_publication: Any) -> None:
    """History needs no open table, and leaves out fences."""
    log = open_log(warehouse)
    for txid in (1, 2, 3):
        log.publish([], [], make_publication(txid), log.version)
    open_log(warehouse, epoch=2)
    found = list(TableLog(Storage(str(warehouse))).publications())
    assert [one.publication.last_txid for one in found] == [3, 2, 1]
    assert all(one.timestamp_ms > 1_600_000_000_000 for one in found)


def test_the_first_version_is_fenced_by_its_maker(warehouse: Path) -> None:
    """A new table carries its maker's epoch from version 0 on."""
    log = open_log(warehouse, epoch=5)
    assert log.version == 0
    with pytest.raises(FencedError, match="epoch 5"):
        open_log(warehouse, epoch=4)


def test_a_table_that_cannot_be_made_for_want_of_room_is_told(warehouse: Path) -> None:
    """A full disk at the first start is told in one line, and the table is made afterwards."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(
            AppendFailedError, match="not be created: [^\x1b\n]*too large"
        ) as raised:
            open_log(warehouse)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(warehouse) in str(raised.value)
    assert open_log(warehouse).version == 0


# --- races -----------------------------------------------------------------------------------


def test_the_loser_of_a_race_with_a_newer_leader_is_fenced(
    warehouse: Path, make_publication: Any
) -> None:
    """A paused leader that wakes up publishes nothing, and learns who has taken over."""
    old = open_log(warehouse, epoch=1)
    read_version = old.version
    open_log(warehouse, epoch=2)
    with pytest.raises(FencedError, match="taken over by epoch 2 .* has epoch 1"):
        old.publish([put(warehouse, 1)], [], make_publication(1, epoch=1), read_version)
    assert DeltaTable(str(warehouse)).to_pyarrow_table().num_rows == 0


def test_an_older_epoch_is_refused_after_it_was_seen(
    warehouse: Path, make_publication: Any
) -> None:
    """Publications and fences of an epoch older than the log's never reach the storage."""
    log = open_log(warehouse, epoch=7)
    with pytest.raises(FencedError, match="epoch 7"):
        log.publish([], [], make_publication(1, epoch=6), log.version)
    with pytest.raises(FencedError, match="epoch 7"):
        log.fence(6)


def test_the_new_leader_fences_over_a_late_publication(
    warehouse: Path, make_publication: Any
) -> None:
    """A fence that loses against the old leader's publication is tried again behind it."""
    old, new = open_log(warehouse, epoch=1), DeltaLog(Storage(str(warehouse)))
    new.attach("tests")
    late = make_publication(1)
    version = old.publish([put(warehouse, 1)], [], late, old.version).version
    new.fence(2)
    assert new.last_publication() == (version, late)
    assert new.version == version + 1


def test_two_threads_publish_the_same_txid(warehouse: Path, make_publication: Any) -> None:
    """Of two publishers of one epoch exactly one wins; the other's attempt fails."""
    logs = [open_log(warehouse), open_log(warehouse)]
    files = [put(warehouse, 1, 3, "a"), put(warehouse, 1, 3, "b")]
    gate, won, lost = threading.Barrier(2), [], []

    def publish(index: int) -> None:
        gate.wait()
        try:
            own = make_publication(1, attempt=index)
            won.append(logs[index].publish([files[index]], [], own, 0))
        except CommitConflictError as error:
            lost.append(str(error))

    threads = [threading.Thread(target=publish, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 1)
    assert "published meanwhile by epoch 1" in lost[0]
    assert list(DeltaTable(str(warehouse)).to_pyarrow_table()["id"].to_pylist()) == [0, 1, 2]


RACER = """
import sys
from pathlib import Path
from committers.publishing.log import DeltaLog
from txn.storage.storage import Storage
from txn.errors import TxnError
from txn.interfaces import (Publication)
path, epoch = sys.argv[1], int(sys.argv[2])
log = DeltaLog(Storage(path))
log.attach("tests")
print("ready", flush=True)
sys.stdin.readline()
wins = 0
for txid in range(1, 41):
    own = Publication(topology="tests", epoch=epoch, first_txid=txid, last_txid=txid, attempt_id=0)
    try:
        log.publish([], [], own, log.version)
        wins += 1
    except TxnError as error:
        print(type(error).__name__, wins)
        break
else:
    print("all", wins)
"""


def test_two_processes_race_with_different_epochs(warehouse: Path) -> None:
    """While one process publishes, another fences: every version has one writer, then silence."""
    open_log(warehouse)
    command = [sys.executable, "-c", RACER, str(warehouse), "1"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as racer:
        assert racer.stdin is not None
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
        racer.stdin.write("go\n")
        racer.stdin.flush()
        log = DeltaLog(Storage(str(warehouse)))
        log.attach("tests")
        while log.last_publication() is None:
            log.refresh()
        log.fence(2)
        outcome, wins = racer.stdout.read().split()
    said = TableLog(Storage(str(warehouse))).publications()
    held = [one.publication.last_txid for one in said]
    assert held == list(range(int(wins), 0, -1))
    assert outcome == ("all" if int(wins) == 40 else "FencedError")


# --- other writers ---------------------------------------------------------------------------


def test_rows_of_a_stranger_stop_the_publisher(warehouse: Path, make_publication: Any) -> None:
    """Rows of others are named by version, operation and writer; a RESTORE takes them back."""
    log = open_log(warehouse)
    read_version = log.version
    write_deltalake(str(warehouse), pa.table({"id": [9], "txid": [None]}), mode="append")
    for _ in range(2):
        with pytest.raises(TableChangedError, match=r"version 1 \(WRITE by .*delta-rs.* RESTORE"):
            log.publish([put(warehouse, 1)], [], make_publication(1), read_version)
    with pytest.raises(TableChangedError, match="TO VERSION AS OF 0"):
        open_log(warehouse, epoch=2)
    DeltaTable(str(warehouse)).restore(0)
    log = open_log(warehouse, epoch=2)
    log.publish([put(warehouse, 1)], [], make_publication(1, attempt=1, epoch=2), log.version)
    assert DeltaTable(str(warehouse)).to_pyarrow_table().num_rows == 3


def test_rows_that_were_marked_as_deleted_are_missed(
    warehouse: Path, make_publication: Any
) -> None:
    """A DELETE takes a file out and puts it in again with marks, and whoever drops the feature, as
    our refusal says, writes the rest into another file: rows went, and a RESTORE brings them back.
    """
    log = open_log(warehouse)
    staged = put(warehouse, 1)
    log.publish([staged], [], make_publication(1, rows=3), log.version)
    version = log.version
    vector = {"storageType": "u", "pathOrInlineDv": "ab", "sizeInBytes": 34, "cardinality": 1}
    file = {"path": staged.path, "size": staged.size, "partitionValues": {}, "dataChange": True}
    gone = {"path": staged.path, "dataChange": True}
    marked = {**file, "modificationTime": 0, "deletionVector": vector}
    other = {**file, "path": "rest.parquet", "modificationTime": 0, "dataChange": False}

    def commit(operation: str, *actions: dict[str, Any]) -> None:
        nonlocal version
        version += 1
        lines = [{"commitInfo": {"operation": operation}}, *actions]
        (warehouse / commit_path(version)).write_text("\n".join(map(json.dumps, lines)))

    commit("DELETE", {"remove": gone}, {"add": marked})
    with pytest.raises(TableChangedError, match=r"DELETE by .* replaced 1 files with 1 others"):
        log.refresh()
    purged = {**gone, "dataChange": False, "deletionVector": vector}
    commit("REORG", {"remove": purged}, {"add": other})
    with pytest.raises(TableChangedError, match="DELETE"):
        log.refresh()
    back = {**file, "modificationTime": 0}
    commit("RESTORE", {"remove": {**other, "dataChange": True}}, {"add": back})
    assert log.refresh()[-1].version == version


def test_a_log_that_cannot_be_loaded_is_refused_by_name(
    warehouse: Path, make_publication: Any
) -> None:
    """A hint at a checkpoint that is not there stops a run and a start, and deleting it helps; a
    damaged commit file stops a start.
    """
    log = open_log(warehouse)
    hint = warehouse / "_delta_log" / "_last_checkpoint"
    hint.write_text('{"version": 5, "size": 3}')
    for refused in (log.refresh, lambda: open_log(warehouse, epoch=2)):
        with pytest.raises(RecoveryRefusedError, match="cannot be loaded: .*_last_checkpoint") as e:
            refused()
        assert e.value.number == "TXN-315"
    hint.unlink()
    log.publish([put(warehouse, 1)], [], make_publication(1, rows=3), log.version)
    (warehouse / commit_path(1)).write_text("{")
    with pytest.raises(RecoveryRefusedError, match="A file of its log is damaged"):
        open_log(warehouse, epoch=2)


@pytest.mark.parametrize("accepted", ["0", "1"])
def test_rows_of_a_stranger_stand_when_a_user_says_so(
    warehouse: Path, make_publication: Any, accepted: str
) -> None:
    """The property names the last version that is accepted; an earlier one does not do."""
    open_log(warehouse)
    write_deltalake(str(warehouse), pa.table({"id": [9], "txid": [None]}), mode="append")
    DeltaTable(str(warehouse)).alter.set_table_properties(
        {ACCEPTED: accepted}, raise_if_not_exists=False
    )
    if accepted == "0":
        with pytest.raises(TableChangedError, match=f"'{ACCEPTED}' = '1'"):
            open_log(warehouse, epoch=2)
        return
    log = open_log(warehouse, epoch=2)
    log.publish([put(warehouse, 1)], [], make_publication(1, epoch=2), log.version)
    assert DeltaTable(str(warehouse)).to_pyarrow_table().num_rows == 4


def test_a_table_in_another_ones_place_is_noticed(
    warehouse: Path, tmp_path: Path, make_publication: Any
) -> None:
    """Deleted, made anew with as many versions or fewer: nothing is appended to it."""
    log = open_log(warehouse)
    log.publish([put(warehouse, 1)], [], make_publication(1), log.version)
    shutil.copytree(warehouse, tmp_path / "saved")
    shutil.rmtree(warehouse)
    file = put(warehouse, 2)
    with pytest.raises(
        TableChangedError, match="there is no table now, but this run knew version 1 of the"
    ):
        log.publish([file], [], make_publication(2), log.version)
    shutil.rmtree(warehouse)
    other = open_log(warehouse)
    file = put(warehouse, 2)
    with pytest.raises(TableChangedError, match="is at version 0"):
        log.publish([file], [], make_publication(2), log.version)
    other.publish([put(warehouse, 1)], [], make_publication(1), other.version)
    with pytest.raises(TableChangedError, match="version 1 in its log is a different commit"):
        log.publish([file], [], make_publication(2), log.version)
    assert DeltaTable(str(warehouse)).version() == 1
    shutil.rmtree(warehouse)
    shutil.copytree(tmp_path / "saved", warehouse)
    log.publish([put(warehouse, 2)], [], make_publication(2), log.version)
    assert DeltaTable(str(warehouse)).version() == 2


def test_a_listing_that_is_behind_is_asked_again(
    warehouse: Path, tmp_path: Path, make_publication: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is listed without its newest version is not taken for another table's.

    One that stays so is: the table was put back to an older state.
    """
    log = open_log(warehouse)
    log.publish([put(warehouse, 1)], [], make_publication(1), log.version)
    newest = warehouse / commit_path(1)
    hidden = Path(shutil.move(newest, tmp_path))
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds
        if now[0] > comes_back_at:
            shutil.move(hidden, newest)

    patient = RetryLimits(clock=lambda: now[0], sleep=wait)
    monkeypatch.setattr(same_table, "retried", lambda *asked: retried(*asked, patient))
    comes_back_at = 100.0
    with pytest.raises(TableChangedError, match="is at version 0"):
        log.publish([put(warehouse, 2)], [], make_publication(2), log.version)
    comes_back_at = now[0] + 1.0
    log.publish([put(warehouse, 2)], [], make_publication(2), log.version)
    assert log.version == 2
    assert DeltaTable(str(warehouse)).to_pyarrow_table().num_rows == 6


def test_harmless_commits_are_stepped_over(warehouse: Path, make_publication: Any) -> None:
    """A comment, a property or a compaction between read and append does not fail the batch."""
    log = open_log(warehouse)
    for txid in (1, 2):
        log.publish([put(warehouse, txid)], [], make_publication(txid), log.version)
    read_version = log.version
    table = DeltaTable(str(warehouse))
    table.alter.set_table_description("totals of the month")
    table.optimize.compact()
    published = log.publish([put(warehouse, 3)], [], make_publication(3), read_version)
    assert published.version == read_version + 3
    assert DeltaTable(str(warehouse)).to_pyarrow_table().num_rows == 9


def test_files_rewritten_meanwhile_are_noticed(warehouse: Path, make_publication: Any) -> None:
    """What was to be removed is gone from the log: the version must be prepared again."""
    log = open_log(warehouse)
    for txid in (1, 2):
        log.publish([put(warehouse, txid)], [], make_publication(txid), log.version)
    removes, read_version = list(log.files.values()), log.version
    DeltaTable(str(warehouse)).optimize.compact()
    with pytest.raises(StaleFilesError, match="was rewritten"):
        log.publish([], removes, make_publication(3), read_version)
    log.publish([], list(log.files.values()), make_publication(3), log.version)
    assert DeltaTable(str(warehouse)).to_pyarrow_table().num_rows == 0


def test_a_property_that_cannot_be_honoured_stops_the_publisher(
    warehouse: Path, make_publication: Any
) -> None:
    """A feature that is switched on while the topology runs is refused before the next append."""
    log = open_log(warehouse)
    read_version = log.version
    table = DeltaTable(str(warehouse))
    table.alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(
        TableRefusedError, match=r"append-only \(delta.appendOnly\).* changed in version 1 \(SET "
    ):
        log.publish([put(warehouse, 1)], [], make_publication(1), read_version)


# --- staged files ----------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["deleted", "truncated"])
def test_a_staged_file_is_checked_before_the_append(
    warehouse: Path, make_publication: Any, damage: str
) -> None:
    """A file that is gone or has another size fails the batch; the log stays as it was."""
    log = open_log(warehouse)
    files = [put(warehouse, 1, 3, "a"), put(warehouse, 1, 3, "b")]
    target = warehouse / files[1].path
    if damage == "deleted":
        target.unlink()
    else:
        target.write_bytes(target.read_bytes()[:-4])
    with pytest.raises(StagedFileError, match=files[1].path):
        log.publish(files, [], make_publication(1), log.version)
    assert DeltaTable(str(warehouse)).version() == 0


def test_an_append_whose_answer_was_lost_is_found_in_the_log(
    warehouse: Path, make_publication: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the library reports a failure after the commit landed, the log decides."""
    log = open_log(warehouse)
    write = Storage.put_if_absent

    def lossy(storage: Storage, path: str, data: bytes) -> NoReturn:
        write(storage, path, data)
        raise OSError("connection reset")

    monkeypatch.setattr(Storage, "put_if_absent", lossy)
    file = put(warehouse, 1)
    published = log.publish([file], [], make_publication(1), log.version)
    assert (published.version, published.files, log.version) == (1, (file,), 1)


def test_storage_that_keeps_something_else_is_refused(
    warehouse: Path, make_publication: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that lacks a line would double the rows that it was to replace: it is not ours."""
    log = open_log(warehouse)
    log.publish([put(warehouse, 1)], [], make_publication(1), log.version)
    (old,) = log.files_now()
    write = Storage.put_if_absent

    def lossy(storage: Storage, path: str, data: bytes) -> bool:
        kept = [line for line in data.splitlines(keepends=True) if b'"remove"' not in line]
        return write(storage, path, b"".join(kept))

    monkeypatch.setattr(Storage, "put_if_absent", lossy)
    with pytest.raises(TableChangedError, match="Version 2 .* was overwritten") as refused:
        log.publish([put(warehouse, 2)], [old], make_publication(2), log.version)
    assert refused.value.number == "TXN-316"


def test_a_commit_right_behind_ours_is_judged_by_the_next_publication(
    warehouse: Path, make_publication: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What landed has landed, whatever another writer does to the table a moment later."""
    log = open_log(warehouse)
    write = Storage.put_if_absent

    def followed(storage: Storage, path: str, data: bytes) -> bool:
        landed = write(storage, path, data)
        DeltaTable(str(warehouse)).alter.set_table_properties({"delta.appendOnly": "true"})
        return landed

    monkeypatch.setattr(Storage, "put_if_absent", followed)
    published = log.publish([put(warehouse, 1)], [], make_publication(1), log.version)
    monkeypatch.undo()
    assert (published.version, log.version) == (1, 1)
    with pytest.raises(TableRefusedError, match="append-only"):
        log.publish([put(warehouse, 2)], [], make_publication(2), log.version)
    assert DeltaTable(str(warehouse)).to_pyarrow_table().num_rows == 3


def test_what_another_thread_takes_in_is_not_passed_over(
    warehouse: Path, make_publication: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer leader's fence that another thread of ours sees first still stops a publication."""
    log = open_log(warehouse)
    write = Storage.put_if_absent
    threads: list[threading.Thread] = []

    def overtaken(storage: Storage, path: str, data: bytes) -> bool:
        if not threads:
            threads.append(threading.Thread(target=log.refresh))
            open_log(warehouse, epoch=2)
            threads[0].start()
            threads[0].join(0.5)
        return write(storage, path, data)

    monkeypatch.setattr(Storage, "put_if_absent", overtaken)
    with pytest.raises(FencedError):
        log.publish([put(warehouse, 1)], [], make_publication(1), log.version)
    threads[0].join()
    assert DeltaTable(str(warehouse)).to_pyarrow_table().num_rows == 0


def test_an_append_that_failed_for_good(
    warehouse: Path, make_publication: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage error without a commit fails the batch with the storage's own words."""
    log = open_log(warehouse)

    def broken(storage: Storage, path: str, data: bytes) -> NoReturn:
        raise OSError("no space left on device")

    monkeypatch.setattr(Storage, "put_if_absent", broken)
    with pytest.raises(AppendFailedError, match="no space left on device"):
        log.publish([put(warehouse, 1)], [], make_publication(1), log.version)
    monkeypatch.undo()
    again = log.publish([put(warehouse, 1)], [], make_publication(1, attempt=1), log.version)
    assert again.version == 1


def test_a_table_whose_creation_failed_or_lost_its_answer(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage error at the creation of a table fails the batch, unless the table is there."""
    create = DeltaTable.create

    def broken(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space left on device")

    def lossy(*args: Any, **kwargs: Any) -> None:
        create(*args, **kwargs)
        raise OSError("connection reset")

    monkeypatch.setattr(DeltaTable, "create", broken)
    with pytest.raises(AppendFailedError, match="no space left on device"):
        open_log(warehouse)
    monkeypatch.setattr(DeltaTable, "create", lossy)
    assert open_log(warehouse).version == 0


# --- checkpoints and cleaned logs ------------------------------------------------------------


def test_many_publications_with_checkpoints(warehouse: Path, make_publication: Any) -> None:
    """Checkpoints are made on the way, and a fresh process loads the same files from them."""
    log = open_log(warehouse)
    checkpoints_of = Checkpoints(Storage(str(warehouse)), log.verify)
    for txid in range(1, 61):
        log.publish([put(warehouse, txid, 1)], [], make_publication(txid), log.version)
        checkpoints_of.run(log.version, log.properties)
    checkpoints = list((warehouse / "_delta_log").glob("*.checkpoint.parquet"))
    again = DeltaLog(Storage(str(warehouse)))
    again.attach("tests")
    assert (len(checkpoints), again.files) == (2, log.files)
    assert sorted(f.txid_min or 0 for f in again.files.values()) == list(range(1, 61))


def clean(path: Path, before: int) -> None:
    """Delete the commit files below a version, as log retention does behind a checkpoint."""
    for file in (path / "_delta_log").glob("*.json"):
        if file.stem.isdigit() and int(file.stem) < before:
            file.unlink()


def test_a_table_that_cannot_be_taken_in_whole_is_not_taken_in(
    warehouse: Path, make_publication: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storage that goes away in the midst of a reload leaves the log as it was known before."""
    log = open_log(warehouse)
    log.publish([put(warehouse, 1)], [], make_publication(1), log.version)
    for _ in range(2):
        DeltaTable(str(warehouse)).alter.set_table_description("x")
    DeltaTable(str(warehouse)).create_checkpoint()
    (warehouse / commit_path(2)).unlink()

    def away(_: int) -> NoReturn:
        raise StorageUnavailableError("storage is away")

    with monkeypatch.context() as patch:
        patch.setattr(log._log, "backwards", away)
        with pytest.raises(StorageUnavailableError):
            log.refresh()
    with pytest.raises(CommitConflictError, match="Version 2 .* is not in its log any more"):
        log.refresh()
    assert (log.refresh(), log.version) == ([], 3)


def test_a_process_that_slept_while_the_log_was_cleaned_takes_no_free_place(
    warehouse: Path, make_publication: Any
) -> None:
    """Behind a checkpoint the next version's place may be free again: an append there is lost."""
    log = open_log(warehouse)
    log.publish([put(warehouse, 1)], [], make_publication(1), log.version)
    read_version = log.version
    for _ in range(2):
        DeltaTable(str(warehouse)).alter.set_table_description("x")
    DeltaTable(str(warehouse)).create_checkpoint()
    (warehouse / commit_path(2)).unlink()
    with pytest.raises(CommitConflictError, match="Version 2 .* is not in its log any more"):
        log.publish([put(warehouse, 2)], [], make_publication(2), read_version)
    assert not (warehouse / commit_path(2)).exists()
    landed = log.publish([put(warehouse, 2)], [], make_publication(2), log.version)
    assert landed.version == 4
    assert DeltaTable(str(warehouse)).to_pyarrow_table().num_rows == 6


def test_a_checkpoint_that_fails_is_told_and_tried_again(
    warehouse: Path,
    make_publication: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It costs no commit, its failure says how far the last one is back, and it is made later."""
    log = open_log(warehouse)
    care = Checkpoints(Storage(str(warehouse)), log.verify)

    def full(_: DeltaTable) -> NoReturn:
        raise DeltaError("no space left on device")

    def publish(txids: range) -> None:
        for txid in txids:
            log.publish([], [], make_publication(txid), log.version)
            care.run(log.version, log.properties)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_checkpoint", full)
        publish(range(1, 50))
    told = [message for message in caplog.messages if "checkpoint" in message]
    assert ["has 25 versions since" in told[0], "has 50 versions since" in told[1]] == [True, True]
    assert len(told) == 2
    assert "no space left on device" in told[0]
    publish(range(50, 75))
    made = [path.name[:20] for path in (warehouse / "_delta_log").glob("*.checkpoint.parquet")]
    assert made == [f"{74:020d}"]


@pytest.mark.parametrize("interval", ["10", "1", "0", "many", ""])
def test_checkpoints_come_as_the_table_says(
    warehouse: Path, make_publication: Any, interval: str
) -> None:
    """Its property is what every writer of Delta goes by; one that makes no sense is the usual."""
    log = open_log(warehouse)
    care = Checkpoints(Storage(str(warehouse)), log.verify)
    for txid in range(1, 26):
        log.publish([], [], make_publication(txid), log.version)
        care.run(log.version, {"delta.checkpointInterval": interval})
    made = sorted((warehouse / "_delta_log").glob("*.checkpoint.parquet"))
    expected = {"10": [9, 19], "1": [*range(1, 26)], "0": [*range(1, 26)]}.get(interval, [24])
    assert [int(path.name[:20]) for path in made] == expected


def test_a_version_of_others_that_was_overwritten_is_found(
    warehouse: Path, make_publication: Any
) -> None:
    """Our commit behind them names each of their versions, back to our own last one."""
    log = open_log(warehouse)
    for text in ("x", "y"):
        DeltaTable(str(warehouse)).alter.set_table_description(text)
    log.publish([put(warehouse, 1)], [], make_publication(1), log.version)
    newest = log.read_commit(3)
    kept = [(warehouse / commit_path(version)).read_bytes() for version in range(3)]
    assert newest.before == tuple(map(fingerprint_of, kept))
    for version in (1, 2):
        place = warehouse / commit_path(version)
        place.write_bytes(kept[0])
        with pytest.raises(TableChangedError, match=f"Version {version} .* was overwritten"):
            open_log(warehouse, epoch=2)
        place.write_bytes(kept[version])
    assert open_log(warehouse, epoch=2).version == 4


def test_the_newest_publication_cannot_be_given_up(warehouse: Path, make_publication: Any) -> None:
    """Whoever accepts that it was overwritten is refused at the next start; the error says so."""
    log = open_log(warehouse)
    log.publish([put(warehouse, 1)], [], make_publication(1), log.version)
    (warehouse / commit_path(log.version)).write_bytes((warehouse / commit_path(0)).read_bytes())
    with pytest.raises(TableChangedError, match=r"newest txid, only putting .*\(TXN-804\)"):
        log.publish([put(warehouse, 2)], [], make_publication(2), log.version)


def test_a_fence_carries_the_last_publication(warehouse: Path, make_publication: Any) -> None:
    """When the publication's own commit file was cleaned up, the fence still says what it was."""
    log = open_log(warehouse)
    own = make_publication(1)
    log.publish([put(warehouse, 1)], [], own, log.version)
    log = open_log(warehouse, epoch=2)
    DeltaTable(str(warehouse)).create_checkpoint()
    clean(warehouse, before=2)
    again = open_log(warehouse, epoch=3)
    assert again.last_publication() == (1, own)


def test_a_log_without_its_last_publication_still_tells_the_txid(
    warehouse: Path, make_publication: Any
) -> None:
    """Only a txid left, not what was read for it: never taken for an empty table, nor replaced."""
    log = open_log(warehouse)
    log.publish([put(warehouse, 1)], [], make_publication(1), log.version)
    DeltaTable(str(warehouse)).alter.set_table_description("x")
    DeltaTable(str(warehouse)).create_checkpoint()
    clean(warehouse, before=2)
    again = open_log(warehouse, epoch=2)
    last = again.last_publication()
    assert last is not None
    assert (last[1].last_txid, last[1].is_lost) == (1, True)
    third = open_log(warehouse, epoch=3)
    assert third.last_publication() == last
    with pytest.raises(RecoveryRefusedError, match="no longer in its log"):
        third.publish([], [], make_publication(1, epoch=3), third.version)
    landed = third.publish([put(warehouse, 2)], [], make_publication(2, epoch=3), third.version)
    assert third.last_publication() == (landed.version, make_publication(2, epoch=3))


def test_a_publication_of_an_unknown_format_is_refused(warehouse: Path) -> None:
    """A newer release's publication is never read as none."""
    log = open_log(warehouse)
    own = Publication(format=2, topology="tests", epoch=1, first_txid=1, last_txid=1, attempt_id=0)
    with pytest.raises(RecoveryRefusedError, match="Version 1 .* cannot read"):
        log.publish([], [], own, log.version)
    with pytest.raises(RecoveryRefusedError, match="Version 1 .* cannot read"):
        open_log(warehouse, epoch=2)


# --- refusals --------------------------------------------------------------------------------


def test_a_folder_with_other_files_is_refused(warehouse: Path) -> None:
    """A table is never made in a folder that somebody uses."""
    (warehouse / "notes.txt").write_text("mine", "utf-8")
    with pytest.raises(TableRefusedError, match=r"holds other files \('notes.txt'\)"):
        open_log(warehouse)


def test_a_table_that_nobody_made_is_refused(warehouse: Path) -> None:
    """A table is refused before anything runs if it belongs to somebody else, has different
    columns, or uses Delta features that txn does not support.
    """
    write_deltalake(str(warehouse), pa.table({"id": [1], "txid": [1]}))
    with pytest.raises(TableRefusedError, match="no topology has made"):
        open_log(warehouse)


COLUMNS_OF_OTHERS: dict[str, tuple[tuple[tuple[str, Any], ...], str]] = {
    "surplus": ((("txid", "long"),), "column 'id' of the table is not in the program"),
    "type": ((("id", "string"), ("txid", "long")), "'id' changes from long to string"),
}


@pytest.mark.parametrize(
    ("columns", "message"), COLUMNS_OF_OTHERS.values(), ids=COLUMNS_OF_OTHERS.keys()
)
def test_other_columns_are_refused(
    warehouse: Path, make_publication: Any, columns: tuple[tuple[str, Any], ...], message: str
) -> None:
    """The column that differs is named."""
    log = open_log(warehouse)
    log.publish([put(warehouse, 1)], [], make_publication(1), log.version)
    with pytest.raises(TableRefusedError, match=message):
        open_log(warehouse, 2, TableSpec("tests", "append", Semantics.OPAQUE, columns))


FEATURES = {
    "delta.enableDeletionVectors=true": "deletion",
    "delta.columnMapping.mode=name": "olumn",
    "delta.enableRowTracking=true": "row",
    "delta.enableInCommitTimestamps=true": "ommit",
    "delta.setTransactionRetentionDuration=interval 1 days": "setTransactionRetentionDuration",
    "delta.appendOnly=true": "append-only",
    "delta.enableTypeWidening=true": "typeWidening",
    "delta.checkpointPolicy=v2": "v2Checkpoint",
}


@pytest.mark.parametrize(("setting", "word"), FEATURES.items(), ids=FEATURES.keys())
def test_delta_features_that_cannot_be_honoured(
    driver: Any, warehouse: Path, setting: str, word: str
) -> None:
    """A feature that Spark has switched on is refused by name at the next start."""
    open_log(warehouse)
    key, value = setting.split("=", 1)
    driver.spark.sql(f"ALTER TABLE delta.`{warehouse}` SET TBLPROPERTIES ('{key}' = '{value}')")
    with pytest.raises(TableRefusedError, match=f"Delta feature .*{word}"):
        open_log(warehouse, epoch=2)


def test_constraints_are_refused(driver: Any, warehouse: Path) -> None:
    """Rows that a CHECK constraint would forbid could be published: so it is refused."""
    open_log(warehouse)
    driver.spark.sql(f"ALTER TABLE delta.`{warehouse}` ADD CONSTRAINT positive CHECK (id > 0)")
    with pytest.raises(TableRefusedError, match=r"check constraints \(delta.constraints.positive"):
        open_log(warehouse, epoch=2)


def test_change_data_feed_is_refused_for_upserts_only(warehouse: Path) -> None:
    """An append table's feed follows from its files; an upsert's would be wrong."""
    properties = {**SPEC.properties(), "delta.enableChangeDataFeed": "true"}
    for kind, folder in (("append", warehouse / "a"), ("upsert", warehouse / "u")):
        DeltaTable.create(
            str(folder),
            Schema.from_json(SPEC.schema_json()),
            configuration={**properties, "txn.kind": kind},
            raise_if_key_not_exists=False,
            commit_properties=CommitProperties(
                app_transactions=[Transaction("txn/tests/epoch", 1)]
            ),
        )
    open_log(warehouse / "a", epoch=2)
    upsert = TableSpec("tests", "upsert", Semantics.OPAQUE, COLUMNS)
    with pytest.raises(TableRefusedError, match="change data feed"):
        open_log(warehouse / "u", 2, upsert)


def test_spark_reads_the_history(driver: Any, warehouse: Path, make_publication: Any) -> None:
    """Our entries in commitInfo do not disturb Spark's DESCRIBE HISTORY."""
    log = open_log(warehouse)
    log.publish([put(warehouse, 1)], [], make_publication(1), log.version)
    history = driver.spark.sql(f"DESCRIBE HISTORY delta.`{warehouse}`").collect()
    assert [(row["version"], row["operation"]) for row in history] == [
        (1, "WRITE"),
        (0, "CREATE TABLE"),
    ]


def test_commit_info_is_json_with_one_token(warehouse: Path, make_publication: Any) -> None:
    """The commit carries the publication under `txn` and the given token beside it."""
    tokens = iter(["fence", "first"])
    log = DeltaLog(Storage(str(warehouse)), new_id=lambda: next(tokens))
    log.open(SPEC, 1)
    log.fence(2)
    log.publish([], [], make_publication(1, epoch=2), log.version)
    line = (warehouse / "_delta_log" / f"{2:020d}.json").read_text("utf-8").splitlines()[0]
    info = json.loads(line)["commitInfo"]
    assert info["txn_commit"] == "first"
    assert Publication.model_validate(info["txn"]) == make_publication(1, epoch=2)


FRACTIONS = [1763778000.123457 + n / 7 for n in range(64)]


@pytest.mark.parametrize(
    "positions",
    [
        {"read": {"a": FRACTIONS}},
        {"spouts": {"a": {"at": FRACTIONS, "since": 5e-324}}},
        {"spouts": {"a": 2**64 + 1}, "read": {"a": {"id": -(2**63)}}},
    ],
)
def test_a_table_says_every_number_of_a_position_exactly(
    warehouse: Path, make_publication: Any, positions: dict[str, Any]
) -> None:
    """A table's log keeps every number of a position exactly, and recovery from the log restores it
    exactly.
    """
    log = open_log(warehouse)
    written = make_publication(1).model_copy(update=positions)
    landed = log.publish([], [], written, log.version)
    assert log.read_commit(landed.version).publication == written
    log.fence(2)
    last = log.read_commit(log.version).last
    assert last == (landed.version, written)
    said = TableLog(Storage(str(warehouse))).publications()
    assert [one.publication for one in said] == [written]


@pytest.mark.parametrize("epochs", [(1, 1), (2, 2), (2, 7), (7, 2)])
def test_of_two_ensembles_that_come_to_one_table_one_leads_it(
    warehouse: Path, epochs: tuple[int, int]
) -> None:
    """Both have loaded a table that names no ensemble, or none: the first append decides."""
    logs = [DeltaLog(Storage(str(warehouse)), incarnation=n) for n in (11, 12)]
    if epochs == (1, 1):
        logs[0].open(SPEC, 1)
        with pytest.raises(RecoveryRefusedError, match="names incarnation 000000000000000b"):
            logs[1].open(SPEC, 1)
        return
    open_log(warehouse)
    for log in logs:
        log.attach("tests")
    logs[0].fence(epochs[0])
    before = DeltaTable(str(warehouse)).version()
    with pytest.raises(RecoveryRefusedError, match="from another ensemble.*000000000000000b"):
        logs[1].fence(epochs[1])
    with pytest.raises(RecoveryRefusedError, match="from another ensemble"):
        DeltaLog(Storage(str(warehouse)), incarnation=12).attach("tests")
    assert DeltaTable(str(warehouse)).version() == before


def test_an_incarnation_that_takes_over_needs_a_higher_epoch(
    warehouse: Path, make_publication: Any
) -> None:
    """With the same one neither leader would shut the other out; with a higher one the old is."""
    old = open_log(warehouse, epoch=3, incarnation=11)
    for epoch in (2, 3):
        with pytest.raises(FencedError, match="taken over by epoch 3"):
            open_log(warehouse, epoch=epoch, incarnation=12, takes_over=[11])
    new = open_log(warehouse, epoch=4, incarnation=12, takes_over=[11])
    with pytest.raises(FencedError, match="epoch 4"):
        old.publish([put(warehouse, 1)], [], make_publication(1, epoch=3), old.version)
    new.publish([put(warehouse, 1)], [], make_publication(1, epoch=4), new.version)
    with pytest.raises(RecoveryRefusedError, match="000000000000000c"):
        open_log(warehouse, epoch=9, incarnation=11)
    # A checkpoint keeps it, when all commit files that said so are gone.
    table = DeltaTable(str(warehouse))
    table.create_checkpoint()
    for file in (warehouse / "_delta_log").glob("[0-9]*.json"):
        if int(file.stem) < table.version():
            file.unlink()
    with pytest.raises(RecoveryRefusedError, match="000000000000000c"):
        DeltaLog(Storage(str(warehouse)), incarnation=11).attach("tests")
    assert DeltaLog(Storage(str(warehouse)), incarnation=12).attach("tests")
