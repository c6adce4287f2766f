"""One test for many files: what a parametrized test would show, without a test's costs for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["for_each"]

T = TypeVar("T")


def for_each(
    cases: Iterable[T], name: Callable[[T], str] = str
) -> Callable[[Callable[[T], None]], Callable[[], None]]:
    """Make one test of a check, over all cases; it fails with the names of those that fail."""

    def make(check: Callable[[T], None]) -> Callable[[], None]:
        def test() -> None:
            failed = {}
            for case in cases:
                try:
                    check(case)
                except AssertionError as error:
                    failed[name(case)] = str(error)
            assert failed == {}, failed

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        test.__module__, test.__qualname__ = check.__module__, check.__qualname__
        return test

    return make
