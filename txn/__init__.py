"""Exactly-once micro-batch transactions on Spark, in the manner of Storm's Trident.

`import txn` changes nothing in the process, and loads neither pyspark nor kazoo; they come with the
first run.
"""

from __future__ import annotations

from txn.attempts import TransactionAttempt
from txn.config import TopologyConfig
from txn.errors import FailedException, TxnError
from txn.machine.hidden import warn_of_hiding
from txn.operations.snapshot import snapshot
from txn.operations.txids import history
from txn.topology import Topology

__all__ = [
    "FailedException",
    "Topology",
    "TopologyConfig",
    "TransactionAttempt",
    "TxnError",
    "history",
    "snapshot",
]

__version__ = "0.2.0.dev0"

warn_of_hiding()
