"""Many rows, some malformed, a driver that is killed again and again, and then the corrections."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from tests.faults.harness import Driver, Spec, drivers, wait_for
from tests.faults.row_replay_driver import build
from tests.faults.support import rows_of
from txn.backends import open_backend
from txn.operations.rows.row_replays import export_rows, replay_rows

if TYPE_CHECKING:
    from txn.embedded import EmbeddedZooKeeper

Row = tuple[int, str, int]
KILLS = 5


class RowDriver(Driver):
    """A process that reads the files of its folder."""

    module = "tests.faults.row_replay_driver"


def row(number: int) -> Row:
    """The record of that number, as it should be."""
    return (number, f"k{number % 7}", number * 31 % 1009)


def is_malformed(number: int) -> bool:
    """One in a thousand, at another place of each thousand."""
    return number % 1000 == number // 1000 * 7 % 1000


def line(number: int, form: str) -> str:
    """The record as it stands in its file: malformed in one of two ways, or good."""
    identity, key, value = row(number)
    if form == "csv":
        good, wrong, surplus = f"{identity},{key},{value}", f"{identity},{key},x{value}", ",more"
        broken = [wrong, good + surplus]
    else:
        good = json.dumps({"id": identity, "k": key, "v": value})
        broken = [good.replace(f": {value}}}", f': "x{value}"}}'), good[:-1]]
    return broken[number // 1000 % 2] if is_malformed(number) else good


def corrected(text: str, form: str) -> str:
    """A malformed record, mended."""
    if form == "csv":
        return ",".join(text.split(",")[:3]).replace(",x", ",")
    return (text if text.endswith("}") else text + "}").replace('"x', "").replace('"}', "}")


def write_files(folder: Path, form: str, count: int, files: int) -> None:
    """So many records in so many files."""
    (folder / "in").mkdir(parents=True)
    each = count // files
    for file in range(files):
        lines = ["id,k,v"] if form == "csv" else []
        lines += [line(number, form) for number in range(file * each, (file + 1) * each)]
        (folder / "in" / f"{file:04d}.{form}").write_text("\n".join([*lines, ""]))


def require_rows(folder: Path, numbers: Sequence[int]) -> None:
    """Hold rows and totals against plain Python's: each record once."""
    table = deltalake.DeltaTable(str(folder / "rows")).to_pyarrow_table(columns=["id", "k", "v"])
    columns = zip(*(row(number) for number in numbers), strict=True)
    expected = pa.table(dict(zip(("id", "k", "v"), map(list, columns), strict=True)))
    assert table.sort_by("id").cast(expected.schema).equals(expected)
    counts, totals = Counter[str](), Counter[str]()
    for _, key, value in map(row, numbers):
        counts[key] += 1
        totals[key] += value
    assert rows_of(folder / "totals", "k", "n", "total") == sorted(
        (key, counts[key], totals[key]) for key in counts
    )


def kill_at_random(start: Callable[..., Driver], spec: Spec, files: int) -> None:
    """Start drivers and kill each at a moment by chance, before all files are read."""
    chance = random.Random(files)
    for _ in range(KILLS):
        driver = start(spec, warm=True)
        points = chance.randrange(1, files)
        wait_for(
            lambda driver=driver, points=points: len(driver.points()) >= points,
            what=driver.stderr,
            gone=lambda driver=driver: driver.process.poll() is not None,
        )
        driver.send(signal.SIGKILL)
        assert driver.wait() == -signal.SIGKILL


@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize(("count", "files"), [(20_000, 20), (1_000_000, 40)], ids=["few", "many"])
def test_corrected_rows_of_many_go_in_once_though_the_driver_is_killed(
    tmp_path: Path, zookeeper: EmbeddedZooKeeper, form: str, count: int, files: int
) -> None:
    """Killed five times, the driver leaves each good row in the tables and each malformed one
    aside, once; corrected, those are in the tables once as well.
    """
    folder = tmp_path / form
    write_files(folder, form, count, files)
    bad = [number for number in range(count) if is_malformed(number)]
    assert len(bad) == count // 1000
    spec = Spec(folder=str(folder), zookeeper=f"{zookeeper.hosts}/{tmp_path.name}")
    with drivers(RowDriver) as start:
        kill_at_random(start, spec, files)
        read = start(spec, warm=True).report()["committed_txid"]
        require_rows(folder, [number for number in range(count) if not is_malformed(number)])
        aside = rows_of(folder / "bad", "row")
        assert aside == sorted((line(number, form),) for number in bad)

        topology, file = build(spec), folder / "open"
        with open_backend(spec.zookeeper, topology.settings) as backend:
            exported = export_rows(topology, backend, "records", file)
        assert exported.rules == {"parses": len(bad)}
        header, lines = ([], file.read_text().splitlines())
        if form == "csv":
            header, lines = lines[:1], lines[1:]
        mended = [corrected(text, form) for text in lines]
        file.write_text("\n".join([*header, *mended, ""]))
        for _ in range(2):
            with open_backend(spec.zookeeper, topology.settings) as backend:
                replayed = replay_rows(
                    topology,
                    backend,
                    "records",
                    file,
                    number=exported.number,
                    up_to=exported.up_to,
                )
        assert (replayed.rows, replayed.again) == (len(bad), True)
        assert start(spec, warm=True).report()["committed_txid"] == read + 1
    require_rows(folder, range(count))
    assert rows_of(folder / "bad", "row") == aside
