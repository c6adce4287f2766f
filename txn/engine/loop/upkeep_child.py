"""Do one operation of upkeep on one table, in a process of its own, by an order in JSON on stdin.

    python -m txn.engine.loop.upkeep_child

is how a running leader does it (`txn.engine.loop.upkeep`): such a process can be ended at any
moment, and gives back the memory in which delta-rs rewrites files.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from txn.delta.delta_rs import DeltaError
from txn.delta.durations import FILE_RETENTION, file_retention_secs
from txn.delta.loading import find
from txn.delta.upkeep import UpkeepPlan, carry_out, in_one_line, plan_optimize, plan_vacuum
from txn.errors import TxnError
from txn.storage.storage import Storage

__all__ = ["main"]


def main(order: Mapping[str, Any]) -> dict[str, Any]:
    """Do one operation on one table.

    Args:
        order: operation, topology, location, options; for VACUUM also the least hours.
    """
    storage = Storage(order["location"], order["options"])
    try:
        if order["operation"] == "optimize":
            plan = plan_optimize(storage, order["topology"])
        else:
            plan = _plan_by_schedule(storage, order["topology"], order["least_hours"])
        return carry_out(storage, plan).to_json()
    except (TxnError, DeltaError, OSError, ValueError) as error:
        failed = UpkeepPlan(order["location"], order["operation"], error=in_one_line(error))
        return failed.to_json()


def _plan_by_schedule(storage: Storage, topology: str, least: int) -> UpkeepPlan:
    """Plan a VACUUM that keeps files longer if the table's own retention is too short."""
    table = find(storage)
    stated = table.metadata().configuration.get(FILE_RETENTION) if table else None
    own = math.ceil(file_retention_secs(stated) / 3600)
    return plan_vacuum(storage, topology, max(own, least))


def _end_with_parent() -> None:
    """End this process when the pipe from its parent is closed."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    _order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.stdout.write(json.dumps(main(_order)))
    sys.stdout.flush()
    os._exit(0)  # delta-rs may be left behind in a thread that never ends
