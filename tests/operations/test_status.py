from __future__ import annotations

import io
import json
import os
from dataclasses import replace

from rich.console import Console

from txn.cli.tables import status_table
from txn.machine.liveness import machine_id
from txn.operations.status import status_of
from txn.operations.tables.table_status import TableStatus
from txn.protocol.backend import TopologyStatus
from txn.protocol.records import (
    BatchRecord,
    CommittedRecord,
    LeaderIdentity,
    NoticesRecord,
    ProgramRecord,
    Progress,
    QuarantineRecord,
    StandbyIdentity,
)

CHANGES = ["transform clean (sales.py:12) of stream 's' was changed", "join of stream 's' is new"]
SINCE = "2026-01-01T00:00:00+00:00"


def looked_at() -> TopologyStatus:
    """A topology of two standbys, three quarantined txids and one replay at work."""
    here = machine_id()
    batch = BatchRecord(txid=8, attempt=0, epoch=2, spouts={"s": 1}, replay_of=3)
    aside = tuple(QuarantineRecord(txid=txid, attempt=1, error="x") for txid in (3, 5, 6))
    return TopologyStatus(
        "t",
        Progress(
            committed=CommittedRecord(txid=7, epoch=2),
            batches=(batch,),
            program=ProgramRecord(python="cpython-311 3.11.7", changes=CHANGES, since=4),
        ),
        2,
        LeaderIdentity(host="h", pid=os.getpid(), started=SINCE, epoch=2, token="t", machine=here),
        None,
        aside,
        frozenset({3, 5}),
        (
            (StandbyIdentity(host="h", pid=os.getpid(), since=SINCE, machine=here), ""),
            (StandbyIdentity(host="h", pid=2**30, since=SINCE, machine=here), ""),
        ),
    )


def test_status_says_who_still_runs() -> None:
    """The leader and each standby is alive, or gone while its node is still there."""
    status = status_of(looked_at())
    assert status.leader_alive
    assert [True, False] == [standby.alive for standby in status.standbys]


def test_a_quarantined_txid_is_at_work_asked_for_or_neither() -> None:
    """The txid that replays it comes before the request for it."""
    assert [8, "requested", None] == [q.replay for q in status_of(looked_at()).quarantine]


def test_status_is_json() -> None:
    """Everything in it can be written as JSON and read again."""
    told = status_of(looked_at()).to_json()
    assert told == json.loads(json.dumps(told))
    assert (7, 3, [True, False]) == (
        told["committed_txid"],
        told["quarantined"],
        [standby["alive"] for standby in told["standbys"]],
    )


def test_status_names_the_newest_change_of_the_program() -> None:
    """With the txid from which on it counts; of a program that never changed, nothing."""
    status = status_of(looked_at())
    assert status.changes == {"since_txid": 4, "changes": CHANGES}
    assert status.to_json()["changes"] == status.changes
    unchanged = Progress(program=ProgramRecord(python="cpython-311 3.11.7"))
    for progress in (unchanged, Progress()):
        assert status_of(replace(looked_at(), progress=progress)).changes is None


def test_status_shows_what_spouts_have_for_the_user() -> None:
    """By stream, with the txid and the time as of which it was said; nothing, if nothing was."""
    said = NoticesRecord(
        epoch=2, txid=8, at=SINCE, streams={"s": ["no file", "2 were changed"]}, left_out=3
    )
    status = status_of(replace(looked_at(), notices=said))
    assert status.to_json()["notices"] == {
        "txid": 8,
        "at": SINCE,
        "streams": {"s": ["no file", "2 were changed"]},
        "left_out": 3,
    }
    out = io.StringIO()
    Console(file=out, width=120).print(status_table(status, TableStatus(), "zk"))
    told = out.getvalue()
    assert f"noticed when txid 8 was planned, {SINCE}" in told
    assert all(line in told for line in ("no file", "2 were changed", "3 more streams"))
    for silent in (None, said.model_copy(update={"streams": {}})):
        nothing = status_of(replace(looked_at(), notices=silent))
        assert nothing.to_json()["notices"] is None
        out = io.StringIO()
        Console(file=out, width=120).print(status_table(nothing, TableStatus(), "zk"))
        assert "noticed" not in out.getvalue()
