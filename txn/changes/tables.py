"""Compare a table with the one that a program needs.

Every rule of docs/changing.md about a table's own shape is here. A name that the program renames
(`columns_were`) is compared under its former name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from txn.changes.change import Change, Verdict
from txn.changes.expiry import Expiry
from txn.changes.shape import STORED, TableShape, former_name

__all__ = ["IN_NEXT_GENERATION", "compare_tables", "half_published", "is_taken_back"]

IN_NEXT_GENERATION = ", in its next generation"
"""The end of a change's words, if the next generation brings it."""
_OTHER_PATH = "Give this committer a path of its own, or restore the former definition."
_NUMBER = "TXN-304"
_OPAQUE = "opaque"
_UPSERT = "upsert"
_LOG = "log"
_LOG_WITH_REMOVAL = "log-with-removal"
_NEWEST = "txn_newest"
"""The column of states whose keys end by their last event."""


def compare_tables(
    table: str,
    stored: TableShape,
    program: TableShape,
    *,
    dropped: Collection[str] = (),
    rebuilt: bool = False,
    refilled: bool = False,
) -> tuple[Change, ...]:
    """Return every difference between a table and the one that a program needs.

    Args:
        table: its path, as the program writes it.
        stored: the table as its log describes it.
        program: the table that the program needs; columns are compared if both are known.
        dropped: the columns that the settings give up (`dropped_columns`).
        rebuilt: whether the settings allow to rebuild it (`rebuilt_tables`).
        refilled: whether a next generation, filled beside it, takes the place of all its rows.
    """
    changes = _Comparison(table, stored, program, frozenset(dropped), rebuilt).changes()
    if refilled and stored.is_state == program.is_state:
        changes = [_in_next_generation(change) for change in changes]
    if stored.is_empty and stored.is_state == program.is_state:
        return tuple(replace(c, verdict=Verdict.FROM_NEXT, allowed=True) for c in changes)
    return tuple(c if c.allowed else replace(c, number=_NUMBER) for c in changes)


def is_taken_back(stored: str | None, program: str, *, rebuilds: bool) -> bool:
    """True if a table may change although it holds rows of a txid that other tables may lack.

    An opaque replay removes those rows and brings them again in the new shape.

    Args:
        stored: the table's semantics.
        program: the semantics that the program gives it.
        rebuilds: True if the change writes the table's rows anew.
    """
    return not rebuilds and stored == program == _OPAQUE


def half_published(table: str, txid: int) -> Change:
    """Return the refusal to change a table with rows of a txid that other tables may lack."""
    return Change(
        table,
        f"it holds rows of txid {txid}, which a crash left in this table and not in all others, so "
        "its shape cannot be changed yet",
        Verdict.REFUSED,
        f"Run the former program until that txid is committed (--until {txid}), then this one. If "
        "only the table's next generation waits, this one without the table in backfilled_tables "
        "does as well.",
        allowed=False,
        number=_NUMBER,
    )


class _Comparison:
    """The comparison of one table."""

    def __init__(
        self,
        table: str,
        stored: TableShape,
        program: TableShape,
        dropped: frozenset[str],
        rebuilt: bool,
    ) -> None:
        self._table = table
        self._stored = stored
        self._program = program
        self._dropped = dropped
        self._rebuilt = rebuilt

    def changes(self) -> list[Change]:
        """Return all differences."""
        if self._stored.is_state != self._program.is_state:
            what = f"it is a table of kind '{self._stored.kind}', not '{self._program.kind}'"
            return [self._refuse(what, _OTHER_PATH)]
        parts = [self._semantics()]
        if self._stored.is_state:
            names = (*self._program.keys, *self._program.values)
            parts.append(self._renames((*self._stored.keys, *self._stored.values), names))
            parts += [self._layout(), self._keys(), self._values(), self._removal(), self._expiry()]
            parts.append(self._types(self._program.keys))
            parts.append(self._types(self._program.values))
        else:
            columns = self._stored.columns or (), self._program.columns or ()
            parts += [self._renames(*columns), self._columns()]
        return [change for part in parts for change in part]

    # --- verdicts ----------------------------------------------------------------------------

    def _next(self, what: str) -> Change:
        return Change(self._table, what, Verdict.FROM_NEXT)

    def _refuse(self, what: str, way_out: str) -> Change:
        return Change(self._table, what, Verdict.REFUSED, way_out, allowed=False)

    def _rebuild(self, what: str) -> Change:
        way_out = (
            "To write the table's rows anew in the other shape, set "
            f"TopologyConfig(rebuilt_tables=({self._table!r},)), or --set "
            f"rebuilt_tables={self._table}. To do so beside the running topology, set "
            f"backfilled_tables after `{self._backfill()} --from {self._table}`. Or restore the "
            "former definition."
        )
        return Change(self._table, what, Verdict.REBUILD, way_out, allowed=self._rebuilt)

    def _backfill(self) -> str:
        return f"txn backfill FILE.py:TOPOLOGY --table {self._table}"

    def _drop(self, name: str, noun: str) -> Change:
        entry = f"{self._table}:{name}"
        since = self._stored.since.get(name)
        added = f" (added with txid {since})" if since else ""
        way_out = (
            f"A program that does not know '{name}' would end it: run the program that does. To "
            f"give it up, set TopologyConfig(dropped_columns=({entry!r},)), or --set "
            f"dropped_columns={entry}."
        )
        what = f"{noun} '{name}' of the table{added} is not in the program"
        return Change(self._table, what, Verdict.CHOICE, way_out, allowed=name in self._dropped)

    def _add(self, name: str, noun: str) -> Change:
        what = f"{noun} '{name}' is new"
        # Readers find a column in old files by its name, most of them in any case.
        old = {*self._stored.former, *self._stored.values, *(self._stored.columns or ())}
        if name.lower() in {column.lower() for column in old}:
            return self._rebuild(f"{what}, and old files of the table have a column of that name")
        return self._next(what)

    def _former_name(self, name: str, stored: Collection[str]) -> str:
        """The name in the table of a column of the program."""
        return former_name(name, stored, self._program.was)

    def _renames(self, stored: Collection[str], names: Collection[str]) -> Iterator[Change]:
        """Refuse a rename between two names of which the table, or the program, has both.

        Also one that is written the wrong way round.
        """
        for name, old in self._program.was.items():
            if name in stored and old in names and not (name in names or old in stored):
                yield self._refuse(
                    f"columns_were has '{name}' as the new name of '{old}', and the table has "
                    f"'{name}'",
                    f"Write the new name first: columns_were={{{old!r}: {name!r}}}.",
                )
        were = {name: self._program.was.get(name, name) for name in names}
        for name, old in were.items():
            former = self._former_name(name, stored)
            # A column that the program has under the former name as well was renamed long ago,
            # unless it has got that name from another column of the table in this very start.
            is_other = old not in were or (were[old] != old and were[old] in stored)
            if old != name and {old, name} <= set(stored) and is_other:
                what = f"columns_were renames '{old}' to '{name}', and the table has both"
                way_out = (
                    f"If '{old}' was renamed before, remove it from columns_were. Otherwise give "
                    "it a name that the table does not have; a later start may change that one."
                )
                yield self._refuse(what, way_out)
            if former != name and former in names:
                yield self._refuse(
                    f"'{former}' is renamed to '{name}', and the program has a new '{former}'",
                    f"Start once without the new '{former}', then with it.",
                )

    # --- a state table -----------------------------------------------------------------------

    def _semantics(self) -> Iterator[Change]:
        before, after = self._stored.semantics, self._program.semantics
        if before != after:
            # Only an opaque upsert table has rows of removed keys, and a column that marks them.
            is_marked = self._stored.kind == _UPSERT and self._stored.remove_where is not None
            change = self._rebuild if is_marked and before == _OPAQUE else self._next
            yield change(f"its semantics change from '{before}' to '{after}'")

    def _layout(self) -> Iterator[Change]:
        before, after = self._stored, self._program
        if _layout_of(before) != _layout_of(after):
            yield self._rebuild(
                f"its layout changes from '{_layout_of(before)}' to '{_layout_of(after)}'"
            )
        elif before.buckets != after.buckets:
            yield self._rebuild(f"its buckets change from {before.buckets} to {after.buckets}")

    def _keys(self) -> Iterator[Change]:
        stored, keys = self._stored.keys, self._program.keys
        former = [self._former_name(key, stored) for key in keys]
        gone = [name for name in stored if name not in former]
        for key, name in zip(keys, former, strict=True):
            if name not in stored:
                renamed = (
                    f"If it is '{gone[0]}' under another name, give the table "
                    f"columns_were={{{key!r}: {gone[0]!r}}}. Otherwise: "
                    if gone
                    else ""
                )
                yield self._refuse(
                    f"key '{key}' is new, and the table's rows do not have it",
                    f"{renamed}Count by other keys in a table of its own path, or set "
                    f"backfilled_tables after `{self._backfill()}`, which reads the table's "
                    "history anew.",
                )
            elif name != key:
                yield self._rebuild(f"key '{name}' is renamed to '{key}'")
        for name in gone:
            yield self._rebuild(
                f"key '{name}' goes away, and rows that differ only in it are merged"
            )
        if sorted(former) == sorted(stored) and tuple(former) != stored:
            change = self._rebuild if self._program.buckets else self._next
            yield change(
                f"the order of its keys changes from {_listed(stored)} to {_listed(former)}"
            )

    def _values(self) -> Iterator[Change]:
        stored, values = self._stored.values, self._program.values
        used = set()
        for name, text in values.items():
            former = self._former_name(name, stored)
            used.add(former)
            if former not in stored:
                yield self._add(name, "value")
            elif stored[former] != text:
                yield self._refuse(
                    f"value '{name}' is {stored[former]} in the table and {text} in the program",
                    f"Give {text} another name: it then begins with the next txid. Or set "
                    f"backfilled_tables after `{self._backfill()}`, which reads the table's "
                    "history anew.",
                )
            elif former != name:
                yield self._rebuild(f"value '{former}' is renamed to '{name}'")
        yield from (self._drop(name, "value") for name in stored if name not in used)

    def _removal(self) -> Iterator[Change]:
        before, after = self._stored.remove_where, self._program.remove_where
        if before == after:
            return
        what = f"remove_where changes from {_condition(before)} to {_condition(after)}"
        # Without a condition the table has no column for removed keys, and rows of removed keys
        # would come back.
        goes = after is None or (before is None and self._stored.kind == _LOG)
        yield self._rebuild(what) if goes else self._next(what)

    def _expiry(self) -> Iterator[Change]:
        before, after = self._stored.expiry, self._program.expiry
        if before == after:
            return
        what = f"the end of its keys changes from {_end(before)} to {_end(after)}"
        is_same = before and after and replace(before, after=0) == replace(after, after=0)
        if before is None:
            # A column of that name would have times of rows from before.
            is_known = _NEWEST in {*self._stored.former, *(self._stored.columns or ())}
            goes = after is not None and after.by == "last event" and is_known
        else:
            # Rows of keys that have ended are in files still, and would come back.
            longer = after is not None and after.after > before.after
            goes = not is_same or longer
        yield self._rebuild(what) if goes else self._next(what)

    def _types(self, names: Iterable[str]) -> Iterator[Change]:
        stored, program = self._stored.columns, self._program.columns
        if stored is None or program is None:
            return
        for name in names:
            former = self._former_name(name, stored)
            if former not in stored or name not in program:
                continue
            before = stored.get(STORED + former, stored[former])
            after = program.get(STORED + name, program[name])
            if before != after:
                what = f"column '{name}' changes from {_type(before)} to {_type(after)}"
                if _is_castable(before, after):
                    yield self._rebuild(what)
                else:
                    yield self._refuse(what, "Give the new column another name.")
            elif stored[former] != program[name] and not any(self._layout()):
                shown = f"{_type(program[name])}, not as {_type(stored[former])}"
                yield self._rebuild(f"value '{name}' stands under its name as {shown}")

    # --- an append table ---------------------------------------------------------------------

    def _columns(self) -> Iterator[Change]:
        stored, program = self._stored.columns, self._program.columns
        if stored is None or program is None:
            return
        used = set()
        for name in program:
            former = self._former_name(name, stored)
            used.add(former)
            if former not in stored:
                yield self._add(name, "column")
            elif former != name:
                yield self._rebuild(f"column '{former}' is renamed to '{name}'")
        yield from self._types(program)
        yield from (self._drop(name, "column") for name in stored if name not in used)


def _in_next_generation(change: Change) -> Change:
    """Return a change as a next generation brings it; a choice stays one."""
    if change.verdict is Verdict.CHOICE:
        return change
    return replace(change, what=f"{change.what}{IN_NEXT_GENERATION}", allowed=True)


def _layout_of(shape: TableShape) -> str:
    return _LOG if shape.kind == _LOG_WITH_REMOVAL else shape.kind


def _condition(text: str | None) -> str:
    return "nothing" if text is None else f"'{text}'"


def _end(expiry: Expiry | None) -> str:
    if expiry is None:
        return "never"
    time = {"last event": "the last event", "window end": "the end of the window"}
    where = time.get(expiry.by, f"'{expiry.column}'")
    days, rest = divmod(expiry.after, 86_400_000_000)
    text = f"{days} day{'s' * (days != 1)}" if days and not rest else f"{expiry.after / 1e6:g} s"
    return f"{text} after {where}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _type(kind: Any) -> str:
    """A type of a Delta schema, as SQL writes it."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"array<{_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_type(kind['keyType'])},{_type(kind['valueType'])}>"
    fields = (f"{field['name']}:{_type(field['type'])}" for field in kind["fields"])
    return f"struct<{','.join(fields)}>"


def _is_castable(before: Any, after: Any) -> bool:
    """Return whether a type differs in simple types alone: Spark casts fields by position."""
    if isinstance(before, str) or isinstance(after, str):
        simple = isinstance(before, str) and isinstance(after, str)
        return simple and (before, after) != ("binary", "string")  # not all bytes are text
    if before["type"] != after["type"] or before["type"] == "map":
        return bool(before == after)
    if before["type"] == "array":
        return _is_castable(before["elementType"], after["elementType"])
    old, new = before["fields"], after["fields"]
    return [field["name"] for field in old] == [field["name"] for field in new] and all(
        _is_castable(one["type"], other["type"]) for one, other in zip(old, new, strict=True)
    )
