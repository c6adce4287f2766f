"""Files and records of strangers against an independent reader.

make differential ARGS='--sources --seeds 700'
python -m tests.differential.sources --seed 123       one case, printed and read
python -m tests.differential.sources --case FILE.json  one that was shrunk
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
from pathlib import Path
from typing import TYPE_CHECKING

from tests.differential.judge import Verdict
from tests.differential.session import INTERPRETED, session
from tests.differential.sources.declaration import Case
from tests.differential.sources.generate import generate
from tests.differential.sources.judge import judge
from tests.differential.sources.shrink import shrink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(arguments: list[str]) -> int:
    """Read cases; 1 if there is a finding."""
    parser = argparse.ArgumentParser(prog="make differential", description=__doc__)
    parser.add_argument("--sources", action="store_true", help="this")
    parser.add_argument("--seeds", type=int, default=700, help="how many cases")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--pick", help="seeds with commas between them, instead of so many")
    parser.add_argument("--seed", type=int, help="only this one; its case is printed")
    parser.add_argument("--case", type=Path, help="a file that a finding has left")
    parser.add_argument("--no-shrink", action="store_true", help="leave findings as they are")
    parser.add_argument("--shrink-secs", type=float, default=60.0, help="for each finding")
    parser.add_argument("--findings", type=Path, default=Path("build/differential"))
    parser.add_argument("--stop-after", type=int, default=10, help="findings")
    parser.add_argument("--verbose", action="store_true", help="a line for each case")
    chosen = parser.parse_args(arguments)
    faulthandler.register(signal.SIGUSR1)  # where it hangs
    spark = session()
    spark.sparkContext.setLogLevel("OFF")
    for key, value in INTERPRETED.items():
        spark.conf.set(key, value)
    with tempfile.TemporaryDirectory(prefix="txn-sources-") as folder:
        if chosen.case or chosen.seed is not None:
            return _one(chosen, spark, Path(folder))
        return _many(chosen, spark, Path(folder))


def _one(chosen: argparse.Namespace, spark: SparkSession, folder: Path) -> int:
    case = Case.model_validate_json(chosen.case.read_text()) if chosen.case else None
    case = case or generate(chosen.seed)
    print(case.model_dump_json(indent=1, exclude_defaults=True))
    verdict = judge(case, spark, folder / "run")
    print(f"\n{verdict.kind}: {verdict.what}")
    return int(verdict.is_finding)


def _many(chosen: argparse.Namespace, spark: SparkSession, folder: Path) -> int:
    kinds: collections.Counter[str] = collections.Counter()
    began = time.monotonic()
    findings = files = records = 0
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    for seed in map(int, chosen.pick.split(",")) if chosen.pick else seeds:
        case = generate(seed)
        verdict = judge(case, spark, folder / f"{seed}")
        kinds[verdict.kind] += 1
        files += 0 if case.through == "kafka" else len(case.files)
        records += sum(len(file.values) for file in case.files)
        if verdict.is_finding:
            findings += 1
            print(f"seed {seed} {_about(case)} {verdict.kind}: {verdict.what}", flush=True)
            _keep(chosen, case, verdict, spark, folder)
            if findings >= chosen.stop_after:
                break
        elif chosen.verbose:
            print(f"seed {seed} {verdict.kind}: {verdict.what[:200]}", flush=True)
    took = time.monotonic() - began
    print(json.dumps(dict(kinds)), f"{files} files, {records} values of Kafka, {took:.0f} s")
    return int(findings > 0)


def _about(case: Case) -> str:
    damage = sorted({one for file in case.files for one in file.damage})
    return f"({case.through}, {case.form}, {case.bad_rows}, {case.options}, {damage})"


def _keep(
    chosen: argparse.Namespace, case: Case, verdict: Verdict, spark: SparkSession, folder: Path
) -> None:
    chosen.findings.mkdir(parents=True, exist_ok=True)
    path = chosen.findings / f"source-{case.seed}.json"
    numbers = itertools.count()

    def same(smaller: Case) -> bool:
        found = judge(smaller, spark, folder / f"shrink-{case.seed}-{next(numbers)}")
        return found.is_finding and found.signature == verdict.signature

    if not chosen.no_shrink:
        case = shrink(case, same, chosen.shrink_secs)
    path.write_text(case.model_dump_json(indent=1, exclude_defaults=True))
    command = f"make differential ARGS='--sources --case {path}'"
    print(f"  to see it again: {command}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
