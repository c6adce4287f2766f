"""The door to durable state: turn a `zookeeper=` option into a backend, or into a run's store.

Only this module, `txn.embedded` and the doctor's page of ZooKeeper import `txn.zookeeper`. Another
kind of store is a package with a `ProgressBackend` of its own, and an option that is opened here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from txn.config import TopologyConfig
from txn.config.location import resolve
from txn.embedded.service import zookeeper_of_run, zookeeper_service
from txn.protocol.backend import ProgressBackend
from txn.protocol.store import ProgressStore
from txn.zookeeper.client.access import used_credentials

__all__ = ["connect", "open_backend", "require_answer", "store_of_run", "used_credentials"]


def connect(hosts: str, config: TopologyConfig, *, remembers: bool = False) -> ProgressBackend:
    """Return the backend of a ZooKeeper that runs. The caller closes it.

    Args:
        hosts: connect string.
        config: timeouts, credentials, ACL and TLS.
        remembers: read again only what has changed; for one thread that polls.
    """
    from txn.zookeeper.backend import ZooKeeperBackend

    return ZooKeeperBackend(hosts, config, remembers=remembers)


@contextlib.contextmanager
def open_backend(
    zookeeper: str | ProgressBackend, config: TopologyConfig, *, must_exist: bool = True
) -> Iterator[ProgressBackend]:
    """Yield the backend for a `zookeeper=` option; a backend is yielded as it is.

    Starts an embedded server for the body if its topology does not run.

    Args:
        zookeeper: as for `Topology.run`.
        config: timeouts, credentials, ACL and TLS.
        must_exist: True: refuse a folder that never had a server, instead of making it.

    Raises:
        UserError, SetupError: as `zookeeper_service`.
    """
    if not isinstance(zookeeper, str):
        yield zookeeper
        return
    with (
        zookeeper_service(zookeeper, share=True, must_exist=must_exist) as hosts,
        contextlib.closing(connect(hosts, config)) as backend,
    ):
        yield backend


def store_of_run(
    zookeeper: str, topology: str, config: TopologyConfig, resources: contextlib.ExitStack
) -> ProgressStore:
    """Return the store of a run; `resources` end an embedded server.

    Raises:
        TxnError: as `zookeeper_of_run`.
    """
    from txn.zookeeper import ZooKeeperProgress

    hosts = resources.enter_context(zookeeper_of_run(zookeeper, topology, config))
    return ZooKeeperProgress(hosts, topology, config)


def require_answer(
    zookeeper: str, config: TopologyConfig, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Return once a named ZooKeeper answers; at once for an embedded server, which the run starts.

    Raises:
        ProgressUnavailableError: no answer within `zookeeper_connect_secs`.
        SetupError: the server refused the credentials, or TLS failed.
    """
    from txn.zookeeper.client.connection import Connection

    hosts = resolve(zookeeper).hosts
    if hosts:
        with contextlib.closing(Connection(hosts, config, sleep=sleep)) as connection:
            connection.wait(time.monotonic() + config.zookeeper_connect_secs)
