"""The process of one contender: does its work once, and prints every figure as a line of JSON.

    python -m tests.benchmarks.child '{"workload": "a", "contender": "log", ...}'

Lines that are answers begin with `MARK`; whatever else stands on standard output is not ours.
A contender that cannot run on this machine (no compiler, no network) says so and exits `LEFT_OUT`.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys

from tests.benchmarks.task import Task
from txn.errors import SetupError

__all__ = ["LEFT_OUT", "MARK"]

MARK = "bench-answer "
LEFT_OUT = 3


def main(argument: str) -> int:
    task = Task.from_json(argument)
    try:
        for answer in importlib.import_module(task.module).run(task):
            print(MARK + json.dumps(dataclasses.asdict(answer)), flush=True)
    except SetupError as error:
        print(error, file=sys.stderr)
        return LEFT_OUT
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
