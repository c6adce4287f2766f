"""Breadth-first search over a model: every state once, the shortest way to it, and the way out."""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, field

from tests.exhaustive.model import Broken, Model, Scope, State

__all__ = ["Found", "search"]


@dataclass
class Found:
    """What a search has come to."""

    scope: Scope
    states: int = 0
    moves: int = 0
    depth: int = 0
    seconds: float = 0.0
    broken: str | None = None
    history: list[str] = field(default_factory=list)
    """The shortest one that breaks the invariant."""

    def __str__(self) -> str:
        told = f"{self.states} states, {self.moves} moves, depth {self.depth}, {self.seconds:.1f} s"
        if self.broken is None:
            return told
        lines = [f"{n:3d}. {what}" for n, what in enumerate(self.history, 1)]
        return "\n".join([told, *lines, f"     BROKEN: {self.broken}"])


def search(scope: Scope, most: int | None = None) -> Found:
    """Look at every state of a scope, or at the first `most` of them.

    An invariant that does not hold ends it; so does a state from which the run cannot finish.
    """
    began, found, model = time.monotonic(), Found(scope), Model(scope)
    first = model.initial()
    numbers: dict[State, int] = {first: 0}
    parents, labels = array("l", [-1]), [""]
    sources, targets = array("l"), array("l")
    goals = []
    level, at = [first], 0
    while level and (most is None or len(numbers) < most):
        following: list[State] = []
        for state in level:
            number = numbers[state]
            if model.is_done(state):
                goals.append(number)
            moves = model.moves(state)
            while True:
                try:
                    what, after = next(moves)
                except StopIteration:
                    break
                except Broken as broken:
                    found.broken = str(broken)
                    found.history = way(parents, labels, number)
                    return ended(found, numbers, sources, at, began)
                known = numbers.get(after)
                if known is None:
                    known = numbers[after] = len(numbers)
                    parents.append(number)
                    labels.append(what)
                    following.append(after)
                sources.append(number)
                targets.append(known)
        level, at = following, at + 1
    if not level:
        stuck = first_stuck(len(numbers), goals, sources, targets)
        if stuck is not None:
            found.broken = "the run cannot finish from here"
            found.history = way(parents, labels, stuck)
    return ended(found, numbers, sources, at, began)


def ended(
    found: Found, numbers: dict[State, int], sources: array[int], depth: int, began: float
) -> Found:
    found.states, found.moves, found.depth = len(numbers), len(sources), depth
    found.seconds = time.monotonic() - began
    return found


def way(parents: array[int], labels: list[str], number: int) -> list[str]:
    history = []
    while number > 0:
        history.append(labels[number])
        number = parents[number]
    return history[::-1]


def first_stuck(
    count: int, goals: list[int], sources: array[int], targets: array[int]
) -> int | None:
    """The first state from which no goal can be reached: backwards from the goals."""
    heads = array("l", [-1]) * count
    rest = array("l", [-1]) * len(sources)
    for edge, target in enumerate(targets):
        rest[edge], heads[target] = heads[target], edge
    reached = bytearray(count)
    stack = list(goals)
    for number in goals:
        reached[number] = 1
    while stack:
        edge = heads[stack.pop()]
        while edge >= 0:
            source = sources[edge]
            if not reached[source]:
                reached[source] = 1
                stack.append(source)
            edge = rest[edge]
    return reached.find(0) if 0 in reached else None
