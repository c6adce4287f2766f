"""What was measured: one `Run` per figure, in a JSON file that is rewritten after every process."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Failure", "Key", "Results", "Run", "Summary", "percentile"]

FORMAT = 1
NOISY = 0.05
"""A run is noisy when other processes used more than this share of all cores meanwhile."""


@dataclass(frozen=True, order=True)
class Key:
    """Whose figure: a contender and, where a workload varies something, how much of it."""

    contender: str
    x: int | None = None

    def __str__(self) -> str:
        return self.contender if self.x is None else f"{self.contender}, {self.x:,}"


@dataclass(frozen=True)
class Run:
    """One figure of one round."""

    workload: str
    contender: str
    round: int
    value: float
    """The workload's own figure: seconds, batches/s, milliseconds or megabytes."""
    x: int | None = None
    """What the workload varies: keys, txids in flight, partitions, batches."""
    correct: bool = True
    """The result of the work was compared with an oracle and is the same."""
    noise: float | None = None
    """Share of all cores that other processes used meanwhile; None: not known."""
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Whose figure it is."""
        return Key(self.contender, self.x)

    @property
    def noisy(self) -> bool:
        """Whether other processes disturbed it."""
        return self.noise is not None and self.noise > NOISY


@dataclass(frozen=True)
class Failure:
    """A process that gave no figure, or a contender that cannot run here."""

    workload: str
    contender: str
    why: str
    x: int | None = None
    round: int = 0
    left_out: bool = False
    """It cannot run on this machine, and was not tried again."""

    @property
    def key(self) -> Key:
        """Whose figure is missing."""
        return Key(self.contender, self.x)


@dataclass(frozen=True)
class Summary:
    """The figures of one key over all rounds."""

    key: Key
    median: float
    """Of the medians of the rounds, however many runs each of them has had time for."""
    least: float
    most: float
    runs: int
    quiet: int
    """Runs that were not noisy."""
    correct: bool


class Results:
    """All runs of one folder.

    Args:
        about: machine facts, versions, sizes; JSON.
    """

    def __init__(
        self,
        about: Mapping[str, Any],
        runs: Iterable[Run] = (),
        failures: Iterable[Failure] = (),
    ) -> None:
        self.about = dict(about)
        self.runs = list(runs)
        self.failures = list(failures)

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read what `save` wrote.

        Raises:
            ValueError: another format.
        """
        stored = json.loads(path.read_text("utf-8"))
        if stored.get("format") != FORMAT:
            raise ValueError(
                f"{path} has format {stored.get('format')!r}, and this version of the benchmark "
                f"reads {FORMAT}. Measure again into another folder (--out)."
            )
        return cls(
            stored["about"],
            [Run(**run) for run in stored["runs"]],
            [Failure(**failure) for failure in stored["failures"]],
        )

    def save(self, path: Path) -> None:
        """Write everything; a reader sees the old file or the new one."""
        content = {
            "format": FORMAT,
            "about": self.about,
            "runs": [dataclasses.asdict(run) for run in self.runs],
            "failures": [dataclasses.asdict(failure) for failure in self.failures],
        }
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        scratch.replace(path)

    def drop(self, workload: str, contender: str) -> None:
        """Forget one contender of a workload, which is about to be measured again."""
        gone = (workload, contender)
        self.runs = [run for run in self.runs if (run.workload, run.contender) != gone]
        self.failures = [one for one in self.failures if (one.workload, one.contender) != gone]

    def of(self, workload: str, key: Key | None = None) -> list[Run]:
        """The runs of a workload, or of one key of it."""
        runs = [run for run in self.runs if run.workload == workload]
        return runs if key is None else [run for run in runs if run.key == key]

    @property
    def well(self) -> bool:
        """Whether every process that could run here gave a correct result."""
        failed = any(not failure.left_out for failure in self.failures)
        return not failed and all(run.correct for run in self.runs)

    def keys(self, workload: str) -> list[Key]:
        """Whose figures there are, in the order in which they were first measured."""
        return list(dict.fromkeys(run.key for run in self.of(workload)))

    def summary(self, workload: str, key: Key) -> Summary | None:
        """Median and range; None: never measured."""
        runs = self.of(workload, key)
        if not runs:
            return None
        values = [run.value for run in runs]
        return Summary(
            key,
            statistics.median(self.by_round(workload, key).values()),
            min(values),
            max(values),
            len(runs),
            sum(not run.noisy for run in runs),
            all(run.correct for run in runs),
        )

    def ratios(self, workload: str, key: Key, against: Key) -> list[float]:
        """One key's figure to another's, by round: within one, both met the same machine."""
        ours, theirs = self.by_round(workload, key), self.by_round(workload, against)
        return [ours[number] / theirs[number] for number in ours if number in theirs]

    def by_round(self, workload: str, key: Key) -> dict[int, float]:
        """Round -> median of the figures of that round."""
        values: dict[int, list[float]] = {}
        for run in self.of(workload, key):
            values.setdefault(run.round, []).append(run.value)
        return {number: statistics.median(found) for number, found in values.items()}


def percentile(values: Iterable[float], share: float) -> float | None:
    """The value below which `share` (0 to 1) of the values lie, interpolated; None: no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
