"""Recognise the tables of earlier runs when the program renames them. Pure.

A table is known by its own id (Delta's), which the record of the program has, so a moved folder is
a moved folder. Tables without a recorded id, of an earlier release or of a committer that has none,
are recognised by the committed txid of this very topology that they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile

from txn.errors import RecoveryRefusedError
from txn.interfaces import Publication
from txn.protocol.records import CommittedRecord, Progress
from txn.protocol.recovery import Newest

__all__ = ["by_todays_names", "declared_and_read", "filled_and_gone", "recorded_ids"]


def recorded_ids(progress: Progress) -> dict[str, str]:
    """Return the recorded id of each table that the committed record names, if it has one."""
    recorded = progress.program.tables if progress.program is not None else {}
    return {name: recorded[name] for name in progress.committed.tables if name in recorded}


def filled_and_gone(
    progress: Progress, names: Collection[str], ids: Mapping[str, str], place: Callable[[str], str]
) -> list[str]:
    """Return the tables that the last start has filled, that no commit names, and that are gone.

    Args:
        names: the tables of the program.
        ids: the ids of those that exist.
    """
    if progress.program is None:
        return []
    places = {place(name) for name in (*names, *progress.committed.tables)}
    recorded = progress.program.tables
    return [
        name
        for name in progress.program.filled
        if place(name) not in places and recorded.get(name) not in ids.values()
    ]


def declared_and_read(progress: Progress) -> tuple[Collection[str] | None, Collection[str]]:
    """Return the tables that the last run's program named, and the streams read for some table.

    The first is None if that is not recorded.
    """
    declared = None if progress.program is None else progress.program.declared
    return declared, progress.committed.spouts if progress.committed.tables else ()


def by_todays_names(
    topology: str,
    committed: CommittedRecord,
    newest: Newest,
    place: Callable[[str], str],
    *,
    unborn: Collection[str] = (),
    new: Collection[str] = (),
    dropped: Collection[str] = (),
    ids: Mapping[str, str] | None = None,
    recorded: Mapping[str, str] | None = None,
    filled: Collection[str] = (),
) -> CommittedRecord:
    """Return the committed record with the program's present names of the tables.

    Args:
        newest: the newest publication of each table of the program, before any is made.
        place: returns one name for all spellings of a place.
        unborn: tables that may still be empty although they were always declared.
        new: tables that may begin behind the committed txid.
        dropped: tables that may be missing from the program.
        ids: the ids of the program's tables.
        recorded: the ids of the tables in `committed`.
        filled: tables that the last start has filled, no commit has named, and this program lacks.

    Raises:
        RecoveryRefusedError: a table in ZooKeeper is missing from the program, or a table of the
            program does not hold the committed txid, and the configuration does not allow it. Both
            at once may be the same table under another path. Or another table is in the place of
            one in ZooKeeper.
    """
    ids, recorded = ids or {}, recorded or {}
    new_places, dropped_places = {place(name) for name in new}, {place(name) for name in dropped}
    names = _recognised(topology, committed, newest, place, ids, recorded)
    tables = {today: committed.tables[former] for former, today in names.items()}
    lost = [
        name for name in committed.tables if name not in names and place(name) not in dropped_places
    ]
    moved: list[str] = []
    for name, entry in sorted(newest.items(), key=lambda item: item[1] is None):
        if name in tables or (entry is None and place(name) in new_places):
            continue
        if not lost:
            if entry is None and committed.txid and name not in unborn:
                raise _begins_late(topology, name, committed.txid)
            continue
        candidates = [other for other in lost if name not in ids or other not in recorded]
        if entry is not None and not candidates:
            raise _another(topology, name, lost)
        if entry is not None and entry[1].last_txid <= committed.txid:
            tables[name] = entry[0]
            former = _namesake(name, candidates)
            lost = [other for other in lost if other != former]
            moved += [name] if former is None else []
            continue
        raise _moved_or_new(topology, name, entry, lost, committed.txid, place)
    lost += [name for name in filled if place(name) not in dropped_places]
    if len(lost) > len(moved):
        raise _left_out(topology, lost, moved)
    return committed.model_copy(update={"tables": tables})


def _recognised(
    topology: str,
    committed: CommittedRecord,
    newest: Newest,
    place: Callable[[str], str],
    ids: Mapping[str, str],
    recorded: Mapping[str, str],
) -> dict[str, str]:
    """Return former name -> present name of the tables that are known by place or by id."""
    declared = {place(name): name for name in newest}
    places = {
        name: today
        for name in committed.tables
        if (today := name if name in newest else declared.get(place(name))) is not None
    }
    settled = {n: t for n, t in places.items() if n in recorded and ids.get(t) == recorded[n]}
    at = {table_id: name for name, table_id in ids.items()}
    names = dict(settled)
    for name in sorted(committed.tables.keys() - settled.keys()):
        table_id = recorded.get(name)
        found = at.get(table_id) if table_id is not None else None
        if found in settled.values():
            table_id = found = None  # recorded under the former name of a table that was moved
        today = places.get(name)
        if found is not None and found not in places.values() and not (today and newest[today]):
            names[name] = found
        elif today is not None:
            if table_id is not None and today in ids:
                raise _replaced(topology, name, table_id, ids[today], found)
            names[name] = today
    return names


def _replaced(
    topology: str, name: str, table_id: str, present_id: str, found: str | None
) -> RecoveryRefusedError:
    where = "" if found is None else f", which is at '{found}' now"
    return RecoveryRefusedError(
        f"Table '{name}' of topology '{topology}' has the id {present_id}, but the topology's "
        f"table has the id {table_id}{where}: another table was put in its place. Nothing was "
        f"changed. Put the former table back to '{name}', or name a place for it that no other "
        "table of the topology has had.",
        number="TXN-808",
    )


def _namesake(name: str, lost: Collection[str]) -> str | None:
    """Return the lost table whose path ends most like `name`; None if it is not unique."""

    def alike(other: str) -> int:
        pairs = zip(reversed(name.split("/")), reversed(other.split("/")), strict=False)
        return sum(1 for _ in takewhile(lambda parts: parts[0] == parts[1], pairs))

    most = max(map(alike, lost), default=0)
    best = [other for other in lost if alike(other) == most]
    return best[0] if most and len(best) == 1 else None


def _another(topology: str, name: str, lost: Sequence[str]) -> RecoveryRefusedError:
    names = ", ".join(map(repr, lost))
    return RecoveryRefusedError(
        f"The program names table '{name}' and no longer {names} of topology '{topology}'. By its "
        f"id, '{name}' is another table than {names}: it was not moved from there. Nothing was "
        f"changed. Name the place where {names} is now, or put it back; or, if you no longer want "
        f"it, set TopologyConfig(dropped_tables=({names},)), or --set "
        f"dropped_tables={','.join(lost)}.",
        number="TXN-807",
    )


def _moved_or_new(
    topology: str,
    name: str,
    entry: tuple[int, Publication] | None,
    lost: Sequence[str],
    committed: int,
    place: Callable[[str], str],
) -> RecoveryRefusedError:
    former = _namesake(name, lost)
    before = ", ".join(map(repr, lost)) if former is None else f"'{former}'"
    if entry is not None:
        return RecoveryRefusedError(
            f"Table '{name}' of topology '{topology}' holds txid {entry[1].last_txid}, and "
            f"ZooKeeper has committed txid {committed}, but does not know the table by this "
            "name. Nothing was changed. Run the topology once with the table where it was "
            f"({before}), and move it when the run has ended well.",
            number="TXN-807",
        )
    way_out = f"Name the place where it is, or put it back to '{name}'."
    if former is None:
        it, unwanted = ("both are the same table", f"{before},")
        if len(lost) > 1:
            it, unwanted = f"it is one of {before}", "..."
        way_out = (
            f"If {it}, name the place where it is now. If '{name}' is a new table, and you "
            "no longer want what it replaces, set "
            f"TopologyConfig(dropped_tables=({unwanted}), new_tables=({name!r},))."
        )
    return RecoveryRefusedError(
        f"ZooKeeper knows table {before} of topology '{topology}', which the program does not "
        f"name; the program names table '{name}', which holds nothing. Nothing was changed. "
        f"'{name}' means '{place(name)}' here; a relative path starts at the working directory. "
        f"{way_out}",
        number="TXN-807",
    )


def _begins_late(topology: str, table: str, committed: int) -> RecoveryRefusedError:
    return RecoveryRefusedError(
        f"Table '{table}' is new to topology '{topology}', which has committed txid {committed}: "
        "it would lack the rows of all txids up to that one. Nothing was changed. For a table with "
        f"all rows, set TopologyConfig(backfilled_tables=({table!r},)), or --set "
        f"backfilled_tables={table}: what was read is read anew for it. To accept that it begins "
        f"with the next txid, set TopologyConfig(new_tables=({table!r},)), or --set "
        f"new_tables={table}.",
        number="TXN-809",
    )


def _left_out(topology: str, tables: Sequence[str], moved: Sequence[str]) -> RecoveryRefusedError:
    names = ", ".join(map(repr, tables))
    if moved:
        return RecoveryRefusedError(
            f"The program does not name the tables {names} of topology '{topology}' any more, and "
            f"only {', '.join(map(repr, moved))} can be one of them under a new name. Nothing was "
            "changed. Put the others back; or, if you no longer want them, set "
            "TopologyConfig(dropped_tables=(...,)).",
            number="TXN-812",
        )
    return RecoveryRefusedError(
        f"The program does not name table {names} of topology '{topology}' any more. With the "
        "next txid it would fall behind. Nothing was changed. Put it "
        f"back; or, if you no longer want it, set TopologyConfig(dropped_tables=({names},)), "
        f"or --set dropped_tables={','.join(tables)}.",
        number="TXN-812",
    )
