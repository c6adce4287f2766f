"""Plan and run OPTIMIZE and VACUUM of a topology's tables.

Two steps, so that a caller can show the plan before it is carried out.
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
from txn.operations.tables.topology_tables import TopologyTables, tables_of
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
        hours: how long VACUUM keeps replaced files; None: the table's own retention.

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
        tables = tables_of(name, zookeeper)
        self.topology = tables.topology
        self._operation = operation
        shown = {name: one.storage_options for name, one in tables.published.items()}
        options = {**tables.storage_options, **shown}
        self._storages = [Storage(t, options.get(t)) for t in _chosen(tables, only)]
        config = tables.config
        least = least_hours(config.message_timeout_secs, config.max_batch_attempts)
        vacuum = partial(plan_one_vacuum, hours=hours, least=0 if tables.is_at_rest else least)
        self._plan_one = plan_optimize if operation == "optimize" else vacuum

    def plan(self) -> list[UpkeepPlan]:
        """Plan the operation, table by table. Changes nothing.

        Raises:
            UserError: VACUUM's retention is too short while the topology runs.
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
        """Carry out the plans, table by table; a table that fails has its error, others go on."""
        for storage, plan in zip(self._storages, plans, strict=True):
            if plan.error is not None:
                yield plan
                continue
            try:
                yield carry_out(storage, plan)
            except (TxnError, DeltaError, OSError, ValueError) as error:
                yield replace(plan, error=first_line(error))


def _chosen(tables: TopologyTables, only: Collection[str]) -> list[str]:
    if not only:
        return [*tables.delta_tables, *tables.published]
    by_identity = {identity(table): table for table in (*tables.tables, *tables.published)}
    for table in only:
        if identity(table) not in by_identity:
            names = ", ".join(f"'{name}'" for name in by_identity.values()) or "none"
            raise TargetError(
                f"Topology '{tables.topology}' has no table '{table}'. It has: {names}."
            )
    chosen = {identity(table) for table in only}
    return [table for key, table in by_identity.items() if key in chosen]
