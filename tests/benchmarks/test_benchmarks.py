"""The pure parts of the benchmark: figures, goals, tables, command line. No Spark."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.benchmarks.child import LEFT_OUT, MARK
from tests.benchmarks.data import DataSet, count
from tests.benchmarks.goals import GOALS, Goal, judge
from tests.benchmarks.options import parse
from tests.benchmarks.peers.flink import VERSION as FLINK
from tests.benchmarks.report import goal_table, markdown
from tests.benchmarks.results import Failure, Key, Results, Run, percentile
from tests.benchmarks.runner import Runner, answers_of
from tests.benchmarks.sizes import FULL, QUICK, Sizes
from tests.benchmarks.task import Task, repeated, warm_up
from tests.benchmarks.workloads import WORKLOADS

FASTER = Goal("a", "ours against theirs", Key("ours"), 1.5, against=Key("theirs"))


def runs(contender: str, *values: float, workload: str = "a", **more: object) -> list[Run]:
    """One run per value, in rounds from 1 on."""
    return [
        Run(workload, contender, number, value, **more)  # type: ignore[arg-type]
        for number, value in enumerate(values, 1)
    ]


def wait_for_end(process: int) -> bool:
    """Whether a process ends within ten seconds; one that nobody has asked for yet has ended."""
    ended_by = time.monotonic() + 10
    while time.monotonic() < ended_by:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        shown = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True
        )
        if shown.stdout.strip().startswith("Z"):
            return True
        time.sleep(0.05)
    return False


def test_a_ratio_is_the_median_of_those_of_the_rounds() -> None:
    """A goal's figure divides within rounds: the machine may be another one in the next."""
    verdict = judge(Results({}, runs("ours", 12, 10, 30) + runs("theirs", 10, 8, 10)), FASTER)
    assert (1.25, 1.2, 3.0, True) == (
        verdict.measured,
        verdict.least,
        verdict.most,
        verdict.reached,
    )


def test_each_round_counts_the_same_in_a_table() -> None:
    """A round in which the machine was quick has more runs; figure and ratio are of the rounds."""
    slow = runs("log", 30) + runs("append", 60)
    quick = [dataclasses.replace(run, round=2) for run in [*runs("log", 10), *runs("append", 10)]]
    text = markdown(Results({}, slow + quick * 3))
    assert "| log | 20.0 | 10.0 - 30.0 | 1.00x | 4 (4) | correct |" in text
    assert "| append | 35.0 | 10.0 - 60.0 | 1.50x | 4 (4) | correct |" in text


@pytest.mark.parametrize(
    ("ours", "at", "reached"),
    [(1.5, "most", True), (1.51, "most", False), (1.5, "least", True), (1.49, "least", False)],
)
def test_a_bound_itself_is_within_the_goal(ours: float, at: str, reached: bool) -> None:
    """A figure that is just the bound reaches it, from either side; one beyond it does not."""
    goal = dataclasses.replace(FASTER, at=at)
    results = Results({}, runs("ours", ours) + runs("theirs", 1.0))
    assert judge(results, goal).reached is reached


def test_figures_of_different_rounds_make_no_ratio() -> None:
    """What was never measured in the same round is not divided."""
    second = [dataclasses.replace(run, round=2) for run in runs("theirs", 10)]
    verdict = judge(Results({}, runs("ours", 12) + second), FASTER)
    assert (verdict.measured, verdict.reached) == (None, None)


def test_a_wrong_result_reaches_no_goal() -> None:
    """However quick: where one round's result was wrong there is no verdict, and it is told."""
    wrong = runs("ours", 1.0) + runs("ours", 1.0, correct=False)
    verdict = judge(Results({}, wrong + runs("theirs", 9.0)), FASTER)
    assert (None, "wrong result: ours") == (verdict.reached, verdict.note)


def test_what_was_not_measured_says_why() -> None:
    """A goal without a figure names the contender and the last line of what it said."""
    failure = Failure("a", "theirs", "Traceback ...\nSetupError: there is no javac")
    verdict = judge(Results({}, runs("ours", 1.0), [failure]), FASTER)
    assert (None, None) == (verdict.measured, verdict.reached)
    assert verdict.note == "not measured; theirs: SetupError: there is no javac"


def test_every_goal_has_a_row_even_when_nothing_was_measured() -> None:
    """The table of goals never leaves one out."""
    rows = goal_table(Results({})).splitlines()[2:]
    assert len(GOALS) == len(rows)
    assert all("not measured" in row for row in rows)


def test_goals_are_about_figures_that_the_full_benchmark_takes() -> None:
    """Every goal names contenders and sizes that its workload measures."""
    for goal in GOALS:
        taken = {
            Key(name, contender.x)
            for contender in WORKLOADS[goal.workload].contenders(FULL)
            for name in contender.figures
        }
        if goal.workload == "g":
            looks = range(FULL.memory_every, FULL.memory_batches + 1, FULL.memory_every)
            taken = {Key(key.contender, batch) for key in taken for batch in looks}
        wanted = {goal.figure} if goal.against is None else {goal.figure, goal.against}
        assert wanted - taken == set(), goal.text


def test_a_failure_and_a_wrong_result_are_seen_in_the_table() -> None:
    """The tables name a contender that gave no figure, and mark a wrong result."""
    results = Results({}, runs("log", 2.0, correct=False), [Failure("a", "Flink", "no javac")])
    text = markdown(results)
    assert "**Flink failed in round 0**: no javac" in text
    assert re.search(r"\| log \| 2\.00 .*\*\*WRONG\*\*", text)


def test_quick_figures_are_marked_as_such() -> None:
    """Whoever reads results.md of tiny sizes is told first that they mean nothing."""
    assert "Quick sizes" in markdown(Results({"sizes": QUICK.name}, runs("log", 1.0)))
    assert "Quick sizes" not in markdown(Results({"sizes": FULL.name}, runs("log", 1.0)))


@pytest.mark.parametrize(("sizes", "reached"), [(FULL, "yes"), (QUICK, "no verdict: other sizes")])
def test_goals_are_judged_at_full_sizes_only(sizes: Sizes, reached: str) -> None:
    """Figures of tiny sizes have their ratio told, and neither reach a goal nor miss it."""
    results = Results({"sizes": sizes.name}, runs("ours", 1.0) + runs("theirs", 1.0))
    assert goal_table(results, [FASTER]).endswith(f"| 1.00x | 1.00 - 1.00 | <= 1.50x | {reached} |")


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    """What was saved is loaded again, run for run; another format is refused."""
    path = tmp_path / "results.json"
    saved = Results(
        {"sizes": "full"}, runs("log", 1.0, 2.0, x=7, noise=0.1), [Failure("a", "Flink", "why", 3)]
    )
    saved.save(path)
    loaded = Results.load(path)
    assert (saved.about, saved.runs, saved.failures) == (
        loaded.about,
        loaded.runs,
        loaded.failures,
    )
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 9}))
    with pytest.raises(ValueError, match=r"has format 9, .* reads 1"):
        Results.load(path)


def test_measuring_again_forgets_just_that(tmp_path: Path) -> None:
    """The figures of other workloads, and of contenders that do not run, stay."""
    results = Results(
        {},
        runs("log", 1.0) + runs("append", 1.0) + runs("acker on", 1.0, workload="d"),
        [Failure("a", "log", "why"), Failure("a", "Flink", "why")],
    )
    Runner(FULL, 3, tmp_path, tmp_path, only=("log",)).forget(["a"], results)
    assert [("a", "append"), ("d", "acker on")] == [(r.workload, r.contender) for r in results.runs]
    assert ["Flink"] == [failure.contender for failure in results.failures]
    Runner(FULL, 3, tmp_path, tmp_path).forget(["d"], results)
    assert ["append"] == [run.contender for run in results.runs]


def test_noise_is_counted_from_a_twentieth_of_the_cores() -> None:
    """A run is quiet up to 5% of the cores, and where nothing is known of the others."""
    noises = (None, 0.05, 0.051)
    assert [False, False, True] == [Run("a", "log", 1, 1.0, noise=n).noisy for n in noises]


def test_percentiles_are_interpolated() -> None:
    """Half of two values is their middle; of one value everything is that value."""
    assert (1.5, 7, 1.0, 3.0) == (
        percentile([2, 1], 0.5),
        percentile([7], 0.95),
        percentile([3.0, 1.0, 2.0], 0),
        percentile([3.0, 1.0, 2.0], 1),
    )
    assert percentile([], 0.5) is None


def test_a_task_comes_back_from_the_command_line() -> None:
    """A contender's process is told exactly what its parent decided."""
    task = Task("e", "log", "tests.benchmarks.ours", "/tmp/x", "quick", "/d", 4, {"layout": "log"})
    assert task == Task.from_json(task.to_json())
    assert QUICK is task.size


@pytest.mark.parametrize(("seconds", "runs"), [(20.0, 4), (0.0, 1)])
def test_runs_are_repeated_for_the_same_time(tmp_path: Path, seconds: float, runs: int) -> None:
    """Runs of 6 s are repeated until 20 s have passed, each in a folder of its own."""
    clock = itertools.count(0.0, 6.0)
    task = Task("a", "log", "module", str(tmp_path))
    folders = list(repeated(task, seconds, "timed", clock=lambda: next(clock)))
    assert len(set(folders)) == len(folders) == runs


def test_what_warmed_up_is_gone(tmp_path: Path) -> None:
    """A warm-up leaves nothing behind that the timed run could stumble over."""
    warm_up(Task("a", "log", "module", str(tmp_path), "quick"), Path.mkdir)
    assert list(tmp_path.iterdir()) == []


def test_without_a_warm_up_the_first_run_is_the_one(tmp_path: Path) -> None:
    """`--warm-secs 0` runs nothing before, times one run, and its figures say so."""
    options = parse(["--warm-secs", "0", "--only", "a"])
    task = Task("a", "log", "module", str(tmp_path), warm_secs=options.warm_secs)
    warm_up(Task.from_json(task.to_json()), lambda _: pytest.fail("it warms up"))
    assert (0.0, "full, no warm-up") == (task.size.timed_secs, task.size.name)
    assert "**Sizes: full, no warm-up.**" in markdown(Results({"sizes": task.size.name}))


def test_the_command_line_has_three_rounds_of_everything_by_default() -> None:
    """Without arguments: all letters, three rounds, full sizes; --quick: one round, tiny sizes."""
    full, quick = parse([]), parse(["--quick"])
    assert (tuple("abcdefghikljmpqr"), 3, FULL) == (full.letters, full.rounds, full.sizes)
    assert (tuple("abcdefghikljmpqr"), 1, QUICK) == (quick.letters, quick.rounds, quick.sizes)
    assert parse(["--quick", "--rounds", "2"]).rounds == 2


def test_workloads_are_named_by_letters() -> None:
    """--only takes letters in any order, each once; an unknown one is refused by name."""
    assert ("a", "c") == parse(["--only", "c, a,c"]).letters
    for wrong in ("x", ""):
        with pytest.raises(SystemExit):
            parse(["--only", wrong])


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--report", "/nowhere"]])
def test_what_cannot_be_done_is_refused_before_anything_runs(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """No rounds, or no results to report on: an error that names it."""
    with pytest.raises(SystemExit):
        parse(arguments)
    assert arguments[0] in capsys.readouterr().err


def test_a_process_answers_in_marked_lines() -> None:
    """What stands on standard output besides is not taken for an answer."""
    code = (
        'import sys; print(\'{"value": 9, "correct": false}\'); '
        'print(sys.argv[1] + \'{"value": 2.5, "correct": true, "x": 7}\')'
    )
    answers, why, left_out = answers_of([sys.executable, "-c", code, MARK], 60)
    assert [(2.5, True, 7)] == [(one.value, one.correct, one.x) for one in answers]
    assert ("", False) == (why, left_out)


def test_a_process_that_fails_says_why() -> None:
    """An exit code, or an end without any answer, is a failure with the end of what was said."""
    command = [sys.executable, "-c", "raise SystemExit('no such jar')"]
    assert ([], "exit code 1: no such jar", False) == answers_of(command, 60)
    silent = answers_of([sys.executable, "-c", ""], 60)
    assert ([], "exit code 0: it said nothing", False) == silent


def test_a_contender_that_cannot_run_here_is_left_out_and_is_no_failure() -> None:
    """A `SetupError` of its process is told as it is; the benchmark still ends well."""
    module = "import sys; print('there is no javac', file=sys.stderr); sys.exit(3)"
    assert ([], "there is no javac", True) == answers_of([sys.executable, "-c", module], 60)
    out = Failure("a", "Flink", "there is no javac", left_out=True)
    assert "**Flink was left out**: there is no javac" in markdown(Results({}, [], [out]))
    assert Results({}, runs("log", 1.0), [out]).well
    assert not Results({}, runs("log", 1.0), [dataclasses.replace(out, left_out=False)]).well
    assert not Results({}, runs("log", 1.0, correct=False)).well


def test_a_child_says_that_it_cannot_run_here(tmp_path: Path) -> None:
    """Without a Java compiler beside its Java, Flink's process exits as left out, and says why."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    (tmp_path / "txn" / "bench" / f"flink-{FLINK}").mkdir(parents=True)
    task = Task("a", "Flink", "tests.benchmarks.peers.flink", str(tmp_path), "quick", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.child", task.to_json()],
        env={**os.environ, "JAVA_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
    )
    assert (LEFT_OUT, "") == (done.returncode, done.stdout)
    assert f"there is no {tmp_path}/bin/javac. Install a JDK" in done.stderr


def test_a_process_that_hangs_is_ended_with_everything_below_it() -> None:
    """When the limit is over, the children of a contender's process end, too."""
    code = (
        "import subprocess, sys, time\n"
        "below = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(below.pid, file=sys.stderr, flush=True)\n"
        "time.sleep(600)\n"
    )
    answers, why, _ = answers_of([sys.executable, "-c", code], 3)
    assert answers == []
    found = re.fullmatch(r"exit code -9: (\d+)\n+no end within 3 s", why)
    assert found is not None
    assert wait_for_end(int(found[1]))


def test_the_oracle_counts_every_file(tmp_path: Path) -> None:
    """Words that stand in several files are counted over all of them."""
    data = DataSet(tmp_path)
    data.rows.mkdir()
    for number, words in enumerate((["a", "b", "a"], ["a"], ["c"])):
        parquet.write_table(pa.table({"word": words}), data.rows / f"{number:05d}.parquet")
    count(data)
    counted = parquet.read_table(data.expected).to_pydict()
    assert {"a": 3, "b": 1, "c": 1} == dict(zip(counted["word"], counted["count"], strict=True))
