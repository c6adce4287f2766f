"""A topology with every kind of node, and what a client may do with each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import BadArgumentsError, NoAuthError, NotEmptyError
from kazoo.security import OPEN_ACL_UNSAFE

from tests.zookeeper.progress_store import noise
from txn.config import TopologyConfig
from txn.protocol.records import BatchRecord, ColumnsRecord, CommittedRecord, QuarantineRecord
from txn.zookeeper import ZooKeeperProgress

LARGE = {"s": noise(1_000_000)}


@contextlib.contextmanager
def everything(hosts: str, name: str, config: TopologyConfig) -> Iterator[ZooKeeperProgress]:
    """A topology that leads, with a committed txid, an open one in parts and a quarantined one."""
    with contextlib.closing(ZooKeeperProgress(hosts, name, config)) as store:
        epoch = store.lead()
        store.load()
        store.persist_start(BatchRecord(txid=1, attempt=0, epoch=epoch, spouts={"s": 1}))
        aside = QuarantineRecord(txid=1, attempt=0, spouts={"s": 1}, error="no")
        store.persist_committed(CommittedRecord(txid=1, epoch=epoch, spouts={"s": 1}), aside)
        store.persist_start(BatchRecord(txid=2, attempt=0, epoch=epoch, spouts=LARGE))
        store.persist_columns(ColumnsRecord(stream="s", columns={"type": "struct", "fields": []}))
        yield store


@contextlib.contextmanager
def client(hosts: str, *auth: tuple[str, str], **options: Any) -> Iterator[KazooClient]:
    """A bare client of kazoo's, connected."""
    made = KazooClient(hosts, auth_data=list(auth), **options)
    made.start(timeout=20)
    try:
        yield made
    finally:
        made.stop()
        made.close()


def walked(owner: KazooClient, root: str) -> list[str]:
    """Every node from `root` down."""
    paths = [root]
    for path in paths:
        paths += [f"{path.rstrip('/')}/{child}" for child in owner.get_children(path)]
    return paths


def acls(owner: KazooClient, paths: list[str]) -> set[tuple[str, str, int]]:
    """(scheme, id, permissions) of everybody whom any of the nodes names."""
    found = (acl for path in paths for acl in owner.get_acls(path)[0])
    return {(acl.id.scheme, acl.id.id, acl.perms) for acl in found}


def allowed(stranger: KazooClient, path: str) -> list[str]:
    """What of all that there is a client can do with a node; what it can, it has done."""
    attempts: dict[str, Any] = {
        "read": lambda: stranger.get(path),
        "list": lambda: stranger.get_children(path),
        "see who may": lambda: stranger.get_acls(path),
        "create": lambda: stranger.create(f"{path.rstrip('/')}/intruder"),
        "change": lambda: stranger.set(path, b"{}"),
        "take over": lambda: stranger.set_acls(path, OPEN_ACL_UNSAFE),
        "delete": lambda: stranger.delete(path),
    }
    done = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except (NoAuthError, NotEmptyError, BadArgumentsError):
            continue  # the last two: a node with children, and the root, can nobody delete
        done.append(name)
    return done
