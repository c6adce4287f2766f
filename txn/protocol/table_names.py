"""Recognise the tables of earlier runs when the program renames them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import takewhile

from txn.errors import RecoveryRefusedError
from txn.interfaces import Publication
from txn.protocol.records import CommittedRecord
from txn.protocol.recovery import Newest

__all__ = ["by_todays_names"]


def by_todays_names(
    topology: str,
    committed: CommittedRecord,
    newest: Newest,
    place: Callable[[str], str],
    *,
    unborn: Collection[str] = (),
    new: Collection[str] = (),
    dropped: Collection[str] = (),
) -> CommittedRecord:
    """Return the committed record with the program's present names of the tables.

    A moved table is recognised by the committed txid of this very topology that it holds.

    Args:
        newest: the newest publication of each table of the program, before any is made.
        place: returns one name for all spellings of a place.
        unborn: tables that may still be empty although they were always declared.
        new: tables that may begin behind the committed txid.
        dropped: tables that may be missing from the program.

    Raises:
        RecoveryRefusedError: a table in ZooKeeper is missing from the program, or a table of the
            program does not hold the committed txid, and the configuration does not allow it. Both
            at once may be the same table under another path.
    """
    declared = {place(name): name for name in newest}
    new_places, dropped_places = {place(name) for name in new}, {place(name) for name in dropped}
    tables, lost = {}, []
    for name, version in committed.tables.items():
        today = name if name in newest else declared.get(place(name))
        if today is not None:
            tables[today] = version
        elif place(name) not in dropped_places:
            lost.append(name)
    moved: list[str] = []
    for name, entry in sorted(newest.items(), key=lambda item: item[1] is None):
        if name in tables or (entry is None and place(name) in new_places):
            continue
        if not lost:
            if entry is None and committed.txid and name not in unborn:
                raise _begins_late(topology, name, committed.txid)
            continue
        if entry is not None and entry[1].last_txid <= committed.txid:
            tables[name] = entry[0]
            former = _namesake(name, lost)
            lost = [other for other in lost if other != former]
            moved += [name] if former is None else []
            continue
        raise _moved_or_new(topology, name, entry, lost, committed.txid, place)
    if len(lost) > len(moved):
        raise _left_out(topology, lost, moved)
    return committed.model_copy(update={"tables": tables})


def _namesake(name: str, lost: Collection[str]) -> str | None:
    """Return the lost table whose path ends most like `name`; None if it is not unique."""

    def alike(other: str) -> int:
        pairs = zip(reversed(name.split("/")), reversed(other.split("/")), strict=False)
        return sum(1 for _ in takewhile(lambda parts: parts[0] == parts[1], pairs))

    most = max(map(alike, lost), default=0)
    best = [other for other in lost if alike(other) == most]
    return best[0] if most and len(best) == 1 else None


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
        "it would lack the rows of all txids up to that one. Nothing was changed. To accept "
        f"that, set TopologyConfig(new_tables=({table!r},)), or --set new_tables={table}. "
        "For a table with all rows, give the topology a new name and new tables.",
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
        "next txid it would fall behind, and could not be put back. Nothing was changed. Put it "
        f"back; or, if you no longer want it, set TopologyConfig(dropped_tables=({names},)), "
        f"or --set dropped_tables={','.join(tables)}.",
        number="TXN-812",
    )
