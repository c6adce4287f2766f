"""Test support for users of `txn`: contract kits for spouts and committers, doubles for tests.

| | |
|---|---|
| `SpoutContract`, `judge` | does a spout keep what its kind promises? |
| `CommitterContract` | does a committer keep what its semantics promises? |
| `MemoryProgress`, `run_in_memory` | a topology without ZooKeeper |
| `RecordingCommitter` | a table without Delta that tells what was called |
| `ManualClock` | time that passes when the test says so |

Spouts whose rows, replays and failures are written down in the test are in `spouts.memory`: an
exception placed among the rows is raised when they are emitted. Importing this loads neither
pyspark nor pytest; `txn.testing.fixtures` needs pytest.
"""

from __future__ import annotations

from txn.testing.clock import ManualClock
from txn.testing.committer_bench import CommitterBench
from txn.testing.committer_contract import CommitterContract
from txn.testing.progress import MemoryNodes, MemoryProgress, run_in_memory
from txn.testing.recording_committer import RecordingCommitter
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
    "judge",
    "run_in_memory",
]
