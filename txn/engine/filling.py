"""Fill tables with their history, beside a leader that runs the former program."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from txn.dataflow.definition import Definition
from txn.engine.base.threads import Straggler
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.start import Start
from txn.errors import TopologyError
from txn.protocol.records import IncarnationRecord
from txn.protocol.store import ProgressStore
from txn.storage.locations import identity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["fill"]


def fill(
    definition: Definition,
    spark: SparkSession,
    store: ProgressStore,
    tables: Sequence[str],
    *,
    copied: Sequence[str] = (),
    epoch: int,
    life: IncarnationRecord | None,
    stragglers: list[Straggler],
) -> dict[str, int]:
    """Give tables the committed txids that they lack; return the last txid of each that lacked any.

    Neither leads nor writes to the store.

    Args:
        tables: their paths.
        copied: as for `LateTables`.
        epoch: the newest leader's epoch.
        life: the present incarnation of the topology.
        stragglers: gets the threads left behind because they hang in the user's code.

    Raises:
        TopologyError: nothing is committed yet, or a path is no table of the program.
        TxnError: as `Start.fill`.
    """
    known = {identity(sink.name) for sink in definition.sinks}
    named = (*tables, *copied)
    unknown = next((table for table in named if identity(table) not in known), None)
    if unknown is not None:
        names = ", ".join(sink.name for sink in definition.sinks)
        raise TopologyError(
            f"Topology '{definition.name}' has no table '{unknown}' to fill. It has {names}.",
            number="TXN-106",
        )
    if life is None or not epoch:
        raise TopologyError(
            f"Topology '{definition.name}' has committed nothing yet: there is no history. Run it.",
            number="TXN-809",
        )
    with contextlib.ExitStack() as resources:
        start = Start(
            definition=definition,
            spark=spark,
            store=store,
            until="forever",
            clock=time.time,
            monotonic=time.monotonic,
            ids=lambda: epoch,
            resources=resources,
            stragglers=stragglers,
            broadcast=Broadcast(definition.name, time.time, ()),
        )
        return start.fill(tables, copied, epoch, life)
