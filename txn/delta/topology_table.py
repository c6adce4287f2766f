"""A topology's table as its log describes it: its owner, its shape, and what a start refuses.

A committer refuses with these texts when it opens the table, and `txn plan` and `txn run` from the
log alone, before Spark starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from txn.changes import Change, TableShape, clauses, compare_tables, describe_refused, refused
from txn.delta.commits import BROKEN, Commit
from txn.delta.definition import TableDefinition
from txn.delta.features import refused_features
from txn.delta.folders import KEPT, SCRATCH
from txn.errors import TableRefusedError
from txn.interfaces import Semantics
from txn.storage.locations import identity

__all__ = [
    "CHANGED_FORMAT",
    "EXPIRING_FORMAT",
    "SHOWN_FORMAT",
    "ShapePolicy",
    "changed_by",
    "refuse_differences",
    "refuse_features",
    "refuse_foreign",
    "refuse_foreign_folder",
    "refuse_newer",
    "refuse_unusable",
    "shape_changes",
    "stored_shape",
    "with_culprit",
]

CHANGED_FORMAT = "2"
"""The format of a table whose shape was changed: release 0.1.0 does not know `txn.former`."""
EXPIRING_FORMAT = "3"
"""The format of a state whose keys end: other releases would show ended keys."""
SHOWN_FORMAT = "4"
"""The format of a state that holds values as readers see them, the newest one: other releases
would add to these values."""


@dataclass(frozen=True)
class ShapePolicy:
    """The changes of a table's shape that the settings allow."""

    dropped_columns: frozenset[str] = frozenset()
    """The columns of the table that may go away."""
    rebuilt: bool = False
    """Whether its rows may be written anew."""
    refilled: bool = False
    """Whether a next generation, filled beside it, takes the place of all its rows."""

    @classmethod
    def of(cls, table: str, dropped: Iterable[str], rebuilt: Iterable[str]) -> ShapePolicy:
        """Select the settings for one table, by whatever spelling of its path.

        Args:
            dropped: columns, each as TABLE:COLUMN (`dropped_columns`).
            rebuilt: tables (`rebuilt_tables`).
        """
        own = identity(table)
        # Either part may have colons of its own.
        parts = [(e[:at], e[at + 1 :]) for e in dropped for at in range(len(e)) if e[at] == ":"]
        return cls(
            frozenset(column for path, column in parts if identity(path) == own),
            any(identity(path) == own for path in rebuilt),
        )


def stored_shape(table: TableDefinition, name: str, *, is_empty: bool) -> TableShape:
    """The shape that a table's log describes.

    Raises:
        TableRefusedError: its properties are not a topology's.
    """
    try:
        return TableShape.of_properties(table.configuration, table.fields, is_empty=is_empty)
    except BROKEN as error:
        raise TableRefusedError(
            f"Table {name} does not describe itself as a topology does: a property txn.keys, "
            "txn.values, txn.buckets, txn.expiry, txn.former or txn.since was changed. Restore it.",
            number="TXN-311",
        ) from error


def shape_changes(
    table: TableDefinition,
    name: str,
    program: TableShape,
    policy: ShapePolicy,
    *,
    is_empty: bool,
) -> tuple[Change, ...]:
    """Return every difference between a table and the one that a program needs.

    Args:
        is_empty: True if the table has no rows: it takes every shape at once.

    Raises:
        TableRefusedError: its properties are not a topology's.
    """
    return compare_tables(
        name,
        stored_shape(table, name, is_empty=is_empty),
        program,
        dropped=policy.dropped_columns,
        rebuilt=policy.rebuilt,
        refilled=policy.refilled,
    )


def refuse_differences(
    name: str, changes: Collection[Change], culprit: Commit | None = None
) -> None:
    """Refuse a table with differences that the settings do not allow, or that somebody else made.

    Args:
        culprit: the newest version in which another writer has changed the table's definition.

    Raises:
        TableRefusedError: with all of them, and the ways out.
    """
    differs = f"Table {name} differs from the program:"
    if culprit is not None and changes:
        raise TableRefusedError(
            f"{differs} {clauses(changes)}. It was changed in {changed_by(culprit)}. Undo that.",
            number="TXN-304",
        )
    if not_allowed := refused(changes):
        raise TableRefusedError(
            f"{differs} {describe_refused(not_allowed)} Nothing was changed.", number="TXN-304"
        )


def with_culprit(error: TableRefusedError, culprit: Commit | None) -> TableRefusedError:
    """Add the version in which another writer has changed the table's definition, if any."""
    if culprit is None:
        return error
    text = f"{error} It was changed in {changed_by(culprit)}."
    return TableRefusedError(text, number=error.number)


def changed_by(commit: Commit) -> str:
    """Describe a version: number, operation, writer, time."""
    moment = datetime.fromtimestamp(commit.timestamp_ms / 1000, tz=timezone.utc)
    when = f", {moment:%Y-%m-%d %H:%M:%S} UTC" if commit.timestamp_ms else ""
    return f"version {commit.version} ({commit.operation} by {commit.writer}{when})"


def refuse_unusable(
    table: TableDefinition, name: str, topology: str, kind: str, semantics: Semantics | str
) -> None:
    """Refuse a table that is not the topology's, of a newer release, or with unknown features.

    Args:
        kind: of the table that the program needs; so is `semantics`.
    """
    refuse_foreign(table, name, topology)
    refuse_newer(table.configuration, name)
    refuse_features(table, name, kind, semantics)


def refuse_foreign(table: TableDefinition, name: str, topology: str) -> None:
    """Refuse a Delta table that no topology, or another one, has created."""
    owner = table.configuration.get("txn.topology")
    if owner is None:
        raise TableRefusedError(
            f"Table {name} is a Delta table that no topology has made: it has no property "
            "txn.topology, so its rows cannot be distinguished from a topology's. Give "
            "this committer a path of its own.",
            number="TXN-301",
        )
    if owner != topology:
        raise TableRefusedError(
            f"Table {name} belongs to topology '{owner}', not to '{topology}'. A table has one "
            "writer: give this committer a path of its own, or run the topology under its old "
            "name.",
            number="TXN-302",
        )


def refuse_newer(properties: Mapping[str, str | None], name: str) -> None:
    """Refuse a table whose format a newer release has changed."""
    stored = properties.get("txn.format") or ""
    if stored.isdecimal() and int(stored) > int(SHOWN_FORMAT):
        raise TableRefusedError(
            f"Table {name} has format version {stored}, and this program knows {SHOWN_FORMAT}. "
            "Run the version of txn that wrote it, or newer.",
            number="TXN-802",
        )


def refuse_foreign_folder(entries: Iterable[str], name: str) -> None:
    """Refuse a folder that is not a Delta table and holds files of something else.

    Args:
        entries: names of everything directly below it.
    """
    # Scratch and the spouts' files are txn's; a crash while creating may leave an empty log.
    foreign = [entry for entry in entries if entry not in ("_delta_log", SCRATCH, KEPT)]
    if foreign:
        raise TableRefusedError(
            f"Folder {name} is not a Delta table and holds other files ('{foreign[0]}'). Give "
            "the committer an empty or new folder.",
            number="TXN-301",
        )


def refuse_features(
    table: TableDefinition, name: str, kind: str, semantics: Semantics | str
) -> None:
    """Refuse Delta features that the publisher, which writes the log itself, cannot honour.

    Raises:
        TableRefusedError: naming the feature.
    """
    features = refused_features(table, kind=kind, opaque=semantics == Semantics.OPAQUE)
    if features:
        raise TableRefusedError(
            f"Table {name} uses the Delta feature {features[0]}, which this publisher cannot "
            "honour. Drop the feature (ALTER TABLE ... DROP FEATURE, or unset the property), or "
            "give this committer a path of its own.",
            number="TXN-303",
        )
