"""Logs, names and folders that somebody made up: nothing outside of the table is touched."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from committers.append_table import AppendTable
from committers.log_layout.intents import Intents
from committers.publishing.files import require_inside
from committers.staging.area import StagingArea
from txn.delta.commits import parse_commit
from txn.errors import RecoveryRefusedError, TableRefusedError, TopologyError
from txn.interfaces import COMPACTION_KEY
from txn.storage.storage import Storage

PUBLICATION = {
    "topology": "t",
    "epoch": 1,
    "first_txid": 1,
    "last_txid": 1,
    "attempt_id": 0,
}


def commit(*actions: dict[str, Any]) -> bytes:
    return b"\n".join(json.dumps(action).encode() for action in actions)


def add(path: str, **more: Any) -> dict[str, Any]:
    return {"add": {"path": path, "size": 1, "partitionValues": {}, "dataChange": True, **more}}


@pytest.mark.parametrize(
    "path",
    [
        "../outside.parquet",
        "data/../../outside.parquet",
        "%2e%2e/outside.parquet",
        "data/%2E%2E%2f..%2foutside.parquet",
        "/etc/passwd",
        "%2Fetc%2Fpasswd",
        "file:/etc/passwd",
        "s3://bucket/other.parquet",
        "data/a%00b.parquet",
        "",
    ],
)
@pytest.mark.parametrize("action", ["add", "remove"])
def test_a_file_outside_of_the_tables_folder_is_refused(action: str, path: str) -> None:
    """A table's log that names a file outside the table's folder is refused, and no file is opened.

    However it is spelled: a shallow clone has such files, and so has a log that was changed.
    """
    named = add(path) if action == "add" else {"remove": {"path": path}}
    with pytest.raises(RecoveryRefusedError, match=r"outside of the table's folder: ") as error:
        require_inside(parse_commit(7, commit(named), "warehouse/t"), "warehouse/t")
    assert str(error.value).startswith("Version 7 of table warehouse/t names ")


@pytest.mark.parametrize("path", ["data/7-0-ab/part-0.parquet", "a%20b/c..d/..e", "x=..%2e/p"])
def test_ordinary_files_are_accepted(path: str) -> None:
    """Dots within names, and encoded characters, are no way out."""
    found = parse_commit(7, commit(add(path)), "t")
    assert len(found.adds) == 1
    assert not found.elsewhere


def test_a_table_whose_log_points_elsewhere_is_not_opened(warehouse: Path) -> None:
    """The check is made where the whole table is loaded, too."""
    from tests.delta.publishing import append

    table = warehouse / "t"
    append(table, None, None)
    log = table / "_delta_log" / f"{1:020d}.json"
    log.write_bytes(commit(add("../../secret.parquet", modificationTime=0, stats="{}")))
    from deltalake import DeltaTable

    from committers.publishing.files import load_files

    with pytest.raises(RecoveryRefusedError, match="outside of the table's folder"):
        load_files(DeltaTable(str(table)))


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"[]",
        b"7",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"add": 7}',
        b'{"add": {"size": 1}}',
        b'{"add": {"path": 7, "size": 1}}',
        b'{"add": {"path": "a", "size": null}}',
        b'{"add": {"path": "a", "size": -1}}',
        b'{"add": {"path": "a", "size": NaN}}',
        b'{"add": {"path": "a", "size": 1, "stats": "[]"}}',
        b'{"add": {"path": "a", "size": 1, "stats": "{"}}',
        b'{"remove": []}',
        b'{"commitInfo": 7}',
        b'{"commitInfo": {"timestamp": "x"}}',
        b'{"commitInfo": {"timestamp": 1e999}}',
        b'{"commitInfo": {"txn_fence": 7}}',
        b'{"commitInfo": {"txn_fence": {"epoch": 1}}}',
        b'{"commitInfo": {"txn_fence": {"epoch": "1", "last": null}}}',
        b'{"commitInfo": {"txn_fence": {"epoch": 1, "last": {"version": "x"}}}}',
        b'{"commitInfo": {"txn_settled": {"epoch": 1, "last": null}}}',
        b'{"commitInfo": {"txn_settled": {"epoch": 1, "last": null, "txid": null}}}',
    ],
)
def test_a_commit_that_is_none_is_refused_by_version(text: bytes) -> None:
    """Never a bare error of Python's, and never half of what it says."""
    with pytest.raises(RecoveryRefusedError, match="Version 7 of table t"):
        parse_commit(7, text, "t")


@pytest.mark.parametrize(
    "changes",
    [
        {"first_txid": 0},
        {"first_txid": 2},
        {"last_txid": 10**18},
        {"first_txid": 1, "last_txid": 10**18},
        {"epoch": -1},
        {"members": [{"txid": 5, "attempt_id": 0}]},
        {"members": [{"txid": 1, "attempt_id": 0}, {"txid": 3, "attempt_id": 0}], "last_txid": 3},
        {"format": 2},
        {"surprise": 1},
    ],
)
def test_a_publication_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    """Its txids are counted up to by others: a huge last one must not be believed."""
    text = commit({"commitInfo": {"txn": {**PUBLICATION, **changes}}})
    with pytest.raises(RecoveryRefusedError, match="publication"):
        parse_commit(7, text, "t")


def test_a_commit_of_gigabytes_is_refused_before_it_is_read(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is larger than any commit is not taken into memory as a whole."""
    from txn.storage import storage

    log = warehouse / "t" / "_delta_log"
    log.mkdir(parents=True)
    monkeypatch.setattr(storage, "READ_LIMIT", 1_000_000)
    path = f"_delta_log/{0:020d}.json"
    with (warehouse / "t" / path).open("wb") as file:
        file.truncate(50 * 1024**3)  # a hole: no byte of it is on the disk
    with pytest.raises(RecoveryRefusedError, match="more than 1,000,000 bytes"):
        Storage(str(warehouse / "t")).read(path)


# --- folders ---------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with somebody else's file."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_text("keep me")
    return folder


def test_a_sweep_never_leaves_the_tables_folder(warehouse: Path, outside: Path) -> None:
    """Clean-up deletes nothing outside the table's folder, whatever links lead out of it."""
    table = warehouse / "t"
    for area in ("data", "_txn"):
        (table / area).mkdir(parents=True)
        (table / area / "9-0-abc").symlink_to(outside, target_is_directory=True)
        (table / area / "8-0-abc").mkdir()
        (table / area / "8-0-abc" / "link").symlink_to(outside, target_is_directory=True)
    (table / "_txn" / "compaction-1").symlink_to(outside, target_is_directory=True)
    (outside / "intent.json").write_text('{"version": 0}')
    storage = Storage(str(table))
    area_of_table = StagingArea(storage)
    found = area_of_table.folders()
    Intents(storage, lambda: "x").sweep(found, 0, (), lambda _: None)
    area_of_table.sweep(found, 0, ())
    assert sorted(os.listdir(outside)) == ["intent.json", "precious"]
    assert (outside / "precious").read_text() == "keep me"
    assert not (table / "data" / "8-0-abc").exists()


@pytest.mark.parametrize(
    "intent",
    [b"", b"[]", b"7", b"{}", b'{"version": null}', b'{"version": 1e999}', b"[" * 100_000, b"\xff"],
)
def test_an_intent_that_is_none_deletes_nothing(warehouse: Path, intent: bytes) -> None:
    """A compaction whose intent cannot be read keeps its files for VACUUM."""
    table = warehouse / "t"
    (table / "_txn" / "compaction-1").mkdir(parents=True)
    (table / "data" / "compaction-1").mkdir(parents=True)
    (table / "_txn" / "compaction-1" / "intent.json").write_bytes(intent)
    storage = Storage(str(table))
    found = StagingArea(storage).folders()
    Intents(storage, lambda: "x").sweep(found, 5, (), lambda _: None)
    assert "_txn/compaction-1" in found
    assert (table / "data" / "compaction-1").is_dir()


@pytest.mark.parametrize(
    "location",
    ["a\0b", "a\nb", "a\x1b[2Jb", "a\u202eb", "a\ud800b", "x" * 5000, "nowhere://a/b", "s3://"],
)
def test_table_folders_that_cannot_be(location: str) -> None:
    """A path that no storage has, or that shows as another one, is refused when it is given."""
    with pytest.raises(TopologyError, match="[Ff]older"):
        AppendTable(location)


def test_a_long_folder_is_measured_in_bytes() -> None:
    """The limit is one of bytes, and so is the number that the message has."""
    with pytest.raises(TopologyError, match="has 3201 bytes, which a table's path cannot have"):
        AppendTable("/" + "é" * 1600)


@pytest.mark.parametrize("name", ["a#b", "a?b", "p%41q", "a/#"])
def test_folders_of_a_store_that_libraries_take_for_others(name: str) -> None:
    """Delta-rs would make the table in the folder before the character, and then not find it."""
    with pytest.raises(TopologyError, match="which Delta's library takes for") as error:
        AppendTable(f"s3://bucket/{name}")
    assert error.value.number == "TXN-121"


def test_a_local_folder_with_a_backslash_is_refused() -> None:
    """Delta-rs takes it for a slash when it loads a table: it would load that of `a/b`."""
    with pytest.raises(TopologyError, match=r"has '\\' in its path, .* for a slash") as error:
        AppendTable("lake/a\\b")
    assert error.value.number == "TXN-121"


def test_deleting_asks_for_a_folder_below() -> None:
    """The table's own folder is never deleted."""
    with pytest.raises(ValueError, match="never deleted"):
        Storage("t").delete_folder("")


@pytest.mark.parametrize(
    "changed",
    [
        {"txn.keys": "7"},
        {"txn.keys": "[7]"},
        {"txn.values": "[[]]"},
        {"txn.values": '["x"]'},
        {"txn.values": "{"},
        {"txn.values": "[" * 100_000},
        {"txn.buckets": "many"},
        {"txn.buckets": "-1"},
        {"txn.buckets": "9" * 30},
    ],
)
def test_a_state_table_that_describes_itself_wrongly(changed: dict[str, str]) -> None:
    """Readers refuse properties that no topology wrote."""
    from committers.state.properties import shape_of

    properties = {"txn.kind": "upsert", "txn.keys": '["k"]', "txn.values": '[["v", "Count()"]]'}
    assert shape_of(properties, "t").keys == ("k",)
    with pytest.raises(TableRefusedError, match="does not describe itself"):
        shape_of({**properties, **changed}, "t")


def test_a_compaction_mark_is_read_with_the_same_care() -> None:
    """Its `settled` is acted on, and the txids of what was compacted, which are final."""
    mark = {"epoch": 1, "last": None, "txids": [1, 2], "settled": 1}
    assert parse_commit(7, commit({"commitInfo": {COMPACTION_KEY: mark}}), "t").settled_txid == 2
    for wrong in ({"settled": "x"}, {"txids": None}, {"txids": [2, 1]}, {"txids": ["1", 2]}):
        with pytest.raises(RecoveryRefusedError, match="cannot be read"):
            parse_commit(7, commit({"commitInfo": {COMPACTION_KEY: {**mark, **wrong}}}), "t")


def test_metadata_at_the_limit_of_depth_can_be_read_again(warehouse: Path) -> None:
    """What may be planned may be published: Delta's library reads the commit, and so do we."""
    from deltalake import DeltaTable

    from tests.delta.publishing import publish
    from txn.protocol.encoding import DEPTH_LIMIT

    value: Any = 1
    for _ in range(DEPTH_LIMIT - 1):
        value = {"x": value}
    publish(warehouse / "t", 1, spouts={"s": value}, read={"s": value})
    table = DeltaTable(str(warehouse / "t"))
    assert table.history(1)[0]["txn"] is not None
    text = (warehouse / "t" / "_delta_log" / f"{0:020d}.json").read_bytes()
    found = parse_commit(0, text, "t").publication
    assert found is not None
    assert found.spouts == {"s": value}
