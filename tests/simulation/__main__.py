"""`python -m tests.simulation`: run many seeds, or replay one with its trace."""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from tests.simulation.batch import run_many, scan
from tests.simulation.mutants import MUTANTS
from tests.simulation.run import run_seed
from tests.simulation.seams import installed, patched

ENOUGH = 2000
"""Seeds after which every fault must have struck."""
SHOWN = 10


def replay(seed: int, mutant: str | None) -> int:
    """Run one seed and print what happened in it."""
    with installed(), patched(list(MUTANTS[mutant].patches) if mutant else []):
        result = run_seed(seed, trace=True)
    print("\n".join(result.trace))
    print(f"seed {seed}: {result.failure or 'well'}")
    return 0 if result.failure is None else 1


def catch_all(workers: int | None) -> int:
    """Say which seed catches each mutant; 1 if one is not caught."""
    found = scan(workers)
    for name, summary in found.items():
        seed, why = (summary.failures or [(None, f"SURVIVED {summary.seeds} seeds")])[0]
        print(f"{name}: {why if seed is None else f'seed {seed}: {why}'}")
    return 0 if all(summary.failures for summary in found.values()) else 1


def main() -> int:
    """The command; 1 if anything failed."""
    parser = ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one and print its trace")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (%(default)s)")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="break this rule")
    parser.add_argument(
        "--mutants", action="store_true", help="break each rule, until a seed catches it"
    )
    parser.add_argument("--workers", type=int, help="processes (one per core)")
    given = parser.parse_args()
    if given.seed is not None:
        return replay(given.seed, given.mutant)
    if given.mutants:
        return catch_all(given.workers)
    summary = run_many(range(given.first, given.first + given.seeds), given.mutant, given.workers)
    print("\n".join(summary.lines()))
    for seed, failure in summary.failures[:SHOWN]:
        mutant = f" --mutant {given.mutant}" if given.mutant else ""
        print(f"FAILED: {failure}\n  python -m tests.simulation --seed {seed}{mutant}")
    print(f"{len(summary.failures)} of {summary.seeds} seeds failed")
    never = summary.never if summary.seeds >= ENOUGH else []
    if never:
        print(f"never happened: {', '.join(never)}")
    return 1 if summary.failures or never else 0


if __name__ == "__main__":
    sys.exit(main())
