"""docs/guarantees.md and the tests hold each other: every sentence is quoted by a test."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.protocol.scenarios.language import scenarios
from tests.thorough import EACH_COMMIT, SAMPLE, SHARDS, quoting, shard_of

ROOT = Path(__file__).parent.parent
ITEM = re.compile(r"^- \*\*(\d+)\.\*\* (.+)$")
TEST = re.compile(r"^ +- `(?:(.+\.py)::|scenario )(\w+)`$")
SCENARIOS = {each.name: each.doc for each in scenarios()}
"""Those of tests/protocol/scenarios, which a guarantee names as `scenario NAME`."""


def guarantees() -> dict[str, list[tuple[str | None, str]]]:
    """Sentence -> (file, test name) of the tests named beside it; a scenario has no file."""
    found: dict[str, list[tuple[str | None, str]]] = {}
    for line in section():
        if item := ITEM.match(line):
            found[item[2]] = tests = []
        elif test := TEST.match(line):
            tests.append((test[1], test[2]))
    return found


def section() -> list[str]:
    """The lines of the list of sentences."""
    text = (ROOT / "docs/guarantees.md").read_text("utf-8")
    return re.split("^## ", text, flags=re.MULTILINE)[1].splitlines()[1:]


def docstring(file: str | None, name: str) -> str:
    """Docstring of one test, in one line; the empty string when there is no such test."""
    return (SCENARIOS if file is None else docstrings(file)).get(name, "")


@functools.cache
def docstrings(file: str) -> dict[str, str]:
    """Name -> docstring, in one line, of the tests of a file."""
    path = ROOT / file
    nodes = ast.walk(ast.parse(path.read_text())) if path.exists() else ()
    tests = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    return {test.name: " ".join((ast.get_docstring(test) or "").split()) for test in tests}


def test_every_guarantee_is_quoted_by_the_test_named_first():
    """A sentence in docs/guarantees.md is the docstring of the test that proves it."""
    wrong = [
        (sentence, tests[0])
        for sentence, tests in guarantees().items()
        if sentence not in docstring(*tests[0])
    ]
    assert wrong == []


def test_every_test_that_a_guarantee_names_exists():
    """No guarantee leans on a test that was renamed or removed."""
    missing = [test for tests in guarantees().values() for test in tests if not docstring(*test)]
    assert missing == []


def test_there_are_guarantees_and_each_names_a_test():
    """The page has been read at all, and no sentence stands alone."""
    found = guarantees()
    assert len(found) >= 20
    assert [sentence for sentence, tests in found.items() if not tests] == []


def test_the_numbers_of_the_guarantees_are_complete():
    """Each number stands once, and every line is a heading, a sentence or a test."""
    numbers = [int(item[1]) for item in map(ITEM.match, section()) if item]
    assert sorted(numbers) == [*range(1, len(numbers) + 1)]
    begun = section()[section().index("### Records and files") :]
    known = re.compile(rf"^$|^### \w|{ITEM.pattern}|{TEST.pattern}")
    assert [line for line in begun if not known.match(line)] == []


def test_the_suite_shows_every_guarantee():
    """Of the tests that a guarantee names, `make test` runs a case of one at least."""
    sampled = {
        (f"tests/{f}", t): cases for f, tests in SAMPLE.items() for t, cases in tests.items()
    }
    left = [
        sentence
        for sentence, tests in guarantees().items()
        if all(sampled.get((file or "", test)) == [] for file, test in tests)
    ]
    assert left == []


def test_what_quotes_a_guarantee_is_in_every_part_of_the_suite(request: pytest.FixtureRequest):
    """No run of `make test` leaves out the first test of a guarantee; others have one part each."""
    first = {tests[0] for tests in guarantees().values() if tests[0][0]}
    assert first == {tuple(name.split("::")) for name in quoting()}
    parts = {
        (str(item.path.relative_to(ROOT)), item.originalname): shard_of(item)
        for item in request.session.items
        if isinstance(item, pytest.Function)
    }
    always = {test for test in parts if test in first or test[0] in EACH_COMMIT}
    assert [test for test, part in parts.items() if (part is None) != (test in always)] == []
    assert set(parts.values()) <= {None, *range(SHARDS)}
