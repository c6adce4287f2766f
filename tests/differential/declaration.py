"""A whole program as plain data: what a seed becomes, what is printed, shrunk and run again."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["KEEPING", "TABLES", "Change", "Life", "Program", "Source", "Step"]

Row = tuple[Any, ...]
"""Values as `values.encode` writes them, in the order of the source's columns."""
Part = tuple[Row, ...]
Variant = tuple[Part, ...]
"""What one attempt reads: a part for each partition; a source without partitions has one."""

KEEPING = ("drop_duplicates", "join_in_time", "session_windows")
"""Steps that keep rows which later txids look up."""
TABLES = ("append", "state")
"""Steps that make a table; every other one makes a stream."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Source(_Model):
    """A spout and all that it will ever have.

    Args:
        partitions: how many; 0: it is no partitioned spout.
        known: whether `open` tells the columns.
        batches: of each txid; None: idle. Attempt n of an opaque source has the n-th variant, or
            the last one that there is.
        called: the names that its stream has had, the newest last; none: its own.
    """

    name: str
    kind: Literal["transactional", "opaque", "non_transactional"]
    partitions: int
    known: bool
    columns: tuple[tuple[str, str], ...]
    batches: tuple[tuple[Variant, ...] | None, ...]
    called: tuple[str, ...] = ()


class Step(_Model):
    """A stream made of others, or a table made of one; see `tests.differential.build`."""

    id: str
    op: str
    of: tuple[str, ...]
    args: dict[str, Any] = {}


class Change(_Model):
    """One difference to the program of the life before; see `tests.differential.changes`."""

    op: str
    table: str
    args: dict[str, Any] = {}


class Life(_Model):
    """One run of the topology, by a process that may die.

    Args:
        changes: what its program changes; later lives run the changed program, too.
        until: a txid; None: until it is caught up.
        crash: the point at which it dies; None: it ends well.
        nth: at which arrival there.
        then: what is done to the tables before the next life.
    """

    changes: tuple[Change, ...] = ()
    until: int | None = None
    crash: str | None = None
    nth: int = 1
    then: tuple[str, ...] = ()


class Program(_Model):
    """Everything that a run depends on.

    Args:
        config: of the topology.
        conf: settings of the user's Spark session.
        compiled: whether Spark compiles its plans, or interprets them, which is quicker here.
        large: whether its states count as large: queries read only the keys of their batches.
    """

    seed: int
    config: dict[str, Any] = {}
    conf: dict[str, str] = {}
    compiled: bool = False
    large: bool = False
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    lives: tuple[Life, ...]

    @property
    def txids(self) -> int:
        """How many txids its sources have."""
        return max((len(source.batches) for source in self.sources), default=0)

    @property
    def tables(self) -> tuple[Step, ...]:
        """The steps that make tables."""
        return tuple(step for step in self.steps if step.op in TABLES)

    def step(self, name: str) -> Step:
        """The step of this id."""
        return next(step for step in self.steps if step.id == name)
