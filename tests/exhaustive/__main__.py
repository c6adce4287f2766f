"""`python -m tests.exhaustive`: search the scopes, or show the shortest history of a mutant."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from dataclasses import replace

from tests.exhaustive.cases import CAUGHT, FULL, SMALL
from tests.exhaustive.search import Found, search
from tests.simulation.mutants import MUTANTS
from tests.simulation.seams import patched

__all__ = ["caught"]


def caught(name: str) -> Found:
    """Search the scope of a mutant up to the first invariant that breaks."""
    case = CAUGHT[name]
    if case.flag:
        return search(replace(case.scope, flags=frozenset({name})))
    with patched(list(MUTANTS[name].patches)):
        return search(case.scope)


def main() -> int:
    """The command; 1 if an invariant does not hold."""
    parser = ArgumentParser(prog="python -m tests.exhaustive", description=__doc__)
    parser.add_argument("--small", action="store_true", help="only what the test suite searches")
    parser.add_argument("--mutant", choices=sorted(CAUGHT), help="break this rule")
    given = parser.parse_args()
    if given.mutant:
        print(caught(given.mutant))
        return 0
    broken = 0
    for name, scope in (SMALL if given.small else FULL).items():
        found = search(scope)
        broken += found.broken is not None
        print(f"{name}: {found}", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
