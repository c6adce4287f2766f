"""What is durable under a stream's former name, as a program that renamed the stream reads it."""

from __future__ import annotations

import pytest

from txn.errors import RecoveryRefusedError
from txn.interfaces import Member, Publication
from txn.protocol.backend import TopologyStatus
from txn.protocol.records import (
    BatchRecord,
    CommittedRecord,
    ProgramRecord,
    Progress,
    QuarantineRecord,
    StageRecord,
)
from txn.protocol.stream_names import (
    check_renamed,
    rename_in_newest,
    rename_in_progress,
    rename_in_status,
)

RENAMED = {"old": "new"}


def progress(name: str) -> Progress:
    """Durable state of the streams `name` and "s"."""
    stage = StageRecord(id=f"{name}+s/join-1", told="join", fingerprint="f")
    return Progress(
        committed=CommittedRecord(txid=4, epoch=1, spouts={name: "p4", "s": "q4"}),
        batches=(
            BatchRecord(
                txid=5,
                attempt=0,
                epoch=1,
                spouts={"s": None, name: "p5"},
                opaque=sorted([name, "s"]),
            ),
        ),
        columns={name: {"type": "struct"}},
        quarantined_streams=frozenset({name, "s"}),
        quarantined=frozenset({3}),
        program=ProgramRecord(python="p", stages=[stage]),
    )


def test_everything_durable_is_read_under_the_present_name() -> None:
    """Position, open batches, columns, quarantine and stages; no other stream's; and once only."""
    assert rename_in_progress(RENAMED, progress("old")) == progress("new")
    assert rename_in_progress(RENAMED, progress("new")) == progress("new")
    assert rename_in_progress(RENAMED, progress("older")) == progress("older")
    assert rename_in_progress({}, progress("old")) == progress("old")


def test_a_mixture_of_both_names_is_read_as_the_present_one() -> None:
    """A crash before the first commit leaves one START under the new name and others under the
    former; a commit leaves the columns under both.
    """
    started = BatchRecord(txid=6, attempt=1, epoch=2, spouts={"new": "p6"})
    mixed = progress("old")
    mixed = mixed.model_copy(
        update={
            "batches": (*mixed.batches, started),
            "columns": {"new": {"type": "newer"}, "old": {"type": "struct"}},
        }
    )
    read = rename_in_progress(RENAMED, mixed)
    assert [batch.spouts for batch in read.batches] == [{"s": None, "new": "p5"}, {"new": "p6"}]
    assert read.columns == {"new": {"type": "newer"}}


def test_publications_are_read_under_the_present_name() -> None:
    """Positions, what each txid of a group read, and what broke a rule of joined streams."""

    def newest(name: str) -> Publication:
        by_rule = {name: {"rule": 1}, f"s+{name}": {"rule": 2}}
        members = [
            Member(txid=txid, attempt_id=0, read={name: f"p{txid}"}, violations=by_rule)
            for txid in (5, 6)
        ]
        return Publication(
            topology="t",
            epoch=1,
            first_txid=5,
            last_txid=6,
            attempt_id=0,
            spouts={name: "p6"},
            read={name: "p6"},
            members=tuple(members),
        )

    table = {"a": (7, newest("old")), "b": None}
    assert rename_in_newest(RENAMED, table) == {"a": (7, newest("new")), "b": None}


def test_a_status_is_read_under_the_present_name() -> None:
    """The records of quarantined txids, too."""

    def status(name: str) -> TopologyStatus:
        aside = QuarantineRecord(txid=3, attempt=4, spouts={name: "p3"}, error="boom")
        return TopologyStatus("t", progress(name), 1, None, None, (aside,))

    assert rename_in_status(RENAMED, status("old")) == status("new")


def test_two_streams_with_positions_are_not_one_that_was_renamed() -> None:
    """`was` is refused if it names another stream that has been read; its way out is a setting."""
    both = CommittedRecord(txid=4, epoch=1, spouts={"old": "p4", "new": "q4"})
    with pytest.raises(RecoveryRefusedError, match=r"was='old'.*dropped_streams=\('old',\)"):
        check_renamed("t", RENAMED, both)
    for spouts in ({"old": "p4"}, {"new": "q4"}, {}):
        check_renamed("t", RENAMED, both.model_copy(update={"spouts": spouts}))
