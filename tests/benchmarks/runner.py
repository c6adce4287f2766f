"""Runs every contender in a process of its own, round by round, and keeps what it answers.

Rounds alternate: A B C A B C, so that what changes on the machine in the meantime meets all alike.
A process that fails is a row of the table, not a reason to stop the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.child import LEFT_OUT, MARK
from tests.benchmarks.data import make
from tests.benchmarks.meter import wait_until_quiet
from tests.benchmarks.results import Failure, Results, Run
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.task import Answer, Task
from tests.benchmarks.workloads import WORKLOADS, Contender, Workload

__all__ = ["Runner", "answers_of"]

_ROOT = Path(__file__).parent.parent.parent
_TAIL = 1500


@dataclass(frozen=True)
class Runner:
    """How to run.

    Args:
        scratch: tables are written below it and deleted after each process.
        cache: where the input is kept.
        only: names of contenders; empty: all.
        quiet_secs: how long to wait for an idle machine before each process.
        limit_secs: how long one process may take.
        warm_secs: how long contenders warm up; None: as the sizes say.
    """

    sizes: Sizes
    rounds: int
    scratch: Path
    cache: Path
    only: tuple[str, ...] = ()
    quiet_secs: float = 60.0
    limit_secs: float = 1800.0
    warm_secs: float | None = None

    def chosen(self, workload: Workload) -> list[Contender]:
        """The contenders of a workload that are to run."""
        all_of_them = workload.contenders(self.sizes)
        return [one for one in all_of_them if not self.only or one.name in self.only]

    def forget(self, letters: Iterable[str], results: Results) -> None:
        """Take out of `results` what is about to be measured again."""
        for letter in letters:
            for contender in self.chosen(WORKLOADS[letter]):
                for name in contender.figures:
                    results.drop(letter, name)

    def run(self, letters: Iterable[str], results: Results) -> Iterator[str]:
        """Add to `results`, process by process; yields a line to show after each."""
        for letter in letters:
            workload = WORKLOADS[letter]
            size = workload.input(self.sizes)
            data = str(make(self.cache, size).folder) if size else ""
            for number in range(1, self.rounds + 1):
                for contender in self.chosen(workload):
                    if _left_out(results, letter, contender):
                        continue
                    wait_until_quiet(self.quiet_secs)
                    yield self._one(workload, contender, number, data, results)

    def _one(
        self, workload: Workload, contender: Contender, number: int, data: str, results: Results
    ) -> str:
        began = time.monotonic()
        answers, why, left_out = self._process(workload, contender, data)
        for one in answers:
            results.runs.append(_run(workload, contender, number, one))
        if why:
            results.failures += [
                Failure(workload.letter, name, why, contender.x, number, left_out)
                for name in contender.figures
            ]
        told = ", ".join(_line(contender, one, workload.unit) for one in answers[-6:])
        at = "" if contender.x is None else f" at {contender.x:,}"
        missing = f"{'LEFT OUT' if left_out else 'FAILED'}: {why.splitlines()[-1]}" if why else ""
        return (
            f"({workload.letter}) round {number} {contender.name}{at}: "
            f"{', '.join(filter(None, (told, missing)))} [{time.monotonic() - began:.0f} s in all]"
        )

    def _process(
        self, workload: Workload, contender: Contender, data: str
    ) -> tuple[list[Answer], str, bool]:
        """As `answers_of`."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="bench-", dir=self.scratch))
        task = Task(
            workload.letter,
            contender.name,
            contender.module,
            str(folder),
            self.sizes.name,
            data,
            contender.x,
            contender.options,
            workload.far,
            self.warm_secs,
        )
        command = [sys.executable, "-m", "tests.benchmarks.child", task.to_json()]
        try:
            return answers_of(command, self.limit_secs)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def answers_of(command: list[str], limit_secs: float) -> tuple[list[Answer], str, bool]:
    """The answers of a process, why it failed ("": it did not), and whether it cannot run here."""
    # A session of its own: whatever it starts can be ended with it.
    with subprocess.Popen(
        command,
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_secs)
        except subprocess.TimeoutExpired:
            _end(process)
            out, err = process.communicate()
            err += f"\nno end within {limit_secs:.0f} s"
        except BaseException:
            _end(process)
            raise
    marked = [line.removeprefix(MARK) for line in out.splitlines() if line.startswith(MARK)]
    answers = [Answer(**json.loads(line)) for line in marked]
    if process.returncode == 0 and answers:
        return answers, "", False
    said = err.strip() or out.strip() or "it said nothing"
    if process.returncode == LEFT_OUT:
        return answers, said[-_TAIL:], True
    return answers, f"exit code {process.returncode}: {said[-_TAIL:]}", False


def _left_out(results: Results, letter: str, contender: Contender) -> bool:
    """Whether it was found in an earlier round that it cannot run here."""
    return any(
        failure.left_out
        and (failure.workload, failure.x) == (letter, contender.x)
        and failure.contender in contender.figures
        for failure in results.failures
    )


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _run(workload: Workload, contender: Contender, number: int, one: Answer) -> Run:
    return Run(
        workload.letter,
        one.contender or contender.name,
        number,
        one.value,
        contender.x if one.x is None else one.x,
        one.correct,
        one.noise,
        one.detail,
    )


def _line(contender: Contender, one: Answer, unit: str) -> str:
    name = "" if one.contender in (None, contender.name) else f"{one.contender} "
    noise = "" if one.noise is None else f", others {one.noise:.0%}"
    return f"{name}{one.value:g} {unit}{'' if one.correct else ' WRONG RESULT'}{noise}"
