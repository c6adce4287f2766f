"""OPTIMIZE and VACUUM of a topology's tables: what they would do, and doing it.

Two steps, so that whoever asks can show the first one's answer before the second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

from txn.delta.delta_rs import DeltaError
from txn.delta.upkeep import Operation, UpkeepPlan, carry_out, least_hours, plan_optimize
from txn.delta.upkeep import plan_vacuum as plan_one_vacuum
from txn.errors import TxnError, UserError
from txn.operations.loading import TargetError
from txn.operations.topology_tables import TopologyTables, tables_of
from txn.storage.locations import identity
from txn.storage.storage import Storage
from txn.text import first_line

__all__ = ["Upkeep"]


class Upkeep:
    """One operation on tables of one topology.

    Args:
        name: as on the command line: NAME or FILE.py:TOPOLOGY.
        zookeeper: as for `Topology.run`.
        only: the tables, as the topology names them; empty: all.
        hours: of VACUUM: how long replaced files are kept; None: as the table's property says.

    Raises:
        TargetError: the topology has no such table.
        TxnError: as `tables_of`.
    """

    def __init__(
        self,
        operation: Operation,
        name: str,
        zookeeper: str,
        only: Collection[str] = (),
        hours: int | None = None,
    ) -> None:
        found = tables_of(name, zookeeper)
        self.topology = found.topology
        self._operation = operation
        options = found.storage_options
        self._storages = [Storage(t, options.get(t)) for t in _chosen(found, only)]
        config = found.config
        least = least_hours(config.message_timeout_secs, config.max_batch_attempts)
        vacuum = partial(plan_one_vacuum, hours=hours, least=0 if found.is_at_rest else least)
        self._plan_one = plan_optimize if operation == "optimize" else vacuum

    def plan(self) -> list[UpkeepPlan]:
        """What would be done, table by table. Changes nothing.

        Raises:
            UserError: VACUUM's retention is too short while the topology is at work.
        """
        return [self._planned(storage) for storage in self._storages]

    def _planned(self, storage: Storage) -> UpkeepPlan:
        try:
            return self._plan_one(storage, self.topology)
        except UserError:
            raise
        except (TxnError, DeltaError, OSError, ValueError) as error:
            return UpkeepPlan(storage.location, self._operation, error=first_line(error))

    def carry_out(self, plans: Sequence[UpkeepPlan]) -> Iterator[UpkeepPlan]:
        """Do what was planned, table by table; a table that fails says so, and the others go on."""
        for storage, plan in zip(self._storages, plans, strict=True):
            if plan.error is not None:
                yield plan
                continue
            try:
                yield carry_out(storage, plan)
            except (TxnError, DeltaError, OSError, ValueError) as error:
                yield replace(plan, error=first_line(error))


def _chosen(found: TopologyTables, only: Collection[str]) -> list[str]:
    if not only:
        return [*found.tables]
    known = {identity(table): table for table in found.tables}
    for table in only:
        if identity(table) not in known:
            names = ", ".join(f"'{name}'" for name in found.tables) or "none"
            raise TargetError(
                f"Topology '{found.topology}' has no table '{table}'. It has: {names}."
            )
    wanted = {identity(table) for table in only}
    return [table for key, table in known.items() if key in wanted]
