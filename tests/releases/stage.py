"""One run of a topology in a process of its own: `python -m tests.releases.stage '{...}'`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pydantic import BaseModel, Field

from tests.faults.harness import wait_for
from tests.one_by_one import OneByOne
from tests.releases.topology import removing, upgraded
from txn import TransactionAttempt
from txn.engine.base.killpoints import observe
from txn.engine.running import RunningTopology

__all__ = ["Stage"]


class Stage(BaseModel):
    """The input of one run, and its end."""

    zookeeper: str
    events: int
    notes: int | None = None
    """None: the topology is `removing`."""
    open: int = 0
    """The first commit turn waits until so many txids are processed: it or the next is a group."""
    kill: bool = False
    """True: the process dies when the first table has the first group; or txid, without groups."""
    config: dict[str, Any] = Field(default_factory=dict)


class Director:
    """An observer that makes a group, and may end the process."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._is_held = True
        self.running: RunningTopology | None = None

    def __call__(self, point: str, attempt: TransactionAttempt) -> None:
        """Called by the pipeline's threads."""
        if point == "before-publish" and self._is_held:
            wait_for(
                lambda: self._ready() >= self._stage.open,
                what=lambda: f"txids that make a group: {self._phases()}",
            )
            self._is_held = False
        is_due = self._stage.notes is None or self._phases().count("committing") > 1
        if point == "between-publications" and self._stage.kill and is_due:
            os.kill(os.getpid(), signal.SIGKILL)

    def _ready(self) -> int:
        return sum(phase in ("committing", "processed") for phase in self._phases())

    def _phases(self) -> list[str]:
        batches = self.running.status().in_flight if self.running is not None else ()
        return [batch.phase for batch in batches]


def main(stage: Stage) -> None:
    """Run until all input is read, or until the kill."""
    from txn.session import delta_session

    director = Director(stage)
    observe(OneByOne(director))
    spark = delta_session(
        "txn-releases", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"}
    )
    if stage.notes is None:
        topology = removing(stage.events)
    else:
        topology = upgraded(stage.events, stage.notes, mended=False, **stage.config)
    director.running = topology.start(spark, zookeeper=stage.zookeeper, until="caught_up")
    director.running.await_termination()
    spark.stop()


if __name__ == "__main__":
    main(Stage.model_validate_json(sys.argv[1]))
