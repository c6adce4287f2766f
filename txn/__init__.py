"""Exactly-once micro-batch transactions on Spark, in the manner of Storm's Trident.

`import txn` changes nothing in the process, and loads neither pyspark nor kazoo; they come with the
first run. Each name below loads its module when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from txn.machine.hidden import warn_of_hiding

if TYPE_CHECKING:
    from txn.attempts import TransactionAttempt
    from txn.config import TopologyConfig
    from txn.errors import FailedException, TxnError
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

_MODULES = {
    "FailedException": "errors",
    "Topology": "topology",
    "TopologyConfig": "config",
    "TransactionAttempt": "attempts",
    "TxnError": "errors",
    "history": "operations.txids",
    "snapshot": "operations.snapshot",
}


def __getattr__(name: str) -> Any:
    """Load a name of `__all__`."""
    if name not in _MODULES:
        raise AttributeError(f"module 'txn' has no attribute '{name}'")
    value = getattr(import_module(f"txn.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


warn_of_hiding()
