"""The numbers of errors: code, page and `txn explain` say the same."""

from __future__ import annotations

import ast
import copy
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import txn
from txn.cli import cli
from txn.cli.errors import UNEXPECTED, numbered
from txn.errors import ColumnsUnknownError, FencedError, TopologyError, TxnError
from txn.operations.explain import explanations

ROOT = Path(txn.__file__).parents[1]
PAGE = ROOT / "txn" / "errors.md"
NUMBER = re.compile(r"TXN-\d+")


def code() -> Iterator[ast.AST]:
    """Every piece of syntax of the three packages."""
    for package in ("txn", "spouts", "committers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name != "explain.py":  # whose docstrings have examples
                yield from ast.walk(ast.parse(path.read_text("utf-8")))


def test_every_number_of_the_code_is_explained_and_no_other() -> None:
    """Each number in the code has an entry, and each entry is a number in the code."""
    used = {
        node.value
        for node in code()
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and NUMBER.fullmatch(node.value)
    }
    assert sorted(used) == list(explanations())


def test_explain_knows_every_entry_of_the_page() -> None:
    """Each heading of txn/errors.md has its cause and its remedy below it."""
    headings = re.findall(r"^### (TXN-\d+)", PAGE.read_text("utf-8"), re.M)
    assert headings == list(explanations())


def test_every_class_of_errors_has_a_number() -> None:
    """Also a plugin's error with nothing but a text has the number of its class."""
    classes = [TxnError]
    for each in classes:
        classes += each.__subclasses__()
    ours = {c for c in classes if c.__module__.split(".")[0] in ("txn", "spouts", "committers")}
    assert {c.__name__ for c in ours if c.number not in explanations()} == set()
    assert {c.__name__ for c in ours - {TxnError} if c.number == TxnError.number} == set()


def test_an_error_shows_its_number() -> None:
    """As an attribute, in a traceback and on the command line; its text stays as it is."""
    error = TopologyError("Not so.", number="TXN-105")
    assert (str(error), error.number) == ("Not so.", "TXN-105")
    assert TopologyError("Not so.").number == "TXN-100"
    assert ColumnsUnknownError("who knows", frozenset({"s"})).number == "TXN-414"
    assert copy.copy(error).number == "TXN-105"
    assert numbered(FencedError("gone\nbelow")) == "gone [TXN-606]\nbelow"
    assert numbered(ValueError("x")) == f"ValueError: x (--traceback shows where) [{UNEXPECTED}]"
    if hasattr(error, "add_note"):
        (_, note) = "".join(traceback.format_exception_only(error)).splitlines()
        assert note == "TXN-105 (`txn explain TXN-105` has cause and remedy)"


@pytest.mark.parametrize("number", ["TXN-204", "txn-204", "[TXN-204]", "204"])
def test_explain_prints_cause_and_remedy(number: str) -> None:
    """However the number was copied."""
    result = CliRunner().invoke(cli, ["explain", number])
    assert result.exit_code == 0
    assert result.output.startswith("TXN-204: Jars are missing\n\nDelta's jars")
    assert "Remedy: Connect to the network once" in result.output


def test_explain_lists_all_numbers_and_refuses_others() -> None:
    """Without a number it lists them; an unknown one is refused with what a number looks like."""
    listed = CliRunner().invoke(cli, ["explain"]).output.splitlines()
    assert [line.split()[0] for line in listed] == list(explanations())
    unknown = CliRunner().invoke(cli, ["explain", "TXN-999"])
    assert unknown.exit_code == 1
    assert "There is no error 'TXN-999'. Numbers look like TXN-101" in unknown.output
    assert unknown.output.rstrip().endswith("[TXN-100]")


def test_no_error_of_a_wide_class_goes_without_a_number_of_its_own() -> None:
    """Where a class stands for many causes, each raise says which one it is."""
    wide = {"BatchError", "SetupError", "SourceChangedError", "TableRefusedError", "TopologyError"}
    bare = [
        ast.unparse(node)
        for node in code()
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") in wide
        and not any(keyword.arg == "number" for keyword in node.keywords)
    ]
    assert bare == []
