"""A folder of files that was moved or copied is not read twice."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spouts.files import FileBatch, FileSpout
from txn.attempts import TransactionAttempt
from txn.errors import TopologyError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Source:
    """A folder, and what each new process reads of it."""

    def __init__(self, spark: SparkSession, folder: Path, scheme: str) -> None:
        self._spark = spark
        self.scheme = scheme
        self.folder = folder
        self.position: FileBatch | None = None
        folder.mkdir()

    def write(self, name: str, text: str) -> None:
        """Put a file into the folder."""
        (self.folder / name).write_text(text, "utf-8")

    def spelled(self, folder: Path) -> str:
        """The folder as the pattern has it."""
        return folder.name if self.scheme == "relative" else f"{self.scheme}{folder}"

    def read(self, **options: Any) -> list[str]:
        """Read until nothing is left, in a process of its own."""
        pattern = f"{self.spelled(self.folder)}/**/*.txt"
        spout = FileSpout(pattern, format="text", look_every_secs=0, **options)
        spout.open(self._spark, self.position)
        names: list[str] = []
        while (
            batch := spout.initialize_transaction(TransactionAttempt(1), self.position)
        ) is not None:
            self.position = FileBatch.model_validate_json(batch.model_dump_json())
            names += [Path(file.path).name for file in batch.files]
        return names


@pytest.fixture(params=["", "file://", "relative"], ids=["path", "uri", "relative"])
def source(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Source:
    """A folder with two files that were read."""
    monkeypatch.chdir(tmp_path)
    made = Source(spark, tmp_path / "first", request.param)
    made.write("a.txt", "one")
    (made.folder / "sub").mkdir()
    made.write("sub/b.txt", "three")
    assert made.read() == ["a.txt", "b.txt"]
    return made


def moved(source: Source, name: str) -> Path:
    """Move the folder; return where it was."""
    former = source.folder
    source.folder = source.folder.rename(source.folder.with_name(name))
    return former


def test_files_of_a_moved_folder_are_not_read_again(source: Source) -> None:
    """A folder of files that was moved or copied is not read twice: the start is refused, or the
    program says where the folder was. A later start need not say it any more.
    """
    former = moved(source, "second")
    assert source.read(moved_from=source.spelled(former)) == []
    source.write("c.txt", "four")
    assert source.read(moved_from=source.spelled(former)) == ["c.txt"]
    source.write("d.txt", "five")
    assert source.read() == ["d.txt"]
    former = moved(source, "third")
    source.write("e.txt", "six")
    assert source.read(moved_from=source.spelled(former)) == ["e.txt"]
    assert source.read() == []


def test_a_moved_folder_is_refused_and_the_advice_works(source: Source) -> None:
    """A folder of files that was moved or copied is not read twice: the start is refused, or the
    program says where the folder was. The error has what to say.
    """
    moved(source, "second")
    with pytest.raises(TopologyError, match="If the folder was moved or copied") as refused:
        source.read()
    advice = re.search(r"moved_from='([^']+)'", str(refused.value))
    assert refused.value.number == "TXN-408"
    assert advice is not None
    assert source.read(moved_from=advice[1]) == []


def test_a_copied_folder_is_refused_too(source: Source, tmp_path: Path) -> None:
    """The files where they were do not make those of the copy new; times of files do not count."""
    source.folder = Path(
        shutil.copytree(source.folder, tmp_path / "copy", copy_function=shutil.copy)
    )
    with pytest.raises(TopologyError, match="moved_from="):
        source.read()


def test_files_of_another_folder_are_read(source: Source, tmp_path: Path) -> None:
    """A pattern may be pointed at another folder: what is in it is new, unless files of the same
    name were read and are not there any more, or have the same size.
    """
    source.folder = tmp_path / "other"
    (source.folder / "sub").mkdir(parents=True)
    source.write("sub/b.txt", "seven!!")
    if source.scheme == "file://":  # the sizes of the files that were read cannot be asked for
        with pytest.raises(TopologyError, match="If these are other files, add moved_from=False"):
            source.read()
        assert source.read(moved_from=False) == ["b.txt"]
    else:
        assert source.read() == ["b.txt"]
    source.folder = tmp_path / "same"
    (source.folder / "sub").mkdir(parents=True)
    source.write("sub/b.txt", "eight!!")
    with pytest.raises(TopologyError, match="If these are other files, add moved_from=False"):
        source.read()
    assert source.read(moved_from=False) == ["b.txt"]


@pytest.mark.parametrize("wrong", ["", "first/sub"], ids=["above", "below"])
def test_a_folder_above_or_below_is_refused(source: Source, tmp_path: Path, wrong: str) -> None:
    """By its name no file is known, so all would be read a second time; the error has the right
    one.
    """
    former = moved(source, "second")
    inexact = source.spelled(tmp_path / wrong) if source.scheme != "relative" else wrong or "."
    with pytest.raises(TopologyError, match="known as those of '(.*)': name that") as refused:
        source.read(moved_from=inexact)
    advice = re.search(r"known as those of '([^']+)'", str(refused.value))
    assert advice is not None
    assert advice[1] == source.spelled(former)
    assert source.read(moved_from=advice[1]) == []


def test_a_move_is_noticed_whatever_became_of_the_newest_file(source: Source) -> None:
    """It grew before the move, or it is gone: the others are known all the same."""
    source.write("sub/b.txt", "three and more")
    moved(source, "second")
    with pytest.raises(TopologyError, match="If the folder was moved or copied"):
        source.read()
    (source.folder / "sub/b.txt").unlink()
    with pytest.raises(TopologyError, match="If the folder was moved or copied"):
        source.read()


def test_a_link_to_the_folder_is_the_folder(source: Source, tmp_path: Path) -> None:
    """Started by either path it reads each file once. A URI's storage knows no links: there it
    must be said.
    """
    said = {"moved_from": source.spelled(source.folder)} if source.scheme == "file://" else {}
    real = source.folder
    (tmp_path / "link").symlink_to(real)
    source.folder = tmp_path / "link"
    source.write("c.txt", "four")
    assert source.read(**said) == ["c.txt"]
    said = {"moved_from": source.spelled(source.folder)} if said else {}
    source.folder = real
    source.write("d.txt", "five")
    assert source.read(**said) == ["d.txt"]


def test_moved_from_is_a_folder_or_false() -> None:
    """Anything else is refused when the spout is made."""
    with pytest.raises(TopologyError, match="It is the folder in which the files were"):
        FileSpout("in/*.txt", format="text", moved_from=True)  # type: ignore[arg-type]


def test_moved_from_is_the_folder_of_the_newest_files(source: Source, tmp_path: Path) -> None:
    """Another one would make all files new."""
    moved(source, "second")
    with pytest.raises(TopologyError, match="the newest file that it read is "):
        source.read(moved_from=source.spelled(tmp_path / "third"))


def test_a_position_has_its_former_name_only_after_a_move(source: Source) -> None:
    """Earlier releases do not know that field."""
    assert source.position is not None
    assert "named_as" not in source.position.model_dump(mode="json")
    former = moved(source, "second")
    source.write("c.txt", "four")
    source.read(moved_from=source.spelled(former))
    assert source.position.named_as == f"{source.spelled(former)}/"


def test_files_that_lay_in_the_working_directory_are_known(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their former pattern had no folder: `moved_from="."`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("one", "utf-8")
    before = FileSpout("*.txt", format="text")
    before.open(spark, None)
    position = before.initialize_transaction(TransactionAttempt(1), None)
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").rename(tmp_path / "sub/a.txt")
    after = FileSpout("sub/*.txt", format="text", moved_from=".")
    after.open(spark, position)
    assert after.initialize_transaction(TransactionAttempt(2), position) is None
