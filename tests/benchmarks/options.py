"""The command line of the benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.data import default_cache
from tests.benchmarks.sizes import FULL, QUICK, Sizes
from tests.benchmarks.workloads import WORKLOADS

__all__ = ["Options", "parse"]

RESULTS = "results.json"
WARMED = ("a", "b", "e", "h", "i")
"""Workloads each of whose processes warms up, and then runs again and again."""


@dataclass(frozen=True)
class Options:
    """What was asked for."""

    letters: tuple[str, ...]
    contenders: tuple[str, ...]
    """Empty: all of them."""
    rounds: int
    sizes: Sizes
    out: Path | None
    """None: build/bench/<date>."""
    data: Path
    quiet_secs: float
    warm_secs: float | None
    """None: as the sizes say."""
    report: Path | None
    """A folder whose tables and charts are to be made anew; nothing is measured."""


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line.

    Raises:
        SystemExit: it cannot be read; argparse has said why on stderr.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="This project beside its peers, in one run: table, charts, raw figures.",
    )
    letters = ",".join(WORKLOADS)
    parser.add_argument(
        "--only", default=letters, metavar="LETTERS", help=f"workloads, of {letters}"
    )
    parser.add_argument(
        "--contenders", default="", metavar="NAMES", help="only these, parted by ';'"
    )
    parser.add_argument("--rounds", type=_positive, help="default: 3; with --quick: 1")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: shows that all of it works, no more"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for the results (default: build/bench/<date>); what it has of other "
        "workloads is kept",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=default_cache(),
        help="folder for the input, made once (default: $TXN_BENCH_DATA, or %(default)s)",
    )
    parser.add_argument(
        "--quiet-secs",
        type=float,
        help="longest wait for an idle machine before each process (default: 60; --quick: 0)",
    )
    parser.add_argument(
        "--warm-secs",
        type=float,
        metavar="N",
        help=f"how long each contender warms up, for {', '.join(WARMED)} alone (default: 40, far "
        "away 20); 0: not at all, and only its first run is timed",
    )
    parser.add_argument(
        "--report", type=Path, metavar="FOLDER", help="measure nothing: tables and charts anew"
    )
    given = parser.parse_args(list(arguments))
    letters, sizes = _letters(parser, given.only), QUICK if given.quick else FULL
    if given.warm_secs is not None:
        if given.warm_secs < 0:
            parser.error(f"--warm-secs {given.warm_secs:g}: give 0 or more.")
        if not set(letters) <= set(WARMED):
            parser.error(f"--warm-secs is for workloads {', '.join(WARMED)}: name them by --only.")
        sizes = sizes.warmed(given.warm_secs)
    if given.report and not (given.report / RESULTS).is_file():
        parser.error(f"--report: there is no {given.report / RESULTS}.")
    return Options(
        letters=letters,
        contenders=tuple(name.strip() for name in given.contenders.split(";") if name.strip()),
        rounds=given.rounds or (1 if given.quick else 3),
        sizes=sizes,
        out=given.out,
        data=given.data.expanduser(),
        quiet_secs=given.quiet_secs if given.quiet_secs is not None else 60.0 * (not given.quick),
        warm_secs=given.warm_secs,
        report=given.report,
    )


def _letters(parser: argparse.ArgumentParser, text: str) -> tuple[str, ...]:
    """In the order of the workloads, each once."""
    asked = {letter.strip() for letter in text.split(",") if letter.strip()}
    unknown = sorted(asked - set(WORKLOADS))
    if unknown or not asked:
        parser.error(
            f"--only {text}: there is no workload {', '.join(unknown) or '(none was named)'}. "
            f"Workloads are {', '.join(WORKLOADS)}."
        )
    return tuple(letter for letter in WORKLOADS if letter in asked)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} rounds make no figure; give 1 or more.")
    return number
