"""The contract of an aggregate: which of its own methods and of those of its parents count."""

from __future__ import annotations

from typing import Any

import pytest

from txn.interfaces import Aggregate


def subclass(name: str, *bases: type, own: str) -> Any:
    """A class whose own methods return its name."""
    return type(name, bases, {method: lambda *_: name for method in own.split()})


PLAIN = subclass("plain", Aggregate, own="partial combine zero")
TYPED = subclass("typed", PLAIN, own="partial_of combine_as merge")
MIXED = subclass("mixed", subclass("mixin", object, own="partial"), TYPED, own="")
COMBINES = subclass("combines", TYPED, own="combine")
COMBINES_TYPED = subclass("combines typed", COMBINES, own="combine_as")
FOLDS = subclass("folds", subclass("stores other", TYPED, own="initial"), own="combine")


@pytest.mark.parametrize(
    ("kind", "partial", "combined", "merges"),
    [
        (PLAIN, "plain", "plain", False),
        (TYPED, "typed", "typed", True),
        (MIXED, "mixin", "typed", True),
        (COMBINES, "typed", "combines", False),
        (COMBINES_TYPED, "typed", "combines typed", False),
        (FOLDS, "typed", "folds", True),  # its partials are no stored values
    ],
)
def test_the_method_that_a_subclass_overrides_counts(
    kind: Any, partial: str, combined: str, merges: bool
) -> None:
    """A plain method hides the typed ones that its class inherits, and no others."""
    aggregate = kind()
    assert aggregate.partial_of({}) == partial
    assert aggregate.combine_as("stored", "partial", None) == combined
    assert (kind.merge is not Aggregate.merge) == merges
