"""The same tests on every Spark, Python and Java that go together, and one table of the results.

make test-matrix                         each Spark with each Java, and with each Python: hours
make test-matrix ARGS=--quick            a smaller part of each
make test-matrix ARGS='--spark 3.5.9 --python 3.11 --java 17 --part core,kafka'
make test-matrix ARGS=--all              every Spark with every Python on every Java

Each has a virtual environment in build/matrix, which a second run finds there. Sparks that are
not on the index as wheels may lie in a folder that PIP_FIND_LINKS names. `--java-home FOLDER` names
a Java that is neither JAVA_HOME nor in /usr/lib/jvm. `--venv 3.5.9=FOLDER` uses one that is there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.matrix.plan import (
    PARTS,
    Cell,
    Part,
    cover,
    find_javas,
    find_pythons,
    missing,
    product,
    supported,
)
from tests.matrix.runs import Machine, Result
from tests.release.distribution import ROOT
from txn.spark.versions import LINES


def main(arguments: Sequence[str]) -> int:
    """Run the matrix; 1 if a test has failed, or an environment could not be made."""
    options = _parse(arguments)
    pythons, javas = find_pythons(), find_javas(options.java_home)
    machine = Machine(options.work, pythons, javas, dict(options.venv), options.limit)
    sparks = _chosen(options.spark, [line.newest for line in LINES.values()])
    combine = product if options.all else cover
    cells, refused = supported(
        combine(
            sparks,
            _chosen(options.python, _default_first(pythons)),
            [int(major) for major in _chosen(options.java, [str(major) for major in javas])],
        )
    )
    if lacking := missing(pythons, javas):
        print(f"Not on this machine: {lacking}.\n")
    results: list[Result] = []
    parts = [part for part in PARTS if part.name in _chosen(options.part, [p.name for p in PARTS])]
    print(Result.HEADER, flush=True)
    for cell in cells:
        results += _run(machine, cell, parts, quick=options.quick)
    _print_differences(machine, cells, refused)
    return 0 if results and all(result.is_good for result in results) else 1


def _run(machine: Machine, cell: Cell, parts: Iterable[Part], *, quick: bool) -> Iterable[Result]:
    for part in parts:
        result = machine.run(cell, part, quick=quick)
        print(result, flush=True)
        yield result
        if not result.has_environment:
            break


def _print_differences(machine: Machine, cells: Iterable[Cell], refused: Iterable[Cell]) -> None:
    """Print what is slower on each Spark, and what was not run."""
    print()
    for spark, cell in {cell.spark: cell for cell in cells}.items():
        ways = machine.slower_ways(cell)
        print(f"Spark {spark}, slower ways: {'none' if not ways else ''}")
        for name, sentence in ways.items():
            print(f"  {name}: {sentence}")
    pairs = sorted({(cell.spark, cell.java) for cell in refused})
    for spark, java in pairs:
        print(f"Spark {spark} on Java {java}: not run, this Spark does not support it.")


def _default_first(pythons: Iterable[str]) -> list[str]:
    """Put the Python that runs this first: it meets every Java."""
    current = f"{sys.version_info.major}.{sys.version_info.minor}"
    return sorted(pythons, key=lambda version: (version != current, version))


def _chosen(text: str, values: Sequence[str]) -> list[str]:
    return text.split(",") if text else list(values)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make test-matrix",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a smaller part of each")
    parser.add_argument("--all", action="store_true", help="every combination")
    parser.add_argument("--spark", default="", help="releases, with commas")
    parser.add_argument("--python", default="", help="3.10,3.12: default: those found")
    parser.add_argument("--java", default="", help="17,21: default: those found")
    parser.add_argument("--part", default="", help=", ".join(part.name for part in PARTS))
    parser.add_argument("--java-home", type=Path, action="append", default=[])
    parser.add_argument("--venv", type=_environment, action="append", default=[])
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for one part")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "matrix")
    return parser.parse_args(arguments)


def _environment(text: str) -> tuple[str, Path]:
    spark, _, folder = text.partition("=")
    return spark, Path(folder).absolute()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
