"""docs/trident.md and the tests hold each other: every capability that must be there is tested."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.protocol.scenarios.language import scenarios

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| (\d+a?) \| ([MSWX]) \| (.+) \| (.*) \|(.*)\|$")
TEST = re.compile(r"`(?:(tests/[\w/]+\.py)::|scenario )(\w+)`")
SCENARIOS = {each.name: each.doc for each in scenarios()}


def rows() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Number of the row -> (priority, the tests that it names)."""
    found = {}
    for line in (ROOT / "docs/trident.md").read_text().splitlines():
        if row := ROW.match(line):
            found[row[1]] = (row[2], TEST.findall(row[5]))
    return found


def docstring(file: str, name: str) -> str | None:
    """What a test says of itself, or a scenario, which has no file; None if it is not there."""
    if not file:
        return SCENARIOS.get(name)
    path = ROOT / file
    if path.exists():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return ast.get_docstring(node) or ""
    return None


def rows_named_by(file: str, name: str) -> set[str]:
    """The numbers behind "Trident row" in the docstring of a test; none when there is no test."""
    doc = docstring(file, name)
    if doc is None:
        return set()
    named = re.search(r"Trident rows? ([\da, nd]+)", doc)
    return set(re.findall(r"\d+a?", named[1])) if named else {"unnamed"}


def test_every_row_is_there() -> None:
    """The page maps all 72 rows of the table of capabilities, each once."""
    assert sorted(int(number) for number in rows() if number != "43a") == list(range(1, 73))


def test_every_row_that_must_work_names_a_test_that_names_the_row() -> None:
    """A capability of priority M has a test, and that test's docstring says which row it shows."""
    wrong = {
        number: tests
        for number, (priority, tests) in rows().items()
        if priority == "M" and not any(number in rows_named_by(*test) for test in tests)
    }
    assert wrong == {}


def test_every_test_that_the_page_names_exists() -> None:
    """No row leans on a test that was renamed or removed."""
    named = [(number, test) for number, (_, tests) in rows().items() for test in tests]
    assert [(number, test) for number, test in named if not rows_named_by(*test)] == []
