"""How long the tests may take: `make test`, or `make test-thorough`, which leaves nothing short."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest

__all__ = [
    "COMPILED_ONCE",
    "EACH_COMMIT",
    "SAMPLE",
    "SHARDS",
    "SHORT_LIVED",
    "SPARK",
    "THOROUGH",
    "by_turns",
    "is_left_out",
    "not_there",
    "quoting",
    "shard",
    "shard_of",
]

T = TypeVar("T")

TESTS = Path(__file__).parent

THOROUGH = "TXN_TEST_THOROUGH" in os.environ
"""Every matrix in full, every driver with a JVM of its own, Spark as users have it."""

COMPILED_ONCE = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Java compiles a query once more, and better, when it has run for long. A test's runs once.
And room for all that is compiled in a thousand tests: when it is full, Java interprets."""
SHORT_LIVED = f"{COMPILED_ONCE} -XX:+UseSerialGC"

SPARK = (
    {}
    if THOROUGH
    else {
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        # Nor is it worth while to generate Java for them, and to compile that.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # Tests make many expressions, each of which PySpark would note at five times its price.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Logs of a few versions: Delta puts each together in one task.
        "spark.databricks.delta.snapshotPartitions": "1",
    }
)
"""Settings of the session that tests share. Programs that tests start as users do, and half of
`tests.differential`, compile their queries."""

SAMPLE: dict[str, dict[str, list[str]]] = json.loads((TESTS / "sample.json").read_text())
"""What `make test` leaves out: file -> test or class -> those of its cases that stay, if any do."""


def is_left_out(item: pytest.Item) -> bool:
    """Whether `make test` leaves this case to `make test-thorough`."""
    assert isinstance(item, pytest.Function)
    tests = SAMPLE.get(str(item.path.relative_to(TESTS)), {})
    stay = tests.get(item.cls.__name__ if item.cls else item.originalname)
    return stay is not None and not (hasattr(item, "callspec") and item.callspec.id in stay)


def not_there(items: Sequence[pytest.Item]) -> list[str]:
    """What `sample.json` names of these items' files, and is not among them.

    Args:
        items: all that was collected, nothing left out yet.
    """
    names: dict[str, set[tuple[str, str]]] = {}
    for item in items:
        assert isinstance(item, pytest.Function)
        file, name = str(item.path.relative_to(TESTS)), item.cls or item.originalname
        case = item.callspec.id if hasattr(item, "callspec") else ""
        test = name if isinstance(name, str) else name.__name__
        names.setdefault(file, set()).update({(test, ""), (test, case)})
    return [
        f"{file}::{test}" + (f"[{case}]" if case else "")
        for file, tests in SAMPLE.items()
        if file in names or not (TESTS / file).exists()
        for test, cases in tests.items()
        for case in (*cases, "")
        if (test, case) not in names.get(file, ())
    ]


SHARDS = 12
"""Parts of the slow tests but those that quote a guarantee: `make test` runs one part."""


EACH_COMMIT = ("tests/test_layout.py", "tests/examples/test_readme.py")
"""What looks at the code and the first page of a commit."""

_EVEN = 3596
"""Where the check sums begin: of some thousand numbers, the one with the most even parts."""


@functools.cache
def shard() -> int | None:
    """The part that runs: `TXN_TEST_SHARD` (a number, or "all", which is None), or the commit's.

    Each commit has one, so a run can be repeated, and each part has every twelfth commit.
    """
    wanted = os.environ.get("TXN_TEST_SHARD", "")
    if THOROUGH or wanted == "all":
        return None
    if wanted:
        return int(wanted) % SHARDS
    ask = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(ask, cwd=TESTS, capture_output=True, text=True).stdout.strip()
    return int(commit or "0", 16) % SHARDS


@functools.cache
def quoting() -> frozenset[str]:
    """The tests that docs/guarantees.md names first, one for each sentence: `file::test`."""
    text = (TESTS.parent / "docs" / "guarantees.md").read_text("utf-8")
    return frozenset(re.findall(r"^- \*\*\d+\.\*\* .+\n +- `(\S+\.py::\w+)`", text, re.MULTILINE))


def shard_of(item: pytest.Function) -> int | None:
    """The part that a slow test belongs to; None: it always runs.

    The others of a file are in one part: they share servers, and chains of crashes. What looks at
    the code of the commit (`EACH_COMMIT`) runs for each commit.
    """
    file = str(item.path.relative_to(TESTS.parent))
    always = file in EACH_COMMIT or f"{file}::{item.originalname}" in quoting()
    return None if always else zlib.crc32(file.encode(), _EVEN) % SHARDS


def by_turns(choices: Sequence[T]) -> tuple[T, ...]:
    """The one whose turn it is in the part that runs; all of them where all parts run."""
    part = shard()
    return tuple(choices) if part is None else (choices[part % len(choices)],)
