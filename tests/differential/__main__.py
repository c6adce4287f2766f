"""Random topologies against what plain Python makes of the same declaration.

make differential ARGS='--seeds 1000'
make differential ARGS='--changes --seeds 100'       each program changes between its lives
make differential ARGS='--corrections --seeds 100'   files, rules, corrected rows (corrections.py)
python -m tests.differential --seed 123           one program, printed and run
python -m tests.differential --program FILE.json  one that was shrunk
make differential ARGS='--sources'                files of strangers, instead of programs
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import itertools
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.differential.corrections import corrections
from tests.differential.declaration import Program
from tests.differential.generate import CHANGING, generate
from tests.differential.judge import Verdict, judge
from tests.differential.mutants import MUTANTS, everything
from tests.differential.session import session
from tests.differential.shrink import shrink
from tests.differential.sources.__main__ import main as sources
from tests.differential.time_mutants import TIME_MUTANTS, everything_in_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(arguments: list[str]) -> int:
    """Run programs; 1 if there is a finding."""
    if "--sources" in arguments:
        return sources(arguments)
    parser = argparse.ArgumentParser(prog="make differential", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many programs")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--corrections", action="store_true", help="histories of corrected rows")
    parser.add_argument("--changes", action="store_true", help="every program changes")
    parser.add_argument("--mutants", action="store_true", help="which mutants are caught")
    parser.add_argument("--pick", help="seeds with commas between them, instead of so many")
    parser.add_argument("--seed", type=int, help="only this one; its program is printed")
    parser.add_argument("--program", type=Path, help="a file that a finding has left")
    parser.add_argument("--no-shrink", action="store_true", help="leave findings as they are")
    parser.add_argument("--shrink-secs", type=float, default=240.0, help="for each finding")
    parser.add_argument("--findings", type=Path, default=Path("build/differential"))
    parser.add_argument("--stop-after", type=int, default=10, help="findings")
    parser.add_argument("--verbose", action="store_true", help="a line for each program")
    chosen = parser.parse_args(arguments)
    faulthandler.register(signal.SIGUSR1)  # where it hangs
    spark = session()
    with tempfile.TemporaryDirectory(prefix="txn-differential-") as folder:
        if chosen.corrections:
            return corrections(_seeds(chosen), spark, Path(folder))
        if chosen.mutants:
            return _mutants(spark, Path(folder))
        if chosen.program or chosen.seed is not None:
            return _one(chosen, spark, Path(folder))
        return _many(chosen, spark, Path(folder))


def _one(chosen: argparse.Namespace, spark: SparkSession, folder: Path) -> int:
    if chosen.program:
        program = Program.model_validate_json(chosen.program.read_text())
    else:
        program = generate(chosen.seed, _share(chosen))
    print(program.model_dump_json(indent=1, exclude_defaults=True))
    verdict = judge(program, spark, folder / "run")
    print(f"\n{verdict.kind}: {verdict.what}")
    return int(verdict.is_finding)


def _mutants(spark: SparkSession, folder: Path) -> int:
    survived = False
    for program, mutants in ((everything(), MUTANTS), (everything_in_time(), TIME_MUTANTS)):
        survived |= judge(program, spark, folder / "none").kind != "equal"
        survived |= _survived(program, mutants, spark, folder)
    return int(survived)


def _survived(
    program: Program, mutants: Mapping[str, tuple[Any, str, Any]], spark: SparkSession, folder: Path
) -> bool:
    survived = False
    for name, (owner, attribute, instead) in mutants.items():
        before = getattr(owner, attribute)
        setattr(owner, attribute, instead)
        try:
            verdict = judge(program, spark, folder / "mutant")
        finally:
            setattr(owner, attribute, before)
        survived |= not verdict.is_finding
        print(f"{name}: {verdict.kind}: {verdict.what[:120]}", flush=True)
    return survived


def _share(chosen: argparse.Namespace) -> float:
    return 1.0 if chosen.changes else CHANGING


def _seeds(chosen: argparse.Namespace) -> Iterable[int]:
    if chosen.seed is not None:
        return [chosen.seed]
    if chosen.pick:
        return [int(seed) for seed in chosen.pick.split(",")]
    return range(chosen.first, chosen.first + chosen.seeds)


def _many(chosen: argparse.Namespace, spark: SparkSession, folder: Path) -> int:
    kinds: collections.Counter[str] = collections.Counter()
    began = time.monotonic()
    findings = 0
    for seed in _seeds(chosen):
        program = generate(seed, _share(chosen))
        start = time.monotonic()
        verdict = judge(program, spark, folder / f"{seed}")
        seconds = time.monotonic() - start
        kinds[verdict.kind] += 1
        if verdict.is_finding:
            findings += 1
            print(f"seed {seed} ({seconds:.1f} s) {verdict.kind}: {verdict.what}", flush=True)
            _keep(chosen, program, verdict, spark, folder)
            if findings >= chosen.stop_after:
                break
        elif chosen.verbose:
            print(f"seed {seed} ({seconds:.1f} s) {verdict.kind}: {verdict.what[:200]}", flush=True)
    took = time.monotonic() - began
    total = sum(kinds.values())
    print(json.dumps(dict(kinds)), f"{total} programs, {took:.0f} s, {took / total:.2f} s each")
    return int(findings > 0)


def _keep(
    chosen: argparse.Namespace,
    program: Program,
    verdict: Verdict,
    spark: SparkSession,
    folder: Path,
) -> None:
    chosen.findings.mkdir(parents=True, exist_ok=True)
    path = chosen.findings / f"seed-{program.seed}.json"
    numbers = itertools.count()

    def same(smaller: Program) -> bool:
        found = judge(smaller, spark, folder / f"shrink-{program.seed}-{next(numbers)}")
        return found.is_finding and found.signature == verdict.signature

    if not chosen.no_shrink:
        program = shrink(program, same, chosen.shrink_secs)
    path.write_text(program.model_dump_json(indent=1, exclude_defaults=True))
    print(f"  to see it again: make differential ARGS='--program {path}'", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
