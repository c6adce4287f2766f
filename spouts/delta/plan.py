"""Choose the versions of a Delta table for the next batch: pure, over the content of the log.

In a table that a topology writes, a version counts when its txid is final. A publication
carries `first_txid` = committed + 1 at its time, so a txid is final when a later publication, or a
settled mark, shows that it was committed. Until then its rows may be replaced: an opaque replay
publishes the same txid again, and drops the dead attempt's rows.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from spouts._schemas import NewColumns
from spouts.delta.log import AddedFile, SourceVersion
from txn.errors import SourceChangedError

__all__ = [
    "Candidate",
    "NextBatch",
    "Rules",
    "final_version",
    "next_batch",
    "only_adds",
    "schema_difference",
]


@dataclass(frozen=True)
class Rules:
    """The rules for reading a table.

    Args:
        name: the spout, for messages.
        waits: True if versions count only once their txid is final.
        replaces: True if a publication drops earlier ones of the same or later txids (opaque).
        changes: True to read the change data feed instead of the added files.
        schema: JSON of the columns that are read.
        newest: JSON of the table's current columns.
        new_columns: what becomes of columns that the table got since.
    """

    name: str
    table_id: str
    schema: str
    newest: str
    waits: bool
    replaces: bool
    changes: bool
    versions_per_batch: int
    bytes_per_batch: int | None
    new_columns: NewColumns = "fail"


@dataclass
class Candidate:
    """A version that may be read."""

    commit: SourceVersion
    problem: str | None
    committed: int
    """The newest committed txid of the writing topology, according to the log up to here."""
    below: int | None = None
    """Files of this and later txids were replaced."""

    @property
    def version(self) -> int:
        """The table version."""
        return self.commit.version

    @property
    def last_txid(self) -> int:
        """The newest txid that it publishes; 0 for commits by other writers."""
        return self.commit.publication[1] if self.commit.publication else 0

    @property
    def files(self) -> tuple[AddedFile, ...]:
        """The files with its rows."""
        return self.commit.files(self.below)

    @property
    def size(self) -> int:
        """Bytes of these files."""
        return sum(file.size for file in self.files)

    def has_rows(self, changes: bool) -> bool:
        """Return True if there is anything to read."""
        return self.commit.changes_rows if changes else bool(self.files)


@dataclass
class NextBatch:
    """The result of the scan."""

    versions: list[Candidate] = field(default_factory=list)
    """The versions with something to read."""
    last_version: int = -1
    """The newest version that was taken, with or without rows; -1: none."""
    passed: int = 0
    """The number of versions taken that have nothing to read."""
    txid: int = 0
    """`Candidate.committed` of `last_version`: no later version may publish it again."""


def next_batch(commits: Iterable[SourceVersion], rules: Rules, txid: int) -> NextBatch:
    """Choose the next versions, in order, as many as fit.

    Args:
        commits: the versions after the last batch, oldest first; read no further than needed.
        txid: `NextBatch.txid` of the last batch, 0 before the first.

    Raises:
        SourceChangedError: the first version after the last batch cannot be read as appended rows.
    """
    final = _final_versions(commits, rules, txid)
    batch, size = NextBatch(txid=txid), 0
    for candidate in final:
        if candidate.problem is not None:
            if batch.versions:
                break  # the versions before it are still delivered
            raise SourceChangedError(
                f"{candidate.problem} {_way_out(candidate, final, rules)}", number="TXN-412"
            )
        if candidate.has_rows(rules.changes):
            size += candidate.size
            is_too_big = rules.bytes_per_batch is not None and size > rules.bytes_per_batch
            if batch.versions and is_too_big:
                break
            batch.versions.append(candidate)
        else:
            batch.passed += 1
        batch.last_version = candidate.version
        batch.txid = candidate.committed
        if len(batch.versions) == rules.versions_per_batch:
            break
    return batch


def _final_versions(
    commits: Iterable[SourceVersion], rules: Rules, txid: int
) -> Iterable[Candidate]:
    """Yield the versions that can no longer be replaced, oldest first."""
    waiting: deque[Candidate] = deque()
    committed = txid
    for commit in commits:
        if rules.waits and commit.publication is not None:
            first = commit.publication[0]
            if first <= committed:
                raise SourceChangedError(
                    f"{rules.name}: version {commit.version} publishes txid {first} again, "
                    f"although {committed} was committed: the coordinator of its topology was "
                    "reset to an older state. Rows that were read already may be gone. Restore "
                    "that topology's state, or start this one over under a new name and new "
                    "tables.",
                    number="TXN-803",
                )
            committed = first - 1
            if rules.replaces:
                for other in waiting:
                    if other.last_txid >= first:
                        other.below = min(first, other.below or first)
        committed = max(committed, commit.settled)
        waiting.append(Candidate(commit, _problem(commit, rules), committed))
        while waiting and (not rules.waits or waiting[0].last_txid <= committed):
            yield waiting.popleft()


def final_version(newest_first: Iterable[SourceVersion], newest: int) -> int:
    """Return the newest version up to which everything is final."""
    settled, first, oldest = 0, None, newest + 1
    for commit in newest_first:
        settled = max(settled, commit.settled)
        if commit.publication is None:
            continue
        if commit.publication[1] <= settled or (first and commit.publication[1] < first):
            break
        first = first or commit.publication[0]
        oldest = commit.version
    return oldest - 1


def _problem(commit: SourceVersion, rules: Rules) -> str | None:
    """Explain why a version cannot be read as appended rows or recorded changes; None if it can."""
    where = f"{rules.name}: version {commit.version} ({commit.operation})"
    if commit.metadata is not None:
        if commit.metadata["id"] != rules.table_id:
            return f"{where} replaced the table with another one."
        columns = commit.metadata["schemaString"]
        ignores = rules.new_columns == "ignore"
        if difference := schema_difference(rules.schema, columns, rules.newest, ignores=ignores):
            return f"{where} changed the columns: {difference}."
        configuration = commit.metadata.get("configuration") or {}
        records = str(configuration.get("delta.enableChangeDataFeed")).lower() == "true"
        if rules.changes and not records:
            return (
                f"{where} switched the change data feed off, or was written before it was switched "
                "on."
            )
    if rules.changes:
        return None
    if commit.takes_rows and commit.publication is None:
        return (
            f"{where} removes or rewrites rows, but this spout reads appended rows only. Switch on "
            "delta.enableChangeDataFeed and read DeltaSpout(..., changes=True), or keep such "
            "changes away from the table."
        )
    if any(file.has_deletion_vector or file.is_elsewhere for file in commit.adds):
        return (
            f"{where} adds files with deletion vectors, or files of another table's folder (a "
            "clone)."
        )
    return None


def _way_out(refused: Candidate, later: Iterable[Candidate], rules: Rules) -> str:
    """Say how to go on after a version that cannot be read."""
    change = refused.commit.metadata
    columns = "{}" if change is None else change["schemaString"]
    if change is not None and only_adds(rules.schema, columns, rules.newest):
        if rules.new_columns == "add":
            return "Start the run again: it then reads them."
        return (
            f"To go on without them, give {rules.name} new_columns='ignore'; to read them from "
            "here on, new_columns='add'."
        )
    return (
        f"Start over under a new topology name: start={_next_start(refused, later, rules)}. Load "
        "the earlier rows that the new tables need by hand."
    )


def _next_start(refused: Candidate, later: Iterable[Candidate], rules: Rules) -> int:
    """Return the version at which a new topology may begin, after one that cannot be read.

    It reads the table's current columns, so after other columns it begins where these begin.
    """
    change = refused.commit.metadata
    if change is None or not schema_difference(rules.schema, change["schemaString"], rules.newest):
        return refused.version + 1
    start, newest = None, refused.version
    for one in (refused, *later):
        newest, metadata = one.version, one.commit.metadata
        if metadata is not None:
            if schema_difference(rules.newest, metadata["schemaString"], rules.newest):
                start = None
            elif start is None:
                start = one.version + one.commit.takes_rows
    return newest + 1 if start is None else start


def only_adds(earlier: str, changed: str, newest: str) -> bool:
    """Return True if the second schema differs from the first by columns alone that came later."""
    new = _columns(changed).keys() - _columns(earlier).keys()
    return (
        bool(new)
        and new <= _columns(newest).keys()
        and schema_difference(earlier, changed, newest, ignores=True) is None
    )


def schema_difference(
    earlier: str, changed: str, newest: str, *, ignores: bool = False
) -> str | None:
    """Return the first column in which two schemas (JSON) differ; None: they do not differ.

    Files are read by the names of their columns, so the order makes no difference. A column that
    the table got later, and that may be NULL, is NULL in its earlier versions.

    Args:
        newest: the table's current schema.
        ignores: True: a whole column that is new makes no difference.
    """
    former, current, later = _columns(earlier), _columns(changed), _columns(newest)
    added: tuple[str, ...] = ()
    for name, one in {**current, **former}.items():
        other = current.get(name)
        if name not in former:
            if ignores and name.partition(".")[0] not in former:
                continue
            return f"'{name}' is {current[name][0]}, not absent"
        if other is None and (
            name.startswith(added) or (one[1] and later.get(name, ("",))[0] == one[0])
        ):
            added += (f"{name}.",)
        elif other is None or other[0] != one[0]:
            return f"'{name}' is {other[0] if other else 'absent'}, not {one[0]}"
    return None


def _columns(schema: str) -> dict[str, tuple[str, bool]]:
    """Return path -> (type, True if it may be NULL) of all columns, nested ones included.

    Nullability and comments do not affect stored values.
    """
    columns = {}

    def add(kind: Any, path: str, nullable: bool) -> None:
        if isinstance(kind, str):
            columns[path] = (kind, nullable)
            return
        if path:
            columns[path] = (kind["type"], nullable)
        for one in kind.get("fields", ()):
            below = f"{path}.{one['name']}".lstrip(".")
            add(one["type"], below, one.get("nullable", True))
        for part in ("elementType", "keyType", "valueType"):
            if part in kind:
                add(kind[part], f"{path}.{part}", False)

    add({"type": "struct", **json.loads(schema)}, "", False)
    return columns
