"""SIGKILL before and after a commit's conditional PUT on S3: nothing is lost, nothing doubled."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faults.harness import (
    Driver,
    Spec,
    drivers,
    make_records,
    read_tables,
    rows_expected,
    totals_expected,
)
from tests.stores.proxy import Answer, Proxy, Request, puts
from tests.stores.s3 import storage_options
from txn.delta.commits import commit_path

if TYPE_CHECKING:
    from tests.stores.s3 import S3Server
    from txn.embedded import EmbeddedZooKeeper


@dataclass(frozen=True)
class Kill:
    """SIGKILL whoever asks, before the server gets the request or after it has answered."""

    driver: Callable[[], Driver]
    before: bool

    async def __call__(self, proxy: Proxy, request: Request, forward: Any) -> Answer:
        if not self.before:
            await forward(request)
        os.kill(self.driver().pid, signal.SIGKILL)
        raise ConnectionResetError


def test_a_driver_that_is_killed_at_its_commits_put(
    s3: S3Server, zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """One life ends before the store has a version of one table, the next one after the store has
    a version of the other; then everything is there once.
    """
    records, bucket = make_records(tmp_path, 30), s3.bucket("killed")
    with Proxy(s3.url) as proxy, drivers() as start:
        spec = Spec(
            folder=str(tmp_path),
            kind="opaque",
            tables=("rows", "log"),
            zookeeper=f"{zookeeper.hosts}/{tmp_path.name}",
            warehouse=f"s3://{bucket}/warehouse",
            storage_options=storage_options(proxy.url),
        )
        lives: list[Driver] = []
        for table, version, before in (("rows", 2, True), ("log", 6, False)):
            commit = f"{table}/{commit_path(version)}"
            rule = proxy.inject(Kill(lambda: lives[-1], before), puts(commit), nth=1)
            lives.append(start(spec))
            assert lives[-1].wait() == -signal.SIGKILL
            assert len(rule.met) == 1
        start(spec).report()
    images = read_tables(s3.folder / "data" / bucket / "warehouse", spec.tables)
    assert images["rows"].rows == rows_expected(records, images["rows"].final)
    assert images["log"].rows == totals_expected(records)
    assert all(image.is_in_order and image.end == len(records) for image in images.values())
