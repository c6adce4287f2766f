"""What a new leader makes of the tables and of ZooKeeper: every row of `reconcile`'s table."""

from __future__ import annotations

import pytest

from txn.errors import RecoveryRefusedError
from txn.interfaces import Publication
from txn.protocol.records import BatchRecord, CommittedRecord, Progress, QuarantineRecord
from txn.protocol.recovery import (
    Recovered,
    newest_metadata,
    reconcile,
    require_tables,
)

COMMITTED = CommittedRecord(txid=4, epoch=2, spouts={"s": "p4"}, tables={"a": 14, "b": 24})
OPEN = (
    BatchRecord(txid=5, attempt=1, epoch=2, spouts={"s": "p5"}),
    BatchRecord(txid=6, attempt=0, epoch=2, spouts={"s": "p6"}),
)
PROGRESS = Progress(committed=COMMITTED, batches=OPEN)


def publication(
    last: int, *, attempt: int = 1, epoch: int = 2, first: int | None = None
) -> Publication:
    """What a table's log says of txid `last`."""
    return Publication(
        topology="t",
        epoch=epoch,
        first_txid=last if first is None else first,
        last_txid=last,
        attempt_id=attempt,
        spouts={"s": f"p{last}"},
        read={"s": f"p{last}"},
    )


def reconciled(found, *, progress=PROGRESS, streams=("s",), opaque=False, **more) -> Recovered:
    """`reconcile` for topology "t"."""
    return reconcile("t", streams, streams if opaque else (), progress, found, **more)


@pytest.mark.parametrize("opaque", [False, True])
def test_tables_at_the_committed_txid_go_on_from_there(opaque):
    """Every table at C: nothing to repair; open batches stay as they are."""
    found = {"a": (14, publication(4)), "b": (24, publication(4))}
    assert Recovered(COMMITTED, OPEN) == reconciled(found, opaque=opaque)


def test_a_first_run_begins_with_nothing():
    """No table, no progress: begin at txid 1."""
    found = {"a": None, "b": None}
    assert Recovered(CommittedRecord(), ()) == reconciled(found, progress=Progress())


@pytest.mark.parametrize("opaque", [False, True])
def test_tables_all_one_ahead_by_one_attempt_roll_zookeeper_forward(opaque):
    """Every table at C + 1: positions and versions are adopted, the open batch is done."""
    found = {"a": (15, publication(5)), "b": (25, publication(5))}
    record = CommittedRecord(txid=5, epoch=2, spouts={"s": "p5"}, tables={"a": 15, "b": 25})
    expected = Recovered(record, OPEN[1:], roll_forward=True)
    assert expected == reconciled(found, opaque=opaque)


def test_rolling_forward_keeps_the_positions_of_streams_that_the_batch_does_not_name():
    """A stream that was idle for long keeps where it stood."""
    committed = COMMITTED.model_copy(update={"spouts": {"s": "p4", "idle": "q1"}})
    found = {"a": (15, publication(5)), "b": (25, publication(5))}
    progress = Progress(committed=committed, batches=OPEN)
    recovered = reconciled(found, progress=progress, streams=("s", "idle"))
    assert recovered.committed.spouts == {"s": "p5", "idle": "q1"}


def test_the_first_batch_of_all_is_rolled_forward_too():
    """C = 0, every table at 1."""
    progress = Progress(batches=(BatchRecord(txid=1, attempt=0, epoch=1, spouts={"s": "p1"}),))
    recovered = reconciled({"a": (2, publication(1, attempt=0))}, progress=progress)
    assert (recovered.committed.txid, recovered.batches, recovered.roll_forward) == (1, (), True)


@pytest.mark.parametrize("opaque", [False, True])
def test_some_tables_one_ahead_replay_the_txid(opaque):
    """Some at C + 1, others at C: the txid is replayed, and is known to be in some table."""
    found = {"a": (15, publication(5)), "b": (24, publication(4))}
    expected = Recovered(COMMITTED, OPEN, published=frozenset({5}))
    assert expected == reconciled(found, opaque=opaque)


def test_a_table_without_publication_beside_one_ahead_replays_the_first_txid():
    """The crash came between the very first two publications."""
    progress = Progress(batches=(BatchRecord(txid=1, attempt=0, epoch=1, spouts={"s": "p1"}),))
    recovered = reconciled({"a": (2, publication(1, attempt=0)), "b": None}, progress=progress)
    assert Recovered(CommittedRecord(), progress.batches, published=frozenset({1})) == recovered


def test_opaque_tables_one_ahead_by_different_attempts_are_replayed():
    """Two attempts of an opaque batch may hold different records: neither may be adopted."""
    found = {"a": (15, publication(5, attempt=1)), "b": (25, publication(5, attempt=2))}
    recovered = reconciled(found, opaque=True)
    assert not recovered.roll_forward
    assert (frozenset({5}), 2) == (recovered.published, recovered.batches[0].attempt)


def test_opaque_tables_one_ahead_by_one_attempt_number_of_two_epochs_are_replayed():
    """An attempt is known by epoch and number: a fenced leader may have used the number too."""
    found = {"a": (15, publication(5, epoch=2)), "b": (25, publication(5, epoch=3))}
    assert not reconciled(found, opaque=True).roll_forward


def test_transactional_tables_one_ahead_by_different_attempts_roll_forward():
    """Attempts of a transactional batch are identical, so any of them will do."""
    found = {"a": (15, publication(5, attempt=1)), "b": (25, publication(5, attempt=2))}
    assert reconciled(found).roll_forward


def test_transactional_tables_whose_replays_may_differ_are_replayed():
    """A query as of the last committed txid makes attempts differ, whatever the spout."""
    found = {"a": (15, publication(5, attempt=1)), "b": (25, publication(5, attempt=2))}
    assert not reconciled(found, replays_differ=True).roll_forward
    same = {"a": (15, publication(5, attempt=1)), "b": (25, publication(5, attempt=1))}
    assert reconciled(same, replays_differ=True).roll_forward


def test_the_replay_has_an_attempt_above_any_that_a_table_has_seen():
    """An attempt that a table holds and whose START is not known counts as used."""
    found = {"a": (15, publication(5, attempt=7)), "b": (24, publication(4))}
    assert [batch.attempt for batch in reconciled(found).batches] == [7, 0]


def test_an_attempt_that_zookeeper_knows_is_not_lowered_by_a_table():
    """Attempt ids never go back: START 5:1 was durable after the table got 5:0."""
    found = {"a": (15, publication(5, attempt=0)), "b": (24, publication(4))}
    assert [batch.attempt for batch in reconciled(found).batches] == [1, 0]


def test_a_publication_whose_start_is_missing_is_a_start_itself():
    """What the txid read stands in the table's log."""
    found = {"a": (15, publication(5, attempt=3)), "b": (24, publication(4))}
    expected = BatchRecord(txid=5, attempt=3, epoch=2, spouts={"s": "p5"})
    recovered = reconciled(found, progress=Progress(committed=COMMITTED))
    assert (expected,) == recovered.batches


@pytest.mark.parametrize(
    "found",
    [
        {"a": (16, publication(6)), "b": (26, publication(6))},
        {"a": (16, publication(6)), "b": (24, publication(4))},
        {"a": (90, publication(80)), "b": (91, publication(80))},
    ],
    ids=["all", "some", "by-far"],
)
def test_a_table_further_ahead_is_refused_and_the_way_out_is_named(found):
    """L > C + 1: ZooKeeper was wiped or is another one; nothing is started."""
    with pytest.raises(RecoveryRefusedError, match=r"Table 'a'.*txn recover FILE"):
        reconciled(found)


def test_tables_of_a_topology_that_zookeeper_does_not_know_are_refused():
    """A wiped ZooKeeper is never read as a first run."""
    found = {"a": (14, publication(4)), "b": (24, publication(4))}
    with pytest.raises(RecoveryRefusedError, match=r"holds txid 4 .*committed txid .* is 0"):
        reconciled(found, progress=Progress())


def test_a_table_behind_is_refused():
    """L < C: the table was restored to an older version, or left out for a while."""
    found = {"a": (14, publication(4)), "b": (23, publication(3))}
    with pytest.raises(RecoveryRefusedError, match=r"Table 'b' holds txid 3.*txid 4"):
        reconciled(found)


def test_a_vanished_table_is_refused():
    """ZooKeeper knows a version of it, and it has no publication: it was replaced."""
    found = {"a": (14, publication(4)), "b": None}
    with pytest.raises(RecoveryRefusedError, match=r"Table 'b' holds txid none"):
        reconciled(found)


def test_a_new_table_joins_at_the_committed_txid():
    """A committer added to a running topology has no past; it gets what comes from now on."""
    found = {"a": (14, publication(4)), "b": (24, publication(4)), "new": None}
    assert Recovered(COMMITTED, OPEN) == reconciled(found)


def test_a_new_table_beside_tables_one_ahead_replays_the_txid():
    """The open txid is published again, so the new table gets it."""
    found = {"a": (15, publication(5)), "b": (25, publication(5)), "new": None}
    recovered = reconciled(found)
    assert (False, frozenset({5})) == (recovered.roll_forward, recovered.published)


def test_a_removed_table_keeps_its_last_version():
    """A committer left out of the program is not asked for; ZooKeeper goes on without it."""
    assert Recovered(COMMITTED, OPEN) == reconciled({"a": (14, publication(4))})


def test_a_new_stream_begins_at_its_beginning():
    """A stream added to a topology with progress is accepted."""
    found = {"a": (14, publication(4)), "b": (24, publication(4))}
    assert Recovered(COMMITTED, OPEN) == reconciled(found, streams=("s", "new"))


@pytest.mark.parametrize(
    "progress",
    [Progress(committed=COMMITTED), Progress(batches=(OPEN[0].model_copy(update={"txid": 1}),))],
    ids=["committed", "open"],
)
def test_a_removed_or_renamed_stream_is_refused(progress):
    """Under another name the stream would start from its beginning and count twice."""
    told = r"progress for stream 's'.*only other.*stream\('other', SPOUT, was='s'\).*streams=s:"
    with pytest.raises(RecoveryRefusedError, match=told):
        reconciled({}, progress=progress, streams=("other",))


TWO = (
    BatchRecord(txid=5, attempt=1, epoch=2, spouts={"s": "p5", "gone": None}),
    BatchRecord(txid=6, attempt=0, epoch=2, spouts={"s": "p6", "gone": "q6"}),
    BatchRecord(txid=7, attempt=0, epoch=2, spouts={"s": None, "gone": "q7"}),
)
BOTH = Progress(
    committed=COMMITTED.model_copy(update={"spouts": {"s": "p4", "gone": "q4"}}), batches=TWO
)
AT_COMMITTED = {"a": (14, publication(4)), "b": (24, publication(4))}


def test_open_batches_read_nothing_of_a_dropped_stream():
    """Its position stays at the committed one; what the other streams read is unchanged."""
    recovered = reconciled(AT_COMMITTED, progress=BOTH, dropped=("gone",))
    assert [batch.spouts for batch in recovered.batches] == [{"s": "p5"}, {"s": "p6"}, {"s": None}]
    assert recovered.committed.spouts == {"s": "p4", "gone": "q4"}


def test_a_stream_that_comes_back_skips_nothing_that_was_open_when_it_was_dropped():
    """A crash came when one START had been replaced by one without it and later ones had not: the
    later ones do not read it either, so it goes on from its committed position.
    """
    open_ = (TWO[0].model_copy(update={"spouts": {"s": "p5"}}), *TWO[1:])
    progress = BOTH.model_copy(update={"batches": open_})
    recovered = reconciled(AT_COMMITTED, progress=progress, streams=("s", "gone"))
    assert [batch.spouts for batch in recovered.batches] == [{"s": "p5"}, {"s": "p6"}, {"s": None}]
    kept = reconciled(AT_COMMITTED, progress=BOTH, streams=("s", "gone"))
    assert kept.batches == TWO


@pytest.mark.parametrize("opaque", [False, True])
def test_a_dropped_stream_that_a_half_published_batch_reads_is_refused(opaque):
    """The rows are in one table: the former program has to complete the txid."""
    read = publication(5).model_copy(update={"read": {"s": "p5", "gone": "q5"}})
    batch = TWO[0].model_copy(update={"spouts": read.read})
    progress = BOTH.model_copy(update={"batches": (batch, *TWO[1:])})
    found = {"a": (15, read), "b": (24, publication(4))}
    with pytest.raises(RecoveryRefusedError, match="Txid 5 .*stream 'gone'.*`--until 5`"):
        reconciled(found, progress=progress, dropped=("gone",), opaque=opaque)
    idle = {"a": (15, publication(5)), "b": (24, publication(4))}
    recovered = reconciled(idle, progress=BOTH, dropped=("gone",), opaque=opaque)
    assert recovered.batches == (
        TWO[0],
        *(b.model_copy(update={"spouts": {"s": b.spouts["s"]}}) for b in TWO[1:]),
    )


def test_the_open_replay_of_a_dropped_streams_records_becomes_an_empty_batch():
    """It replays nothing any more, so the quarantined txid stays in quarantine."""
    replay = BatchRecord(txid=5, attempt=0, epoch=2, spouts={"s": None, "gone": "q2"}, replay_of=2)
    progress = BOTH.model_copy(update={"batches": (replay, TWO[1])})
    first, second = reconciled(AT_COMMITTED, progress=progress, dropped=("gone",)).batches
    assert (first.spouts, first.replay_of, second.spouts) == ({}, None, {"s": "p6"})
    other = replay.model_copy(update={"spouts": {"s": "p2", "gone": None}})
    progress = BOTH.model_copy(update={"batches": (other,)})
    assert reconciled(AT_COMMITTED, progress=progress, dropped=("gone",)).batches == (other,)


def test_the_kind_of_a_dropped_stream_is_not_asked():
    """Only a stream that the program declares can be of another kind than before."""
    batch = TWO[1].model_copy(update={"txid": 5, "opaque": ["gone"]})
    progress = BOTH.model_copy(update={"batches": (batch,)})
    assert reconciled(AT_COMMITTED, progress=progress, dropped=("gone",)).batches
    with pytest.raises(RecoveryRefusedError, match="'gone' had an opaque spout.*`--until 5`"):
        reconciled(AT_COMMITTED, progress=progress, streams=("s", "gone"))


def test_a_publication_that_spans_other_txids_than_the_next_one_is_refused():
    """A version that holds C + 1 to C + 2 was written by another program than this one."""
    both = publication(6).model_copy(update={"first_txid": 5})  # as no log would be read
    found = {"a": (15, both), "b": (25, both)}
    with pytest.raises(RecoveryRefusedError, match=r"Table 'a' holds txid 6"):
        reconciled(found)


def test_a_stream_that_is_no_longer_opaque_is_refused_while_its_batches_are_open():
    """What an opaque spout left in an open START may be outdated; it must not become fixed."""
    progress = PROGRESS.model_copy(
        update={"batches": tuple(b.model_copy(update={"opaque": ["s"]}) for b in OPEN)}
    )

    with pytest.raises(RecoveryRefusedError, match="'s' had an opaque spout"):
        reconciled({"a": None}, progress=progress)


# --- quarantine -------------------------------------------------------------------------------


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize(("error", "replay"), [("boom", None), (None, 2), ("boom", 2)])
def test_rolling_forward_settles_the_quarantine_too(opaque, error, replay):
    """An emptied txid gets the record that COMMITTED would have written, a replay drops its one."""
    start = OPEN[0].model_copy(update={"quarantined": error, "replay_of": replay})
    found = {"a": (15, publication(5)), "b": (25, publication(5))}
    progress = Progress(committed=COMMITTED, batches=(start,))
    recovered = reconciled(found, progress=progress, opaque=opaque)
    kept = QuarantineRecord(txid=5, attempt=1, spouts={"s": "p5"}, error="boom")
    assert (kept if error else None, replay) == (recovered.quarantine, recovered.replay_of)
    left = {1, 5 if error else None, None if replay else 2} - {None}
    assert left == recovered.quarantined({1, 2})


@pytest.mark.parametrize("published", ["all", "some"])
def test_a_backup_older_than_a_quarantine_learns_of_it_from_the_tables(published):
    """A START that is older than a publication does not decide whether the txid was emptied."""
    empty = publication(5, attempt=3).model_copy(update={"quarantined": "boom"})
    found = {"a": (15, empty), "b": (25, empty) if published == "all" else (24, publication(4))}
    recovered = reconciled(found)
    if published == "all":
        kept = QuarantineRecord(txid=5, attempt=3, spouts={"s": "p5"}, error="boom")
        assert (recovered.quarantine, recovered.committed.txid) == (kept, 5)
    else:
        first = recovered.batches[0]
        assert (first.txid, first.attempt, first.quarantined) == (5, 3, "boom")
        assert first.spouts == {"s": "p5"}


@pytest.mark.parametrize("replay_of", [2, None])
def test_a_publication_without_its_start_says_itself_what_it_replays(replay_of):
    """Its log has that as ZooKeeper had it."""
    lone = publication(5).model_copy(update={"replay_of": replay_of})
    progress = Progress(committed=COMMITTED)
    recovered = reconciled({"a": (15, lone), "b": (24, publication(4))}, progress=progress)
    assert replay_of == recovered.batches[0].replay_of


def test_an_open_replay_is_not_where_its_stream_stands():
    """A spout is opened with the newest metadata of its stream; a replay lies behind that."""
    replay = BatchRecord(txid=6, attempt=0, epoch=2, spouts={"s": "p2"}, replay_of=2)
    progress = Progress(committed=COMMITTED, batches=(OPEN[0], replay))
    assert {"s": "p5"} == newest_metadata(progress)


def test_a_table_whose_last_publication_was_cleaned_up_goes_on_when_it_is_committed():
    """The log says the txid and no more: enough when ZooKeeper knows it as committed."""
    lost = Publication.lost("t", 4)
    assert Recovered(COMMITTED, OPEN) == reconciled({"a": (14, lost), "b": (24, publication(4))})


def test_a_table_whose_last_publication_was_cleaned_up_is_not_rolled_forward():
    """What was read for a txid is never guessed."""
    lost = Publication.lost("t", 5)
    with pytest.raises(RecoveryRefusedError, match="'a' holds txid 5, .* cleaned out of the log"):
        reconciled({"a": (15, lost), "b": (25, lost)})


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ((13, publication(4)), "in version 13, but ZooKeeper knows version 14"),
        ((15, publication(4)), "in version 15, but ZooKeeper knows version 14"),
        ((12, publication(5)), "in version 12, but ZooKeeper knows version 14"),
        ((14, publication(4).model_copy(update={"spouts": {"s": "p3"}})), "position of stream 's'"),
    ],
    ids=["lower", "higher", "ahead", "position"],
)
def test_another_table_in_the_place_of_the_right_one_is_refused(found, told):
    """It holds the right txid, in another version or with other positions than ZooKeeper knows."""
    tables = {"a": found, "b": (24, publication(4))}
    with pytest.raises(RecoveryRefusedError, match=f"Table 'a' .*{told}.* another table"):
        reconciled(tables)


def test_a_table_that_skips_and_holds_an_earlier_attempt_is_the_right_one():
    """What another stream has read meanwhile says nothing of a table that skipped the replay."""
    other = publication(4).model_copy(update={"spouts": {"s": "p4", "opaque": "old"}})
    known = COMMITTED.model_copy(update={"spouts": {"s": "p4", "opaque": "new"}})
    found = {"a": (14, other), "b": (24, publication(4))}
    progress = Progress(committed=known, batches=OPEN)
    streams = ("s", "opaque")
    assert Recovered(known, OPEN) == reconciled(
        found, progress=progress, streams=streams, skipping=["a"]
    )
    with pytest.raises(RecoveryRefusedError, match="stream 'opaque'"):
        reconciled(found, progress=progress, streams=streams)


def test_a_table_that_ought_to_be_there_is_missed_before_one_is_made():
    """Only where something was committed and ZooKeeper names it."""
    with pytest.raises(RecoveryRefusedError, match="Table 'b' holds txid none.*was deleted"):
        require_tables("t", COMMITTED, {"a": (14, publication(4)), "b": None})
    require_tables("t", COMMITTED, {"new": None})
    require_tables("t", CommittedRecord(), {"a": None})


@pytest.mark.parametrize(
    ("told", "alike"),
    [
        ({"at": [1763778000.123457], "n": 1}, True),
        ({"at": [1763778000.1234572], "n": 1}, False),
        ({"at": [1763778000.123457, 1.0], "n": 1}, False),
        ({"at": [1763778000.123457], "n": 2}, False),
        ({"at": [1763778000.123457]}, False),
    ],
)
def test_a_position_differs_from_the_last_digit_of_a_fraction_on(told, alike):
    """A table says its positions exactly, so any difference is one."""
    known = {"at": [1763778000.123457], "n": 1}
    committed = COMMITTED.model_copy(update={"spouts": {"s": known}})
    progress = Progress(committed=committed)
    found = {"a": (14, publication(4).model_copy(update={"spouts": {"s": told}}))}
    if alike:
        assert reconciled(found, progress=progress).committed == committed
    else:
        with pytest.raises(RecoveryRefusedError, match="another position of stream 's'"):
            reconciled(found, progress=progress)
