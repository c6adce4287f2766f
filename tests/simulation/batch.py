"""Many seeds, in several processes, and what came of them."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import Path

from tests.simulation.chance import FAULTS

__all__ = ["LIMIT", "Summary", "catch", "known_seeds", "run_chunk", "run_many", "scan"]

LIMIT = 4000
"""Seeds within which every mutant must be caught."""
KNOWN = Path(__file__).with_name("mutants.json")
"""Mutant -> a seed that catches it, as the last `scan` recorded it."""

CHUNK = 200
"""Seeds of one process: it collects no garbage, and takes it along when it ends."""
PRELOADED = ["tests.simulation.mutants", "tests.simulation.run", "tests.simulation.seams"]


@dataclass
class Summary:
    """What came of some seeds."""

    seeds: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    txids: int = 0
    events: int = 0
    switches: int = 0
    simulated_secs: float = 0.0
    cpu_secs: float = 0.0
    seconds: float = 0.0

    def add(self, other: Summary) -> None:
        """Put another one's figures to these."""
        self.seeds += other.seeds
        self.failures += other.failures
        self.faults.update(other.faults)
        self.counts.update(other.counts)
        self.txids += other.txids
        self.events += other.events
        self.switches += other.switches
        self.simulated_secs += other.simulated_secs
        self.cpu_secs += other.cpu_secs

    @property
    def never(self) -> list[str]:
        """Faults that never struck."""
        return [fault for fault in FAULTS if not self.faults[fault]]

    def lines(self) -> Iterator[str]:
        """For people."""
        rate = self.seeds / self.seconds if self.seconds else 0.0
        yield (
            f"{self.seeds} seeds in {self.seconds:.1f} s: {rate:.0f} a second, "
            f"{1000 * self.cpu_secs / max(1, self.seeds):.1f} ms of CPU each"
        )
        yield (
            f"{self.txids} txids committed, {self.events} events, {self.switches} switches, "
            f"{self.simulated_secs / 3600:.1f} hours of simulated time"
        )
        yield "faults:"
        yield from (f"  {self.faults[fault]:8d}  {fault}" for fault in FAULTS)
        yield "how often:"
        yield from (f"  {count:8d}  {what}" for what, count in sorted(self.counts.items()))


def run_chunk(seeds: Iterable[int], mutant: str | None = None, *, first: bool = False) -> Summary:
    """Run some seeds in this process; `first`: up to the first that fails."""
    from tests.simulation.mutants import MUTANTS
    from tests.simulation.run import run_seed
    from tests.simulation.seams import installed, patched

    summary = Summary()
    patches = list(MUTANTS[mutant].patches) if mutant else []
    with installed(), patched(patches):
        for seed in seeds:
            result = run_seed(seed)
            summary.seeds += 1
            summary.faults.update(result.faults)
            summary.counts.update(result.counts)
            summary.txids += result.committed
            summary.events += result.events
            summary.switches += result.switches
            summary.simulated_secs += result.simulated_secs
            summary.cpu_secs += result.cpu_secs
            if result.failure is not None:
                summary.failures.append((seed, result.failure))
                if first:
                    break
    return summary


def catch(mutant: str, seeds: Iterable[int]) -> Summary:
    """Run a mutant up to the first seed that catches it."""
    return run_chunk(seeds, mutant, first=True)


def known_seeds() -> dict[str, int]:
    """Return the recorded seed of each mutant."""
    known: dict[str, int] = json.loads(KNOWN.read_text())
    return known


def _catch_again(mutant: str) -> Summary:
    """Try the recorded seed, then all of them."""
    recorded = [seed for name, seed in known_seeds().items() if name == mutant]
    return catch(mutant, [*recorded, *range(LIMIT)])


def scan(workers: int | None = None) -> dict[str, Summary]:
    """Find a seed that catches each mutant, and record it."""
    from tests.simulation.mutants import MUTANTS

    names = sorted(MUTANTS)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers or len(os.sched_getaffinity(0)), context) as processes:
        found = dict(zip(names, processes.map(_catch_again, names), strict=True))
    known = {name: summary.failures[0][0] for name, summary in found.items() if summary.failures}
    KNOWN.write_text(json.dumps(known, indent=2) + "\n")
    return found


def _apart(context: BaseContext, seeds: range, mutant: str | None) -> Summary:
    """`run_chunk` in a process of its own.

    Raises:
        BrokenProcessPool: the process was killed.
    """
    with ProcessPoolExecutor(1, mp_context=context, initializer=gc.disable) as process:
        return process.submit(run_chunk, seeds, mutant).result()


def run_many(seeds: range, mutant: str | None = None, workers: int | None = None) -> Summary:
    """Run seeds in as many processes as there are cores."""
    began = time.monotonic()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    summary = Summary()
    chunks = [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]
    with ThreadPoolExecutor(workers or len(os.sched_getaffinity(0))) as threads:
        for done in threads.map(partial(_apart, context, mutant=mutant), chunks):
            summary.add(done)
    summary.failures.sort()
    summary.seconds = time.monotonic() - began
    return summary
