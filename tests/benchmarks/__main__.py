"""This project beside its peers, in one run: table with ratios, charts, raw figures.

    python -m tests.benchmarks [--only a,b] [--rounds 3] [--quick]     (`make bench` does the same)

See docs/performance.md. Results lie in build/bench/<date>/: results.md, results.json, a.png, ...
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from pathlib import Path

from tests.benchmarks.goals import GOALS
from tests.benchmarks.machine import facts
from tests.benchmarks.options import RESULTS, Options, parse
from tests.benchmarks.plots import draw
from tests.benchmarks.report import goal_table, markdown
from tests.benchmarks.results import Results
from tests.benchmarks.runner import Runner

_ROOT = Path(__file__).parent.parent.parent


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    # As for Ctrl-C: the contender that runs is ended, and what was measured is written.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if options.report is not None:
        _write(Results.load(options.report / RESULTS), options.report, options)
        return 0
    began = time.strftime("%Y-%m-%d %H:%M")
    stamp = began.replace(" ", "-").replace(":", "")
    out = (options.out or _ROOT / "build" / "bench" / stamp).resolve()
    out.mkdir(parents=True, exist_ok=True)
    machine = facts(out)
    session = {
        "began": began,
        "commit": machine.pop("commit"),
        "rounds": options.rounds,
        "workloads": ",".join(options.letters),
        "contenders": options.contenders,
    }
    runner = Runner(
        options.sizes,
        options.rounds,
        out / "scratch",
        options.data,
        options.contenders,
        options.quiet_secs,
        warm_secs=options.warm_secs,
    )
    results = _continued(out, options, runner)
    results.about["machine"] = machine
    results.about["sizes"] = options.sizes.name
    results.about["sessions"] = [*results.about.get("sessions", ()), session]
    try:
        for line in runner.run(options.letters, results):
            print(line, flush=True)
            results.save(out / RESULTS)
    finally:
        shutil.rmtree(runner.scratch, ignore_errors=True)
        if results.runs or results.failures:
            results.save(out / RESULTS)
            _write(results, out, options)
    return 0 if results.well else 1


def _continued(out: Path, options: Options, runner: Runner) -> Results:
    """What the folder has already, without what is measured now."""
    path = out / RESULTS
    if not path.is_file():
        return Results({})
    results = Results.load(path)
    if results.about.get("sizes") != options.sizes.name:
        raise SystemExit(
            f"{path} has figures of sizes {results.about.get('sizes')!r}; those of "
            f"{options.sizes.name!r} cannot stand beside them. Give --out another folder."
        )
    runner.forget(options.letters, results)
    return results


def _write(results: Results, out: Path, options: Options) -> None:
    (out / "results.md").write_text(markdown(results), "utf-8")
    charts = draw(results, out)
    goals = [goal for goal in GOALS if goal.workload in options.letters]
    print(f"\n{goal_table(results, goals)}")
    print(f"\n{out / 'results.md'}, and {len(charts)} charts beside it")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
