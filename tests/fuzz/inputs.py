"""Inputs for everything that is parsed: junk, and valid contents with something wrong in them.

How many: `TXN_FUZZ_INPUTS` in all, spread over the targets by their shares; a modest number without
it. `make fuzz` runs 120,000 and says how many there were.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

__all__ = ["COUNTED", "broken_bytes", "broken_json", "fuzz", "junk", "junk_text", "lines"]

F = TypeVar("F", bound=Callable[..., Any])

TOTAL = int(os.environ.get("TXN_FUZZ_INPUTS", "4000"))
COUNTED: Counter[str] = Counter()
"""Target -> inputs that were tried."""
SHARES = 100


def fuzz(share: int) -> Callable[[F], F]:
    """So many hundredths of all inputs, as different as Hypothesis makes them."""

    def decorate(test: F) -> F:
        number = max(20, TOTAL * share // SHARES)
        return settings(
            max_examples=number,
            deadline=None,
            # A recorded run must be new inputs; what failed is printed and goes into a test.
            database=None,
            derandomize="TXN_FUZZ_INPUTS" not in os.environ,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )(test)

    return decorate


def deep(levels: int) -> Any:
    """Lists within each other."""
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


junk_text = st.one_of(
    st.text(max_size=20),
    # Surrogates are what Hypothesis leaves out, and JSON does not.
    st.text(st.characters(exclude_categories=()), max_size=6),
    st.sampled_from(
        [
            "", "..", "../x", "/", "/etc/passwd", "a/../b", "a\0b", "\ud800", "\udcff", "\x1b[2J",
            "\u202e", "%2e%2e%2f", "zookeeper", "-1", "1e999", "NaN", "x" * 5000, "[/red]",
            "[bold]", ":smile:", "\u2215", "\uff0f", "9" * 400, "0x10", "true", "~nobody-of-that",
        ]
    ),
)  # fmt: skip

junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**400, -(10**400)]),
    st.floats(),
    junk_text,
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
    st.sampled_from([3, 40, 70, 300]).map(deep),
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to every part of a JSON value, the whole included."""
    found = [path]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += _places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += _places(inner, (*path, index))
    return found


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


@st.composite
def broken_json(draw: st.DrawFn, *examples: Any) -> Any:
    """A valid value with one to three things wrong: gone, replaced, added, nested, doubled."""
    value = json.loads(json.dumps(draw(st.sampled_from(examples))))
    for _ in range(draw(st.integers(1, 3))):
        places = _places(value)
        path = places[draw(st.integers(0, len(places) - 1))]
        if not path:
            if draw(st.integers(0, 20)) == 0:
                return draw(junk)
            continue
        parent, key = _at(value, path[:-1]), path[-1]
        how = draw(st.sampled_from(["remove", "replace", "add", "wrap", "rename"]))
        if how == "remove":
            del parent[key]
        elif how == "replace":
            parent[key] = draw(junk)
        elif how == "wrap":
            parent[key] = [parent[key]] if draw(st.booleans()) else {"x": parent[key]}
        elif isinstance(parent, dict):
            parent[draw(junk_text)] = draw(junk) if how == "add" else parent.pop(key)
        else:
            parent.insert(0, draw(junk))
    return value


@st.composite
def broken_bytes(draw: st.DrawFn, *examples: Any) -> bytes:
    """The JSON of such a value, perhaps with bytes changed, cut off, or a key given twice."""
    value = draw(broken_json(*examples))
    ascii_only = draw(st.booleans())
    text = json.dumps(value, ensure_ascii=ascii_only)
    if draw(st.booleans()) and text.startswith("{") and len(text) > 2:
        key, again = draw(st.sampled_from(sorted(value))), draw(junk)
        text = text[:-1] + f", {json.dumps(key)}: {json.dumps(again)}}}"
    data = text.encode("utf-8", "surrogatepass")
    how = draw(st.sampled_from(["whole", "whole", "cut", "insert", "change"]))
    where = draw(st.integers(0, max(0, len(data) - 1)))
    if how == "cut":
        return data[:where]
    if how == "insert":
        return data[:where] + draw(st.binary(min_size=1, max_size=4)) + data[where:]
    if how == "change":
        return data[:where] + draw(st.binary(min_size=1, max_size=1)) + data[where + 1 :]
    return data


@st.composite
def lines(draw: st.DrawFn, *examples: Any) -> bytes:
    """A commit file: some lines of JSON, at least one of them broken."""
    whole = st.sampled_from(examples).map(lambda value: json.dumps(value).encode())
    parts = draw(st.lists(whole, max_size=2))
    parts.insert(draw(st.integers(0, len(parts))), draw(broken_bytes(*examples)))
    return draw(st.sampled_from([b"\n", b"\r\n", b"\n\n"])).join(parts)
