"""Test support for users of `txn`: contract kits for spouts and committers, doubles for tests.

| | |
|---|---|
| `SpoutContract`, `judge` | does a spout keep the promise of its kind? |
| `CommitterContract` | does a committer keep the promise of its semantics? |
| `capabilities` | what else does the engine find in a spout or committer? |
| `MemoryProgress`, `run_in_memory` | a topology without ZooKeeper |
| `RecordingCommitter` | a table without Delta that records its calls |
| `ManualClock` | time that passes only when the test moves it |

`spouts.memory` has spouts whose rows, replays and failures a test lists: an exception placed among
the rows is raised when they are emitted. Importing this loads neither
pyspark nor pytest; `txn.testing.fixtures` needs pytest.
"""

from __future__ import annotations

from txn.testing.capability_check import capabilities
from txn.testing.clock import ManualClock
from txn.testing.committer_bench import CommitterBench
from txn.testing.committer_contract import CommitterContract
from txn.testing.progress import MemoryNodes, MemoryProgress
from txn.testing.recording_committer import RecordingCommitter
from txn.testing.running import run_in_memory
from txn.testing.spout_bench import ContractError, SpoutBench
from txn.testing.spout_contract import SpoutContract, Verdict, judge

__all__ = [
    "CommitterBench",
    "CommitterContract",
    "ContractError",
    "ManualClock",
    "MemoryNodes",
    "MemoryProgress",
    "RecordingCommitter",
    "SpoutBench",
    "SpoutContract",
    "Verdict",
    "capabilities",
    "judge",
    "run_in_memory",
]
