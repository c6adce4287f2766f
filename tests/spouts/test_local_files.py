"""`FileSpout` on a disk, without Spark: what it pins, lists and refuses."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spouts.files import FileBatch, FileSpout
from spouts.files.folder.listing import Listing
from txn.attempts import TransactionAttempt
from txn.errors import FailedException, StorageRefusedError, TopologyError

SCHEMA = StructType([StructField("value", StringType())])
FIRST = TransactionAttempt(1)
NO_SPARK: Any = None
NOBODY = 65534


def opened(pattern: Path | str, **arguments: Any) -> FileSpout:
    """A spout over text files that takes all that are there."""
    arguments = {"files_per_batch": 99} | arguments
    spout = FileSpout(str(pattern), format="text", schema=SCHEMA, **arguments)
    spout.open(NO_SPARK, None)
    return spout


def planned(spout: FileSpout, previous: FileBatch | None = None) -> FileBatch:
    """The next batch; there is one."""
    batch = spout.initialize_transaction(FIRST, previous)
    assert batch is not None
    return batch


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_file_that_is_replaced_while_it_is_read_fails_the_attempt(
    tmp_path: Path, scheme: str
) -> None:
    """Spark may have read either content, so neither is committed; what was read and then went is
    no fault.
    """
    file = tmp_path / "a.txt"
    file.write_text("one\n")
    os.utime(file, ns=(5, 5))
    spout = opened(f"{scheme}{tmp_path}/*.txt")
    batch = planned(spout)
    spout.check_read(FIRST, batch)
    file.write_text("two\n")
    with pytest.raises(FailedException, match=r"a\.txt changed after it was planned"):
        spout.check_read(FIRST, batch)
    file.unlink()
    spout.check_read(FIRST, batch)


FILES = ["^.txt", "a.txt", "b.txt", "d/y.txt", "d/e/z.txt", "d/_no/n.txt", "d/k=1/.h", "x/a.txt"]
PATTERNS = {
    "**": ["^.txt", "a.txt", "b.txt", "d/e/z.txt", "d/y.txt", "x/a.txt"],
    "**/*.txt": ["^.txt", "a.txt", "b.txt", "d/e/z.txt", "d/y.txt", "x/a.txt"],
    "d/**": ["d/e/z.txt", "d/y.txt"],
    "**/e/*": ["d/e/z.txt"],
    "*/*": ["d/y.txt", "x/a.txt"],
    "*/a.txt": ["x/a.txt"],
    "*/[!]a].txt": ["d/y.txt"],
    "[a-b].txt": ["a.txt", "b.txt"],
    "[!a].txt": ["^.txt", "b.txt"],
    "[^a].txt": ["^.txt", "a.txt"],
    "[a.txt": [],
    "d[+-9]y.txt": [],
    "?[!z]y.txt": [],
}


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_pattern_means_the_same_for_a_path_and_a_uri(tmp_path: Path, scheme: str) -> None:
    """`**` is any number of folders also where it ends the pattern, and `[!a]` all but one
    character, never a slash.
    """
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = {
        pattern: [
            name[len(f"{scheme}{tmp_path}/") :]
            for name in Listing(f"{scheme}{tmp_path}/{pattern}").names()
            if Path(name.removeprefix(scheme)).is_file()
        ]
        for pattern in PATTERNS
    }
    assert found == PATTERNS


@contextmanager
def as_nobody() -> Iterator[None]:
    """As a user whom permissions bind, if this one is root."""
    own = os.geteuid()
    if own == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(own)


@pytest.mark.parametrize("pattern", ["*/*.txt", "**/*.txt", "*/a.txt", "**"])
def test_a_subfolder_that_may_not_be_listed_is_not_no_files(pattern: str) -> None:
    """With `forget_missing`, files that are out of sight for a moment would be read twice."""
    with tempfile.TemporaryDirectory() as made:  # in a folder that everybody may enter
        Path(made).chmod(0o755)
        for folder in ("open", "shut"):
            Path(made, folder).mkdir()
            Path(made, folder, "a.txt").touch()
        spout = opened(f"{made}/{pattern}", forget_missing=True)
        with as_nobody():
            batch = planned(spout)
        assert len(batch.files) == 2
        Path(made, "shut").chmod(0)
        with as_nobody(), pytest.raises(StorageRefusedError, match=r"denied: '.*/shut"):
            spout.initialize_transaction(FIRST, batch)
        Path(made, "shut").chmod(0o755)
        with as_nobody():
            assert spout.initialize_transaction(FIRST, batch) is None


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path, scheme: str) -> None:
    """No position can have it; the error shows its bytes. Files before it are read first.

    A name that the pattern does not match is no fault.
    """
    (tmp_path / "a.txt").touch()
    (tmp_path / os.fsdecode(b"caf\xe9.csv")).touch()
    spout = opened(f"{scheme}{tmp_path}/*.txt")
    assert len(planned(spout).files) == 1
    spout = opened(f"{scheme}{tmp_path}/*")
    batch = planned(spout)
    assert len(batch.files) == 1
    with pytest.raises(TopologyError, match=r"caf\\xe9\.csv', .*Rename the file") as told:
        planned(spout, batch)
    assert told.value.number == "TXN-408"


@pytest.mark.parametrize("pattern", ["**/*.txt", "*.txt"])
def test_a_file_and_a_link_to_it_are_one(tmp_path: Path, pattern: str) -> None:
    """A link is a file only if the pattern does not reach the other end under its own name."""
    for name in ("in/a.txt", "in/..data/b.txt", "in/c.csv", "out/d.txt", "out/e.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("row\n")
    (tmp_path / "in" / "e.txt").symlink_to(tmp_path / "out" / "e.txt")
    links = {"again": "a.txt", "b": "..data/b.txt", "c": "c.csv", "d": "../out/d.txt", "l": "e.txt"}
    for name, to in links.items():
        (tmp_path / "in" / f"{name}.txt").symlink_to(to)
    (tmp_path / "linked").symlink_to("in")
    for base in ("in", "linked"):
        found = Listing(f"{tmp_path}/{base}/{pattern}").names()
        names = [name.rpartition("/")[2] for name in found]
        assert names == ["a.txt", "b.txt", "c.txt", "d.txt", "e.txt", "l.txt"]


def test_links_below_two_stars_are_not_followed(tmp_path: Path) -> None:
    """A link that leads up, to itself, or to a folder below has no file that is read once more."""
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "a.txt").write_text("row\n")
    for name, to in (("up", ".."), ("again", "deep"), ("self", "self"), ("self.txt", "self.txt")):
        (tmp_path / "in" / name).symlink_to(to)
    spout = opened(f"{tmp_path}/in/**/*.txt")
    batch = planned(spout)
    assert [file.path[len(f"{tmp_path}/in/") :] for file in batch.files] == ["deep/a.txt"]
    assert spout.initialize_transaction(TransactionAttempt(2), batch) is None
    assert Listing(f"{tmp_path}/in/*/*.txt").names() == [
        f"{tmp_path}/in/again/a.txt",
        f"{tmp_path}/in/deep/a.txt",
    ]
