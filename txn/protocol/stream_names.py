"""Read what is durable under the present names of the program's streams. Pure.

A stream's progress is stored by its name. `stream(name, spout, was=former)` renames it in all that
is read at the start; nothing is written for that. Each record that the run writes has the present
names, so the first committed txid makes them durable, and `was` changes nothing from then on. A
crash before it leaves a mixture of both names, which is read in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from txn.errors import RecoveryRefusedError
from txn.interfaces import Publication
from txn.interfaces.event_time import EventTime
from txn.interfaces.publication import Member
from txn.protocol.backend import TopologyStatus
from txn.protocol.records import (
    BatchRecord,
    CommittedRecord,
    ProgramRecord,
    Progress,
    QuarantineRecord,
)
from txn.protocol.recovery import Newest

__all__ = [
    "Renamed",
    "check_renamed",
    "rename_in_member",
    "rename_in_newest",
    "rename_in_progress",
    "rename_in_publication",
    "rename_in_status",
    "rename_keys",
]

Renamed = Mapping[str, str]
"""Former name of a stream -> its present name."""

V = TypeVar("V")
M = TypeVar("M", Publication, Member)


def rename_keys(renamed: Renamed, by_stream: Mapping[str, V]) -> dict[str, V]:
    """Rename the keys, which are streams or labels of several ("a+b").

    A key that has the present name already wins over the former one.
    """
    former = {_label(renamed, name): value for name, value in by_stream.items()}
    present = {n: v for n, v in by_stream.items() if _label(renamed, n) == n}
    return {**former, **present}


def check_renamed(topology: str, renamed: Renamed, committed: CommittedRecord) -> None:
    """Refuse a former name that is another stream's.

    Raises:
        RecoveryRefusedError: both names have a committed position.
    """
    for former, name in sorted(renamed.items()):
        if {former, name} <= committed.spouts.keys():
            raise RecoveryRefusedError(
                f"The program says that stream '{name}' of topology '{topology}' was '{former}', "
                "but ZooKeeper has a position for each of them: they are two streams. Nothing was "
                f"changed. Remove was='{former}'. To leave '{former}' out, set "
                f"TopologyConfig(dropped_streams=({former!r},)), or --set "
                f"dropped_streams={former}.",
                number="TXN-806",
            )


def rename_in_progress(renamed: Renamed, progress: Progress) -> Progress:
    """Return the progress with the present names."""
    if not renamed:
        return progress
    return progress.model_copy(
        update={
            "committed": _in_committed(renamed, progress.committed),
            "batches": tuple(_in_batch(renamed, batch) for batch in progress.batches),
            "columns": rename_keys(renamed, progress.columns),
            "quarantined_streams": frozenset(_names(renamed, progress.quarantined_streams)),
            "program": progress.program and _in_program(renamed, progress.program),
        }
    )


def rename_in_status(renamed: Renamed, status: TopologyStatus) -> TopologyStatus:
    """Return the status with the present names."""
    return replace(
        status,
        progress=rename_in_progress(renamed, status.progress),
        quarantine=tuple(_in_quarantine(renamed, record) for record in status.quarantine),
    )


def rename_in_newest(renamed: Renamed, newest: Newest) -> Newest:
    """Return each table's newest publication with the present names."""
    return {
        table: entry and (entry[0], rename_in_publication(renamed, entry[1]))
        for table, entry in newest.items()
    }


def rename_in_publication(renamed: Renamed, publication: Publication) -> Publication:
    """Return a publication with the present names."""
    if not renamed:
        return publication
    members = tuple(rename_in_member(renamed, member) for member in publication.members)
    spouts = rename_keys(renamed, publication.spouts)
    whole = rename_in_member(renamed, publication)
    time = _in_event_time(renamed, publication.event_time)
    return whole.model_copy(update={"spouts": spouts, "members": members, "event_time": time})


def rename_in_member(renamed: Renamed, member: M) -> M:
    """Return one txid of a publication with the present names."""
    by_stream = ("read", "violations", "unasked", "forms")
    return member.model_copy(
        update={name: rename_keys(renamed, getattr(member, name)) for name in by_stream}
    )


def _in_committed(renamed: Renamed, record: CommittedRecord) -> CommittedRecord:
    spouts, time = rename_keys(renamed, record.spouts), _in_event_time(renamed, record.event_time)
    return record.model_copy(update={"spouts": spouts, "event_time": time})


def _in_event_time(renamed: Renamed, time: EventTime | None) -> EventTime | None:
    return time and time.model_copy(update={"streams": rename_keys(renamed, time.streams)})


def _in_batch(renamed: Renamed, record: BatchRecord) -> BatchRecord:
    spouts, opaque = rename_keys(renamed, record.spouts), _names(renamed, record.opaque)
    return record.model_copy(update={"spouts": spouts, "opaque": sorted({*opaque})})


def _in_quarantine(renamed: Renamed, record: QuarantineRecord) -> QuarantineRecord:
    return record.model_copy(update={"spouts": rename_keys(renamed, record.spouts)})


def _in_program(renamed: Renamed, record: ProgramRecord) -> ProgramRecord:
    """Rename in the ids of stages, so that a stage of a renamed stream counts as the same."""
    stages = []
    for stage in record.stages:
        label, slash, operation = stage.id.partition("/")
        renamed_id = _label(renamed, label) + slash + operation
        stages.append(stage.model_copy(update={"id": renamed_id}))
    return record.model_copy(update={"stages": stages})


def _names(renamed: Renamed, names: Iterable[str]) -> list[str]:
    return [renamed.get(name, name) for name in names]


def _label(renamed: Renamed, label: str) -> str:
    return "+".join(_names(renamed, label.split("+")))
