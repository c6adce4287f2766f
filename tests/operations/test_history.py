from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tests.dashboard.made_logs import append_version, made_table
from tests.dashboard.made_logs import publication as made_publication
from tests.delta.publishing import append, publication, publish
from txn.errors import RecoveryRefusedError, UserError
from txn.interfaces import Publication
from txn.operations.history import history
from txn.operations.table_logs import recent_publications, table_log


def test_history_puts_the_tables_together(tmp_path: Path) -> None:
    """Each txid has the rows and versions of every table, newest first."""
    a, b = tmp_path / "a", tmp_path / "b"
    for txid in (1, 2):
        publish(a, txid)
        publish(b, txid, rows=txid)
    append(b, None, None)  # somebody's OPTIMIZE
    publish(b, 3)
    newest, second, first = history("t", [str(a), str(b)], committed=2)
    assert (newest.txid, newest.committed, newest.tables) == (3, False, {str(b): 3})
    assert (second.txid, second.committed) == (2, True)
    assert second.rows == {str(a): 20, str(b): 2}
    assert (first.txid, first.read) == (1, {"s": 1})
    assert first.timestamp_ms > 1_600_000_000_000


def test_history_without_zookeeper_takes_what_all_tables_hold(tmp_path: Path) -> None:
    """Without a committed txid, those that every table holds count as committed."""
    a, b = tmp_path / "a", tmp_path / "b"
    publish(a, 1)
    publish(a, 2)
    publish(b, 1)
    entries = history("t", [str(a), str(b)])
    assert [(entry.txid, entry.committed) for entry in entries] == [(2, False), (1, True)]


def test_the_last_publication_of_a_txid_counts(tmp_path: Path) -> None:
    """A txid that was published again by a replay is told as the replay has it."""
    publish(tmp_path / "a", 1)
    publish(tmp_path / "a", 1, attempt=1, epoch=2)
    (entry,) = history("t", [str(tmp_path / "a")], committed=1)
    assert (entry.attempt_id, entry.epoch, list(entry.tables.values())) == (1, 2, [1])


def test_a_txid_that_was_committed_empty_is_marked(tmp_path: Path) -> None:
    """With its error, and as a square of its own in a plot."""
    table = made_table(tmp_path / "a", {"x": "long"})
    append_version(table, 1, made_publication(1, quarantined="ValueError: bad", rows=0))
    append_version(table, 2, made_publication(2))
    newest, emptied = history("t", [str(table)])
    assert (newest.quarantined, emptied.quarantined) == (None, "ValueError: bad")
    assert [each.to_json()["quarantined"] for each in (newest, emptied)] == [
        None,
        "ValueError: bad",
    ]
    assert [each.facts().quarantined for each in (newest, emptied)] == [False, True]


def test_history_is_limited(tmp_path: Path) -> None:
    """Only as many of the newest txids as were asked for are told."""
    for txid in range(1, 6):
        publish(tmp_path / "a", txid)
    assert [e.txid for e in history("t", [str(tmp_path / "a")], 5, limit=2)] == [5, 4]


def test_publications_of_other_topologies_are_left_out(tmp_path: Path) -> None:
    """A table may have changed hands; history is that of one topology."""
    publish(tmp_path / "a", 7, topology="before")
    publish(tmp_path / "a", 1)
    assert [entry.txid for entry in history("t", [str(tmp_path / "a")], 1)] == [1]


def test_recent_publications_are_those_of_the_last_two_txids(tmp_path: Path) -> None:
    """Rebuilding needs the newest txid, all its attempts, and the one before it."""
    for txid, attempt in ((1, 0), (2, 0), (3, 0), (3, 1)):
        publish(tmp_path / "a", txid, attempt)
    found = recent_publications(table_log(str(tmp_path / "a")), "t")
    assert [(v, p.last_txid, p.attempt_id) for v, p in found] == [(3, 3, 1), (2, 3, 0), (1, 2, 0)]


@pytest.mark.parametrize(
    ("key", "own"),
    [("txn_fence", {}), ("txn_settled", {"txid": 4}), ("txn_compaction", {"txids": [1, 4]})],
)
def test_a_mark_tells_of_a_publication_whose_file_is_gone(
    tmp_path: Path, key: str, own: dict[str, Any]
) -> None:
    """When old commit files were cleaned up, any other version of ours has the last publication."""
    table = tmp_path / "a"
    publish(table, 4)
    last = {"version": 0, "publication": publication(4)}
    append(table, key, {"topology": "t", "epoch": 2, "last": last, **own}, epoch=2)
    DeltaTable(str(table)).create_checkpoint()
    (table / "_delta_log" / f"{0:020d}.json").unlink()
    log = table_log(str(table))
    assert log.epoch("t") == 2
    assert [(v, p.last_txid) for v, p in recent_publications(log, "t")] == [(0, 4)]


def test_a_log_that_lost_its_last_publication_is_no_empty_table(tmp_path: Path) -> None:
    """The table is known to hold a txid, so "nothing was ever published" is refused."""
    table = tmp_path / "a"
    write_deltalake(
        str(table),
        pa.table({"x": [1]}),
        commit_properties=CommitProperties(app_transactions=[Transaction("txn/t", 4)]),
    )
    with pytest.raises(RecoveryRefusedError, match="holds txid 4 .* cleaned out of the log"):
        recent_publications(table_log(str(table)), "t")
    assert [] == recent_publications(table_log(str(table)), "another")


def test_a_mark_that_repeats_a_lost_publication_tells_nothing(tmp_path: Path) -> None:
    """The positions that it lacks are not taken for "nothing was read"."""
    table = tmp_path / "a"
    lost = {"version": 0, "publication": Publication.lost("t", 4).model_dump(mode="json")}
    write_deltalake(
        str(table),
        pa.table({"x": [1]}),
        commit_properties=CommitProperties(
            custom_metadata={"txn_fence": {"topology": "t", "epoch": 2, "last": lost}},
            app_transactions=[Transaction("txn/t", 4)],
        ),
    )
    with pytest.raises(RecoveryRefusedError, match="holds txid 4 .* cleaned out of the log"):
        recent_publications(table_log(str(table)), "t")


def test_missing_table_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path that leads nowhere is told together with the working directory."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"no Delta table at 'tables/a'.*'{tmp_path}'"):
        history("t", ["tables/a"])


@pytest.mark.parametrize("value", [{"format": 2}, {**publication(1), "format": 2}, "text"])
def test_unknown_publication_is_refused(tmp_path: Path, value: Any) -> None:
    """A publication of a newer format is never passed over."""
    append(tmp_path / "a", "txn", value)
    with pytest.raises(RecoveryRefusedError, match="Version 0 of table"):
        history("t", [str(tmp_path / "a")])
