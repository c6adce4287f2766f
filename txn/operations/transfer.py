"""Export a topology's progress from ZooKeeper and import it: backup and move."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from pydantic import ValidationError

from txn.errors import ProgressUnavailableError, ProgressUnreadableError, TopologyError, UserError
from txn.operations.progress_file import ProgressFile
from txn.protocol.backend import ProgressBackend, TopologyStatus
from txn.protocol.records import ColumnsRecord, CommittedRecord, RowReplayRecord

__all__ = ["export_progress", "import_progress"]

_READS = 20
_PAUSE_SECS = 0.05


def export_progress(backend: ProgressBackend, topology: str) -> ProgressFile:
    """Read a topology's progress at one moment, whether or not it runs. Takes no lock.

    Raises:
        TopologyError: there is no such topology; lists the existing ones.
        ProgressUnreadableError: a node cannot be read; names it.
        ProgressUnavailableError: ZooKeeper did not answer, or commits came so fast that no read
            was consistent.
    """
    reason = ""
    for _ in range(_READS):
        try:
            # The replays first: their rows were committed before.
            replays = backend.row_replays(topology)
            return _file(backend.status(topology), replays)
        except ValidationError as error:
            # A commit between two reads leaves records that do not fit each other.
            reason = str(error.errors(include_url=False, include_input=False)[0]["msg"])
        time.sleep(_PAUSE_SECS)
    raise ProgressUnavailableError(
        f"The progress of topology '{topology}' could not be read as a whole in {_READS} tries "
        f"({reason}). If the topology runs, stop it first; otherwise `txn run` reports what is "
        "wrong."
    )


def _file(status: TopologyStatus, replays: Mapping[str, Sequence[RowReplayRecord]]) -> ProgressFile:
    return ProgressFile(
        topology=status.topology,
        exported_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        epoch=status.epoch,
        committed=status.progress.committed,
        batches=list(status.progress.batches),
        quarantine=list(status.quarantine),
        replays_requested=sorted(status.replays_requested),
        drops_requested=sorted(status.drops_requested),
        columns=[
            ColumnsRecord(stream=stream, columns=columns)
            for stream, columns in sorted(status.progress.columns.items())
        ],
        row_replays=[replay for _, of_stream in sorted(replays.items()) for replay in of_stream],
        incarnation=status.incarnation.id if status.incarnation else 0,
        takes_over=list(status.incarnation.takes_over) if status.incarnation else [],
    )


def import_progress(
    backend: ProgressBackend, progress: ProgressFile, *, replace: bool = False
) -> int:
    """Write this progress as its topology's, under a new epoch above any known; returns it.

    The topology begins a new incarnation in place of the file's: from its first run on, the tables
    follow this ensemble and refuse the one that the file came from.

    COMMITTED is written last: an interrupted import has committed nothing, so tables that hold
    anything are ahead of it, and the next start refuses.

    Args:
        replace: write it even if the topology exists, whatever its state.

    Raises:
        UserError: the topology exists, and `replace` is False; reports its newest txid.
        LeaderExistsError: the topology runs.
        ProgressUnreadableError, ProgressUnavailableError: as `ProgressStore.rebuild`.
    """
    name = progress.topology
    if not replace and name in backend.topologies():
        raise _exists(backend, progress)
    store = backend.open(name)
    try:
        epoch = store.rebuild(
            CommittedRecord(),
            at_least=progress.epoch + 1,
            takes_over=[progress.incarnation, *progress.takes_over],
            forget=True,
        )
        store.load()
        for columns in progress.columns:
            store.persist_columns(columns)
        nothing = CommittedRecord(epoch=epoch)
        for record in progress.quarantine:
            store.persist_committed(nothing, quarantine=record)
        for batch in progress.batches:
            store.persist_start(batch.model_copy(update={"epoch": epoch}))
        if progress.replays_requested:
            backend.request_replays(name, progress.replays_requested)
        if progress.drops_requested:
            backend.request_drops(name, progress.drops_requested)
        for replay in progress.row_replays:
            backend.begin_row_replay(name, replay)
        store.persist_committed(progress.committed.model_copy(update={"epoch": epoch}))
    finally:
        store.close()
    return epoch


def _exists(backend: ProgressBackend, progress: ProgressFile) -> UserError:
    try:
        status = backend.status(progress.topology)
        there = f"txid {status.progress.committed.txid}, epoch {status.epoch}"
    except TopologyError:
        there = "gone"
    except ProgressUnreadableError:
        there = "not readable"
    return UserError(
        f"ZooKeeper already knows topology '{progress.topology}' ({there}); the file of "
        f"{progress.exported_at} has txid {progress.committed.txid}, epoch {progress.epoch}. "
        "Nothing was changed. --replace puts the file in its place. If the tables have moved on "
        "since the file was written, the next start refuses: then run `txn recover`.",
        number="TXN-811",
    )
