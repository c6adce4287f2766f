"""Fingerprints of functions: equal for equal code in every process, different for any change."""

from __future__ import annotations

import functools
import json
import operator
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txn.dataflow.fingerprints import LARGE, fingerprint

PROGRAM = '''
"""A program with everything in it that a fingerprint looks at."""
import functools
import os
import re
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path

import helpers
import pyspark.sql.functions as F
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

LIMIT = 10
NAMES = {"anna", "bert", "carl", "dora", "emil"}
RATES = {name: len(name) for name in NAMES}
SCHEMA = StructType([StructField("n", IntegerType())])
WORD = re.compile("[a-z]+")
HERE = object()


class Kind(Enum):
    FEW = 1


@dataclass
class Settings:
    least: int = 3
    since: date = date(2026, 1, 1)


@F.udf(IntegerType())
def twice(n):
    return helpers.double(n)


def odd(n):
    return n and even(n - 1)


def even(n):
    return not n or odd(n - 1)


def logged(function):
    @functools.wraps(function)
    def wrapper(df):
        return function(df)

    return wrapper


def above(least, settings=Settings()):
    def keep(df):
        """Keep them."""
        return df.where(F.col("n") > least).where(F.col("n") > settings.least)

    return keep


@logged
def clean(df):
    path = Path(__file__).parent, os.environ["HOME"], HERE, SCHEMA, Kind.FEW, WORD
    return df.where(f"n > {LIMIT}").where(F.col("name").isin({"x", "y", "z"})), path, odd, RATES


class Adder:
    __slots__ = ("add", "lock")

    def __init__(self, add):
        self.add, self.lock = add, HERE

    def __call__(self, df, by=1):
        return df.withColumn("n", twice("n") + self.add)

    def method(self, df):
        return self(df)


ALL = {
    "clean": clean,
    "above": above(5),
    "partial": functools.partial(above, 7),
    "lambda": lambda df: [part for part in ("a", "b") if df != part],
    "object": Adder(1),
    "method": Adder(1).method,
    "dict": lambda df, by={"a": lambda n: n + 1, "b": lambda n: n + 2}: by,
}
'''
HELPERS = "def double(n):\n    return 2 * n\n"
ASK = """
import json, sys
from txn.dataflow.fingerprints import fingerprint
for folder in sys.argv[1:]:
    for name in ("program", "helpers"):
        sys.modules.pop(name, None)
    sys.path.insert(0, folder)
    import program
    print(json.dumps({name: fingerprint(f) for name, f in program.ALL.items()}))
"""
Edits = list[tuple[str, str]]


def fingerprints(folder: Path, seed: int, *programs: Edits) -> list[dict[str, str]]:
    """Those of the program with these texts replaced, by a process of its own."""
    folders = []
    for number, edits in enumerate(programs):
        program, helpers = PROGRAM, HELPERS
        for old, new in edits:
            assert (old in program) != (old in helpers)
            program, helpers = program.replace(old, new), helpers.replace(old, new)
        folders.append(folder / f"{seed}-{number}")
        folders[-1].mkdir(parents=True)
        (folders[-1] / "program.py").write_text(program)
        (folders[-1] / "helpers.py").write_text(helpers)
    here = str(Path(__file__).parents[2])
    said = subprocess.run(
        [sys.executable, "-B", "-c", ASK, *map(str, folders)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": here, "PYTHONHASHSEED": str(seed)},
    )
    found: list[dict[str, str]] = [json.loads(line) for line in said.stdout.splitlines()]
    assert all(all(program.values()) for program in found)
    return found


def test_equal_code_has_one_fingerprint_in_every_process(tmp_path: Path) -> None:
    """Whatever the hash seed and the folder; and comments, docstrings and lines do not count."""
    [first] = fingerprints(tmp_path, 1, [])
    assert len(set(first.values())) == len(first)
    edits = [
        ('"""A program', '# A comment.\n\n"""The program'),
        ('"""Keep them."""', '"""Keep those that are above."""'),
        ("LIMIT = 10", "LIMIT = 5 + 5  # ten\nUNUSED = 1"),
    ]
    assert fingerprints(tmp_path, 2, [], edits) == [first, first]


CHANGES = {
    "constant": ("n > {LIMIT}", "n >= {LIMIT}", "clean"),
    "global": ("LIMIT = 10", "LIMIT = 11", "clean"),
    "global dict": ("len(name) for", "len(name) + 1 for", "clean"),
    "set": ('{"x", "y", "z"}', '{"x", "y"}', "clean"),
    "enum": ("FEW = 1", "FEW = 2", "clean"),
    "pattern": ("[a-z]+", "[a-z]*", "clean"),
    "schema": ('StructField("n"', 'StructField("m"', "clean"),
    "circle": ("return not n or odd(n - 1)", "return not n or odd(n - 3)", "clean"),
    "decorator": ("return function(df)", "return function(df).distinct()", "clean"),
    "closure": ("above(5)", "above(6)", "above"),
    "default": ("least: int = 3", "least: int = 4", "above partial"),
    "partial": ("above, 7", "above, 8", "partial"),
    "comprehension": ('("a", "b")', '("a", "c")', "lambda"),
    "attribute": ('"object": Adder(1)', '"object": Adder(2)', "object"),
    "method": ("return self(df)", "return self(df).distinct()", "object method"),
    "udf": ("return 2 * n", "return 3 * n", "object method"),
    "type of a udf": ("udf(IntegerType", "udf(LongType", "object method"),
    "lambda of a dict": ("n + 2", "n + 3", "dict"),
}


def test_every_change_is_seen_where_it_counts(tmp_path: Path) -> None:
    """Of each change, the functions that it reaches have another fingerprint, and no others."""
    programs = [[(old, new)] for old, new, _ in CHANGES.values()]
    before, *after = fingerprints(tmp_path, 1, [], *programs)
    seen = {
        what: " ".join(name for name in before if before[name] != changed[name])
        for what, changed in zip(CHANGES, after, strict=True)
    }
    assert seen == {what: reached for what, (_, _, reached) in CHANGES.items()}


class Moody:
    """An object that cannot be looked at."""

    @property
    def __dict__(self) -> Any:
        raise RuntimeError("not now")

    def __call__(self) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    "value", [len, operator.itemgetter("n"), functools.partial(len), threading.Lock(), Moody()]
)
def test_what_has_no_stable_form_has_no_fingerprint(value: object) -> None:
    """A callable written in C, an object of a library, one whose own code raises."""
    assert fingerprint(value) is None


def test_large_collections_count_by_their_length() -> None:
    """A start takes no time for a table of millions of entries."""

    def over(values: list[int]) -> Callable[[], int]:
        return lambda: sum(values)

    small, large = [0] * LARGE, [0] * (LARGE + 1)
    assert fingerprint(over(small)) != fingerprint(over([1, *small[1:]]))
    assert fingerprint(over(large)) == fingerprint(over([1, *large[1:]]))
    assert fingerprint(over(large)) != fingerprint(over([0, *large]))


def test_collections_that_hold_themselves_end() -> None:
    """A circle of lists or dicts is a form like any other."""
    circle: list[Any] = [1]
    circle.append({"again": circle})
    other: list[Any] = [2]
    other.append({"again": other})
    assert fingerprint(circle) == fingerprint(circle)
    assert fingerprint(circle) != fingerprint(other)


def test_a_variable_that_was_never_set_is_no_value() -> None:
    """A function that refers to one has a fingerprint all the same, another than with a value."""

    def over(value: int | None) -> Callable[[], int | None]:
        if value is not None:
            held = value
        return lambda: held

    assert None not in (unset := fingerprint(over(None)), fingerprint(over(1)))
    assert len({unset, fingerprint(over(1)), fingerprint(over(2))}) == 3
