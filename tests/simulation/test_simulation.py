"""Deterministic simulation: nothing is found in the product, and every mutant of it is caught."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.batch import catch, known_seeds, run_chunk
from tests.simulation.mutants import MUTANTS

pytestmark = pytest.mark.fast  # no JVM, in the processes that it starts either

ROOT = Path(__file__).parents[2]
SEEDS = 200
SAME = (3, 17)
RESCAN = "`make simulate ARGS=--mutants` records the seeds anew"


def replayed(seed: int, hash_seed: str, *more: str) -> subprocess.CompletedProcess[str]:
    """One seed in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", str(seed), *more],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_whatever_goes_wrong_every_invariant_holds_after_every_step() -> None:
    """Under simulated crashes, pauses, lost and late answers of ZooKeeper and the tables, and two
    leaders at once, every invariant of docs/simulation.md holds after every step.
    """
    summary = run_chunk(range(SEEDS))
    commands = [
        f"python -m tests.simulation --seed {seed}: {why}" for seed, why in summary.failures
    ]
    assert commands == []
    assert (summary.seeds, summary.never) == (SEEDS, [])


def test_a_seed_is_known_for_each_mutant() -> None:
    """No mutant is left out of the table, and none stands there that is gone."""
    assert known_seeds().keys() == MUTANTS.keys()


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_each_mutant_is_caught(name: str) -> None:
    """The product with one of its rules broken violates an invariant within 4,000 seeds.

    Only the recorded seed is tried; it finds nothing in the product as it is. A change that shifts
    what the seeds do makes a recorded seed stale: record the seeds anew.
    """
    seed = known_seeds()[name]
    failures = catch(name, [seed]).failures
    assert [seed] == [at for at, _ in failures], f"seed {seed} no longer catches {name}: {RESCAN}"
    assert "argument" not in failures[0][1], "the mutant does not fit the product any more"
    assert run_chunk([seed]).failures == []


@pytest.mark.parametrize("seed", SAME)
def test_the_same_seed_has_the_same_trace(seed: int) -> None:
    """Two processes with different hash seeds live through a seed in the very same way."""
    first, second = replayed(seed, "1"), replayed(seed, "2")
    assert len(first.stdout.splitlines()) > 150
    digests = {hashlib.sha256(one.stdout.encode()).hexdigest() for one in (first, second)}
    assert (first.returncode, second.returncode, len(digests)) == (0, 0, 1)


def test_a_failing_seed_is_replayed_by_one_command() -> None:
    """The command that is printed for a seed ends with the violation that was found."""
    mutant = "emit-before-persist"
    seed, why = catch(mutant, [known_seeds()[mutant]]).failures[0]
    replay = replayed(seed, "3", "--mutant", mutant)
    assert replay.returncode == 1
    assert replay.stdout.splitlines()[-1] == f"seed {seed}: {why}"
