"""results.md: goals, figures and machine facts as Markdown, out of the raw figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from tests.benchmarks.goals import GOALS, Goal, Verdict, judge
from tests.benchmarks.results import Failure, Key, Results, Run, Summary
from tests.benchmarks.sizes import FULL, QUICK
from tests.benchmarks.workloads import WORKLOADS, Workload

__all__ = ["goal_table", "markdown", "number"]

_GOAL_HEAD = ("", "goal", "measured", "by round", "bound", "reached")


def markdown(results: Results) -> str:
    """The whole of results.md: the goals, and under them a table per workload."""
    parts = ["# Benchmark", "", *_about(results), "## Goals", "", goal_table(results)]
    for letter, workload in WORKLOADS.items():
        if results.of(letter) or any(f.workload == letter for f in results.failures):
            parts += ["", f"## ({letter}) {workload.title}", "", *_workload(results, workload)]
    return "\n".join(parts) + "\n"


def goal_table(results: Results, goals: Sequence[Goal] = GOALS) -> str:
    """Every one of these goals, measured or not."""
    full = results.about.get("sizes") == FULL.name
    return _table(_GOAL_HEAD, [_goal_row(judge(results, goal), full=full) for goal in goals])


def _goal_row(verdict: Verdict, *, full: bool) -> Sequence[str]:
    goal = verdict.goal
    sign = "<=" if goal.at == "most" else ">="
    bound = f"{sign} {_with_unit(goal.bound, goal.unit)}"
    if verdict.measured is None:
        return (f"({goal.workload})", goal.text, "-", "-", bound, verdict.note)
    reached = {True: "yes", False: "**no**", None: f"**{verdict.note}**"}[verdict.reached]
    reached += f" ({verdict.noisy} noisy)" if verdict.noisy else ""
    if not full and verdict.reached is not None:
        reached = "no verdict: other sizes"
    least, most = verdict.least, verdict.most
    spread = "-" if least is None or most is None else f"{number(least)} - {number(most)}"
    measured = _with_unit(verdict.measured, goal.unit)
    return (f"({goal.workload})", goal.text, measured, spread, bound, reached)


def _workload(results: Results, workload: Workload) -> Iterator[str]:
    # As they compete, whoever was measured again last.
    order = [name for one in workload.contenders(FULL) for name in one.figures]
    keys = sorted(
        results.keys(workload.letter), key=lambda key: (*order, key.contender).index(key.contender)
    )
    found = [results.summary(workload.letter, key) for key in keys]
    summaries = [summary for summary in found if summary is not None]
    if workload.x:
        yield _by_x(workload, summaries)
    else:
        head = ("", f"median {workload.unit}", "min - max", "ratio", "runs (quiet)", "result")
        yield _table(head, [_figure_row(results, workload, summary) for summary in summaries])
    for failure in _distinct(results.failures, workload.letter):
        yield ""
        what = "was left out" if failure.left_out else f"failed in round {failure.round}"
        yield f"**{failure.key} {what}**: {_last_line(failure.why)}"
    remarks = list(_remarks(results.of(workload.letter)))
    yield from ["", *remarks] if remarks else []


def _by_x(workload: Workload, summaries: Sequence[Summary]) -> str:
    """A line for each value of what is varied, a column for each contender."""
    names = list(dict.fromkeys(summary.key.contender for summary in summaries))
    cells = {summary.key: _cell(summary) for summary in summaries}
    head = (workload.x, *(f"{name}, {workload.unit}" for name in names))
    values = sorted({summary.key.x or 0 for summary in summaries})
    return _table(
        head, [(f"{x:,}", *(cells.get(Key(name, x), "-") for name in names)) for x in values]
    )


def _cell(summary: Summary) -> str:
    marks = "" if summary.correct else " **WRONG**"
    noisy = summary.runs - summary.quiet
    marks += f" ({noisy} of {summary.runs} noisy)" if noisy else ""
    span = f"{number(summary.least)} - {number(summary.most)}"
    return f"{number(summary.median)} ({span}){marks}"


def _figure_row(results: Results, workload: Workload, summary: Summary) -> tuple[str, ...]:
    ratios = results.ratios(workload.letter, summary.key, Key(workload.baseline))
    beside = f"{number(statistics.median(ratios))}x" if ratios else "-"
    return (
        str(summary.key),
        number(summary.median),
        f"{number(summary.least)} - {number(summary.most)}",
        beside,
        f"{summary.runs} ({summary.quiet})",
        "correct" if summary.correct else "**WRONG**",
    )


def _remarks(runs: Sequence[Run]) -> Iterator[str]:
    """What the raw figures say besides, of the median run of each contender of ours."""
    for key in dict.fromkeys(run.key for run in runs):
        own = sorted((run for run in runs if run.key == key), key=lambda run: run.value)
        detail = own[len(own) // 2].detail
        if "stations_p50_ms" not in detail:
            continue
        stations = ", ".join(f"{name} {ms:g}" for name, ms in detail["stations_p50_ms"].items())
        steady = detail.get("steady_batches_per_s")
        rate = f"; steady {steady:g} batches/s" if steady else ""
        versions = f"; {detail['versions']} versions" if "versions" in detail else ""
        read = f"; read back in {detail['read_s']:g} s" if "read_s" in detail else ""
        yield f"- {key}: milliseconds to each station, p50: {stations}{rate}{versions}{read}"


def _about(results: Results) -> Iterator[str]:
    about = results.about
    machine = about.get("machine", {})
    packages = ", ".join(f"{name} {it}" for name, it in machine.get("packages", {}).items())
    sizes = str(about.get("sizes"))
    if sizes.startswith(QUICK.name):
        yield "**Quick sizes: these figures show that the benchmark works, and nothing else.**"
        yield ""
    elif sizes != FULL.name:
        yield f"**Sizes: {sizes}.**"
        yield ""
    for one in about.get("sessions", ()):
        yield f"- measured {one['began']}, commit {one['commit']}, {one['rounds']} rounds:"
        yield f"  workloads {one['workloads']}"
    yield f"- {machine.get('cores')} cores ({machine.get('cpu')}), {machine.get('memory_gb')} GB,"
    yield f"  tables on {machine.get('disk')}; {machine.get('system')}"
    yield f"- Java {machine.get('java')}, Python {machine.get('python')}, {packages}"
    noisy = sum(run.noisy for run in results.runs)
    yield f"- {noisy} of {len(results.runs)} figures were taken while other processes used more"
    yield "  than 5% of the cores"
    yield ""


def _distinct(failures: Iterable[Failure], letter: str) -> list[Failure]:
    """One failure of each key: the newest."""
    return list({one.key: one for one in failures if one.workload == letter}.values())


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "no reason given"


def _with_unit(value: float, unit: str) -> str:
    return f"{number(value)}{unit}" if unit == "x" else f"{number(value)} {unit}"


def number(value: float) -> str:
    """Three digits that count, thousands apart."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)
