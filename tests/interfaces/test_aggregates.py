"""The contract of an aggregate: which of its own methods and of those of its parents count."""

from __future__ import annotations

from typing import Any

import pytest

from txn.interfaces import Aggregate


class Plain(Aggregate):
    """What every aggregate defines; its expressions are texts."""

    def partial(self) -> Any:
        return "plain"

    def combine(self, stored: Any, partial: Any) -> Any:
        return "plain"

    def zero(self) -> Any:
        return "zero"


class Typed(Plain):
    """Everything for known types."""

    def partial_of(self, kinds: Any) -> Any:
        return "typed"

    def combine_as(self, stored: Any, partial: Any, kind: Any) -> Any:
        return "typed"

    def merge(self, partial: Any, txid: Any, kind: Any) -> Any:
        return "typed"


class OtherPartial:
    """A mixin."""

    def partial(self) -> Any:
        return "mixed in"


class Mixed(OtherPartial, Typed):
    """A typed one, whose rows are others."""


class OtherCombine(Typed):
    """A typed one with its own arithmetic."""

    def combine(self, stored: Any, partial: Any) -> Any:
        return "own"


class TypedAgain(OtherCombine):
    """That one, with a typed method of its own."""

    def combine_as(self, stored: Any, partial: Any, kind: Any) -> Any:
        return "typed again"


class Folded(Typed):
    """One whose stored values are not partials."""

    def initial(self, partial: Any) -> Any:
        return "folded"


class OtherFold(Folded):
    """A fold of its own."""

    def combine(self, stored: Any, partial: Any) -> Any:
        return "own"


@pytest.mark.parametrize(
    ("kind", "partial", "combined", "merges"),
    [
        (Plain, "plain", "plain", False),
        (Typed, "typed", "typed", True),
        (Mixed, "mixed in", "typed", True),
        (OtherCombine, "typed", "own", False),
        (TypedAgain, "typed", "typed again", False),
        (OtherFold, "typed", "own", True),
    ],
)
def test_the_method_that_a_subclass_overrides_counts(
    kind: type[Aggregate], partial: str, combined: str, merges: bool
) -> None:
    """A plain method hides the typed ones that its class inherits, and no others."""
    aggregate: Any = kind()
    assert aggregate.partial_of({}) == partial
    assert aggregate.combine_as("a", "b", None) == combined
    assert (kind.merge is not Aggregate.merge) == merges
