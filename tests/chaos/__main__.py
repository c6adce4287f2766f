"""`make chaos`: the topology under faults, judged.

    make chaos                                                # five minutes
    make chaos ARGS='--minutes 600 --records 20000000 --seed 7'
    make chaos ARGS='--store s3'                              # tables and files on an S3 server
    make chaos ARGS='--cluster isolated'                      # workers on machines of their own
    make chaos ARGS='--check build/chaos/history.jsonl'       # judge a recorded run again

Everything that happened is in FOLDER/history.jsonl; the report is FOLDER/report.md and report.json.
Exit code 0: no violation. 1: there are some, they are listed. 2: the run could not be finished.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

from tests.chaos.checker import check
from tests.chaos.cluster import CLUSTERS
from tests.chaos.figures import figures
from tests.chaos.history import read_history
from tests.chaos.lives import StuckError
from tests.chaos.machines import alone
from tests.chaos.place import STORES
from tests.chaos.plan import FAULTS
from tests.chaos.report import as_json, markdown, pasted, summary
from tests.chaos.run import Options, run

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Run, judge, report; the exit code."""
    given = _parser().parse_args(arguments)
    if given.check is not None:
        return _judge(given.check, given.check.parent, given.report)
    options = Options(
        folder=given.folder,
        seed=given.seed,
        minutes=given.minutes,
        records=given.records,
        gap_secs=given.gap,
        session_secs=given.session,
        at_least=dict(given.at_least),
        disk=given.disk,
        store="s3" if given.cluster == "isolated" else given.store,
        cluster=given.cluster,
        command=f"make chaos ARGS={shlex.quote(shlex.join(arguments))}"
        if arguments
        else "make chaos",
    )
    if options.cluster == "isolated":
        alone([sys.executable, "-m", "tests.chaos", *arguments])
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # servers go away all the time
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        path = run(options, say=lambda words: print(words, flush=True))
    except KeyboardInterrupt:
        print("interrupted: everything was stopped and unmounted", file=sys.stderr)
        return 130
    except StuckError as error:
        print(f"unfinished: {error}. See {given.folder}", file=sys.stderr)
        return 2
    return _judge(path, given.folder, given.report)


def _judge(history: Path, folder: Path, document: Path | None) -> int:
    events = list(read_history(history))
    violations, found = check(events), figures(events)
    text = markdown(found, violations)
    (folder / "report.md").write_text(f"# Chaos\n\n{text}", "utf-8")
    (folder / "report.json").write_text(as_json(found, violations), "utf-8")
    if document is not None:
        where = "isolated" if found["cluster"] == "isolated" else found["store"]
        document.write_text(pasted(document.read_text("utf-8"), text, where), "utf-8")
    for violation in violations[:20]:
        print(f"{violation.rule}, {violation.where}: {violation.what}")
    print(f"{summary(found, violations)}; {folder / 'report.md'}")
    return 1 if violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make chaos", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    default = Options(Path("build/chaos"))
    add = parser.add_argument
    add(
        "--minutes", type=float, default=default.minutes, help="how long faults go on; 0: each once"
    )
    add("--records", type=int, default=default.records, help="of both sources together")
    add("--seed", type=int, default=default.seed, help="of all faults (default 0)")
    add("--gap", type=float, default=default.gap_secs, help="mean seconds between faults (25)")
    add("--session", type=float, default=default.session_secs, help="ZooKeeper's timeout (4)")
    add("--at-least", type=_demand, action="append", default=[], metavar="KIND=COUNT")
    add("--store", choices=STORES, default="local", help="where tables and files lie")
    add(
        "--cluster",
        choices=CLUSTERS,
        default=default.cluster,
        help="isolated: workers share no disk with the driver, the store is S3; needs root",
    )
    add("--disk", default=default.disk, help="size of the disk of the tables (3g)")
    add("--folder", type=lambda p: Path(p).absolute(), default=Path("build/chaos").absolute())
    add("--report", type=Path, metavar="FILE.md", help="paste the report between its marks, too")
    add("--check", type=Path, metavar="HISTORY", help="no run: judge this history")
    return parser


def _demand(given: str) -> tuple[str, Any]:
    kind, _, count = given.partition("=")
    if kind not in FAULTS or not count.isdecimal():
        raise argparse.ArgumentTypeError(f"{given!r} is not KIND=COUNT; kinds: {', '.join(FAULTS)}")
    return kind, int(count)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
