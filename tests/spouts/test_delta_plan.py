"""Which versions count, over invented logs: no table, no Spark."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spouts.delta.log import AddedFile, SourceLog, SourceVersion
from spouts.delta.plan import Rules, final_version, next_batch, schema_difference
from txn.delta.commits import commit_path
from txn.errors import SourceChangedError

HISTORIES = 2000


def rules(semantics: str = "opaque", **other: Any) -> Rules:
    """How a table of these semantics is read, one version at a time."""
    how: dict[str, Any] = {
        "name": "DeltaSpout('t')",
        "table_id": "id",
        "schema": '{"fields": []}',
        "newest": '{"fields": []}',
        "waits": semantics != "transactional",
        "replaces": semantics == "opaque",
        "changes": False,
        "versions_per_batch": 1,
        "bytes_per_batch": None,
    }
    return Rules(**{**how, **other})


def file(name: str, txid: int | None = None, size: int = 1) -> AddedFile:
    """A file whose rows all have one txid, or none."""
    return AddedFile(name, size, 1, (), txid and (txid, txid), False)


def version(number: int, *adds: AddedFile, **other: Any) -> SourceVersion:
    """A commit file; without files somebody's OPTIMIZE."""
    how = {"takes_rows": False, "metadata": None, "publication": None, "settled": 0, **other}
    return SourceVersion(number, "OPTIMIZE", adds, **how)


class Upstream:
    """A topology over an append table: commits, crashes, fences, marks; and what stands in it."""

    def __init__(self, chance: random.Random, *, replaces: bool) -> None:
        self.chance = chance
        self.replaces = replaces
        self.log: list[SourceVersion] = [version(0)]
        self.committed = 0
        self.published: dict[str, int] = {}
        self.stranger: set[str] = set()

    def step(self) -> None:
        """One thing that may happen to the log."""
        kind = self.chance.choice(["publish", "publish", "commit", "settle", "other", "stranger"])
        number, txid = len(self.log), self.committed + 1
        if kind == "publish":
            name, kept = f"{number}", [f for f, t in self.published.items() if t < txid]
            adds = [file(name, txid)] if self.chance.random() < 0.9 else []
            if self.replaces:
                # Rows of older txids that OPTIMIZE had mixed with a dead attempt's come along.
                adds += [file(f"old-{number}", self.published[f]) for f in kept[-1:]]
                self.published = {f: self.published[f] for f in kept}
            self.published.update({name: txid} if adds and adds[0].path == name else {})
            self.log.append(version(number, *adds, publication=(txid, txid), takes_rows=True))
        elif kind == "commit" and any(c.publication == (txid, txid) for c in self.log):
            self.committed = txid
        elif kind == "settle":
            self.log.append(version(number, settled=self.committed))
        elif kind == "other":
            self.log.append(version(number))
        elif kind == "stranger":
            self.stranger.add(f"{number}")
            self.log.append(version(number, file(f"{number}")))


def taken(log: list[SourceVersion], how: Rules, position: int, txid: int) -> Any:
    """The next batch behind a position."""
    return next_batch((c for c in log if c.version > position), how, txid)


@pytest.mark.parametrize("semantics", ["opaque", "non_transactional"])
def test_every_committed_row_comes_once_over_random_histories(semantics: str) -> None:
    """Whatever is replayed, and whenever the table is read: each row of a committed txid is
    delivered once, in txid order, and no row of a dead attempt ever.
    """
    waited = replaced = 0
    for seed in range(HISTORIES):
        chance = random.Random(seed)
        upstream = Upstream(chance, replaces=semantics == "opaque")
        how = rules(semantics, versions_per_batch=chance.choice([1, 2, 5]))
        position, txid, delivered = -1, 0, []

        def read(
            upstream: Upstream = upstream, how: Rules = how, delivered: list[str] = delivered
        ) -> None:
            nonlocal position, txid
            batch = taken(upstream.log, how, position, txid)
            delivered += [f.path for c in batch.versions for f in c.files]
            position, txid = max(position, batch.last_version), batch.txid

        for _ in range(chance.randrange(5, 40)):
            upstream.step()
            if chance.random() < 0.4:
                read()
                final = {f for f, t in upstream.published.items() if t <= upstream.committed}
                assert set(delivered) <= final | upstream.stranger, seed
        waited += position < len(upstream.log) - 1
        replaced += sum(c.publication is not None for c in upstream.log) > upstream.committed
        upstream.log.append(version(len(upstream.log), settled=upstream.committed))
        for _ in upstream.log:
            read()
        final = {f for f, t in upstream.published.items() if t <= upstream.committed}
        assert len(delivered) == len(set(delivered)), seed
        before = [c.publication for c in upstream.log if c.publication]
        if not before or before[-1][1] <= upstream.committed:
            assert set(delivered) == final | upstream.stranger, seed
    assert (waited > HISTORIES / 4, replaced > HISTORIES / 4) == (True, True)


def test_a_publication_counts_when_a_later_one_stands() -> None:
    """The next txid's publication says that this one was committed; nothing else need."""
    log = [version(0), version(1, file("a", 1), publication=(1, 1))]
    assert taken(log, rules(), -1, 0).versions == []
    log.append(version(2, file("b", 2), publication=(2, 2)))
    batch = taken(log, rules(), -1, 0)
    assert [f.path for c in batch.versions for f in c.files] == ["a"]
    assert (batch.last_version, batch.txid) == (1, 0)


def test_part_of_a_grouped_publication_may_be_replaced() -> None:
    """Of txids published together, those that a later publication does not replace are read."""
    log = [
        version(1, file("a", 1), file("b", 2), publication=(1, 2), takes_rows=False),
        version(2, file("c", 2), publication=(2, 2), takes_rows=True),
        version(3, settled=2),
    ]
    batch = taken(log, rules(versions_per_batch=2), 0, 0)
    assert [[f.path for f in c.files] for c in batch.versions] == [["a"], ["c"]]
    assert [c.below for c in batch.versions] == [2, None]


def test_a_final_txid_that_is_published_again_is_refused() -> None:
    """A writing topology that forgot what it had committed is noticed by its readers."""
    log = [version(3, settled=4), version(4, file("x", 4), publication=(4, 4))]
    with pytest.raises(SourceChangedError, match=r"version 4 publishes txid 4 again.* 4 was commi"):
        taken(log, rules(), 2, 3)


def test_what_lies_before_a_refused_version_is_delivered() -> None:
    """A version that cannot be read stops the spout at its turn, and not before."""
    log = [version(1, file("a")), version(2, takes_rows=True), version(3, file("b"))]
    how = rules("transactional", versions_per_batch=9)
    assert taken(log, how, 0, 0).last_version == 1
    with pytest.raises(SourceChangedError, match="version 2 .* removes or rewrites rows"):
        taken(log, how, 1, 0)


def test_a_batch_ends_at_its_limits() -> None:
    """By versions with rows, by bytes, with at least one version; empty versions are no cost."""
    log = [version(n, *([file(f"{n}", size=10)] if n % 2 else [])) for n in range(8)]
    plain = {"semantics": "transactional"}
    assert taken(log, rules(**plain, versions_per_batch=2), -1, 0).last_version == 3
    assert taken(log, rules(**plain, versions_per_batch=9), -1, 0).last_version == 7
    by_bytes = rules(**plain, versions_per_batch=9, bytes_per_batch=25)
    assert taken(log, by_bytes, -1, 0).last_version == 4
    assert taken(log, rules(**plain, versions_per_batch=9, bytes_per_batch=1), -1, 0).passed == 2


def test_no_more_of_the_log_is_read_than_is_needed() -> None:
    """A long history is not read to its end for each batch."""
    read = []

    def log() -> Iterator[SourceVersion]:
        for number in range(1000):
            read.append(number)
            yield version(number, file(f"{number}"))

    next_batch(log(), rules("transactional", versions_per_batch=3), 0)
    assert len(read) == 3


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ([version(0), version(1)], 1),
        ([version(0), version(1, publication=(1, 1)), version(2)], 0),
        ([version(0), version(1, publication=(1, 1)), version(2, settled=1)], 2),
        ([version(0), version(1, publication=(1, 1)), version(2, publication=(2, 2))], 1),
        ([version(0), version(1, publication=(1, 1)), version(2, publication=(1, 1))], 0),
    ],
)
def test_the_newest_final_version(log: list[SourceVersion], expected: int) -> None:
    """`start="latest"` begins behind what nothing can replace any more."""
    assert final_version(reversed(log), len(log) - 1) == expected


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        ('[{"name": "a", "type": "long", "nullable": false, "metadata": {"comment": "x"}}]', None),
        ('[{"name": "a", "type": "string"}]', "'a' is string, not long"),
        ('[{"name": "a", "type": "long"}, {"name": "b", "type": "long"}]', "'b' is long, not abs"),
        ("[]", "'a' is absent, not long"),
    ],
)
def test_schemas_differ_by_names_and_types(found: str, difference: str | None) -> None:
    """Nullability and comments make no difference; the first column that does is named."""
    known = '{"fields": [{"name": "a", "type": "long", "nullable": true}]}'
    found = f'{{"fields": {found}}}'
    said = schema_difference(known, found, found)
    assert said == difference or (difference and str(said).startswith(difference))


def columns(*columns: Any, loose: bool = True) -> str:
    """JSON of a schema: names of strings, or (name, columns within it)."""
    fields = [
        {"name": c, "type": "string", "nullable": loose}
        if isinstance(c, str)
        else {"name": c[0], "type": json.loads(columns_within(c)), "nullable": loose}
        for c in columns
    ]
    return json.dumps({"type": "struct", "fields": fields})


def columns_within(column: tuple[str, list[Any]]) -> str:
    """The type of a column that is a list of structs."""
    within = json.loads(columns(*column[1]))
    return json.dumps({"type": "array", "elementType": within, "containsNull": True})


@pytest.mark.parametrize(
    ("found", "newest", "difference"),
    [
        (columns("a"), columns("b", "a", ("s", ["x", "y"])), None),
        (columns("a", ("s", ["y"])), columns("a", "b", ("s", ["x", "y"])), None),
        (columns("b", "a", ("s", ["y", "x"])), columns("a"), None),
        (columns("a", ("s", ["x", "y"])), columns("a", ("s", ["x", "y"])), "'b' is absent"),
        (columns("a", "b", ("s", ["y"])), columns("a", "b"), "'s.elementType.x' is absent"),
        (columns("a", "b", "s"), columns("a"), "'s' is string, not array"),
        (columns("a", "b", ("s", ["x", "y", "z"])), columns("a"), "'s.elementType.z' is string, n"),
    ],
)
def test_a_version_may_lack_columns_that_the_table_got_later(
    found: str, newest: str, difference: str | None
) -> None:
    """Nullable ones, within others too, in whatever order; not those that it has no more."""
    said = schema_difference(columns("a", "b", ("s", ["x", "y"])), found, newest)
    assert (said or "")[: len(difference or "")] == (difference or "")
    strict = columns("a", "b", ("s", ["x", "y"]), loose=False)
    if found == columns("a"):
        assert schema_difference(strict, found, newest) == "'b' is absent, not string"


@pytest.mark.parametrize(
    "text",
    [
        b'{"commitInfo": {"txn": ""}}',
        b'{"commitInfo": {"txn": false}}',
        b'{"commitInfo": {"txn": {"first_txid": 2, "last_txid": 1}}}',
        b'{"commitInfo": {"txn": {"first_txid": "1", "last_txid": "1"}}}',
        b'{"add": {"path": "a", "size": "x", "dataChange": true}}',
        b"[]",
        b"{",
        b"[" * 100_000,
    ],
)
def test_a_commit_that_is_none_is_refused_by_version(tmp_path: Path, text: bytes) -> None:
    """Somebody else's log is read as strictly as our own."""
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / commit_path(7)).write_bytes(text)
    with pytest.raises(SourceChangedError, match="Version 7 of source table .* cannot be read"):
        SourceLog(str(tmp_path)).read(7)
