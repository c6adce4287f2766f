"""Hold a program's definition against its durable progress, by the protocol's rules.

A start raises their refusals.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from txn.dataflow.definition import Definition
from txn.protocol.records import CommittedRecord, Progress
from txn.protocol.recovery import Newest, check_streams, with_rows
from txn.protocol.table_names import by_todays_names, recorded_ids
from txn.storage.locations import identity

__all__ = ["require_streams", "todays_tables", "without_tables"]


def require_streams(definition: Definition, progress: Progress) -> None:
    """Refuse a program whose streams do not match the progress.

    Raises:
        RecoveryRefusedError: as `check_streams`.
    """
    check_streams(
        definition.name,
        definition.streams,
        definition.opaque_streams,
        progress,
        definition.config.dropped_streams,
    )


def todays_tables(
    definition: Definition,
    progress: Progress,
    newest: Newest,
    ids: Mapping[str, str],
    *,
    new: Collection[str],
    dropped: Collection[str],
) -> CommittedRecord:
    """Return the committed record with the program's names of the tables.

    Args:
        newest: the newest publication of each table of the program.
        ids: the ids of the program's tables.
        new: as for `by_todays_names`; so is `dropped`.

    Raises:
        RecoveryRefusedError: as `by_todays_names`.
    """
    return by_todays_names(
        definition.name,
        progress.committed,
        newest,
        identity,
        unborn=definition.unborn_tables(*with_rows(progress, newest)),
        new=new,
        dropped=dropped,
        ids=ids,
        recorded=recorded_ids(progress),
    )


def without_tables(progress: Progress, names: Collection[str]) -> Progress:
    """Return the progress of the other tables, by whatever spelling of their paths."""
    places = {identity(name) for name in names}
    committed = progress.committed
    tables = {n: version for n, version in committed.tables.items() if identity(n) not in places}
    committed = committed.model_copy(update={"tables": tables})
    return progress.model_copy(update={"committed": committed})
