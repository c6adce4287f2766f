"""The checks of ZooKeeper: owners of nodes, latency of writes, state of the ensemble."""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kazoo.handlers.utils import create_tcp_connection

from txn.config import TopologyConfig
from txn.doctor.findings import Finding, error, note, ok, warning
from txn.errors import SetupError, TxnError
from txn.protocol.encoding import RECORD_LIMIT
from txn.text import size
from txn.zookeeper.client.access import find_access
from txn.zookeeper.client.connection import Connection, Create, Delete, Put
from txn.zookeeper.status import BASE, read_topology
from txn.zookeeper.znodes import Paths

__all__ = ["check_zookeeper"]

_WRITES = 100
_SLOW_MS = 50.0
_SKEW_SECS = 2.0
_MNTR_SECS = 5.0
_MNTR_BYTES = 1024 * 1024
_MOST_SNAPSHOTS = 10
_MUCH_DATA = 500_000_000
"""Bytes: half of the heap that ZooKeeper has by default."""
_CHANGE = 2 | 4 | 8 | 16
"""ZooKeeper's permissions to write, create, delete and administer."""


def check_zookeeper(
    area: str,
    hosts: str,
    folder: Path | None,
    topology: str | None,
    config: TopologyConfig,
    *,
    writes: bool = True,
    wall: Callable[[], float] = time.time,
) -> Iterator[Finding]:
    """Check one ZooKeeper.

    Args:
        area: its name in findings.
        hosts: connect string.
        folder: the folder of an embedded server; None: an ensemble.
        topology: the topology whose nodes are checked; None: no nodes.
        writes: True to measure latency, with writes to a node that ends with the session.
        wall: seconds since the epoch.
    """
    deadline = time.monotonic() + config.zookeeper_timeout_secs
    with contextlib.closing(Connection(hosts, config)) as connection:
        connection.wait(deadline)
        yield ok(area, "server", f"answers at {connection.servers}{connection.chroot}")
        yield _session(area, connection, config)
        yield _credentials(area, connection, config)
        if writes:
            yield from _latency(area, connection, config, wall)
        if topology is not None:
            yield from _nodes(area, connection, topology, config)
    yield from _quorum(area, connection.servers, folder, config)
    yield _snapshots(area, folder)


def _session(area: str, connection: Connection, config: TopologyConfig) -> Finding:
    asked, granted = config.zookeeper_timeout_secs, connection.session_timeout_secs
    text = f"{granted:g} s, as asked" if granted == asked else f"{granted:g} s instead of {asked:g}"
    if granted == asked:
        return ok(area, "session timeout", text)
    return warning(
        area,
        "session timeout",
        text,
        "A leader that dies on another machine blocks its successor for that long, and a leader "
        "that does not answer for that long is replaced. The server's limits are 2 and 20 times "
        "its tickTime unless minSessionTimeout and maxSessionTimeout set others.",
        "Set zookeeper_timeout_secs to what the server grants, or change the server's limits.",
    )


def _credentials(area: str, connection: Connection, config: TopologyConfig) -> Finding:
    access = find_access(config, connection.servers)
    if any(scheme == "world" for _, scheme, _ in access.acl):
        return warning(
            area,
            "credentials",
            "nodes are created for everybody"
            + (' (zookeeper_acl="open")' if access.acl_chosen else ""),
            "Whoever reaches it can read, change and delete every topology's state.",
            "Set zookeeper_auth or TXN_ZOOKEEPER_AUTH_FILE, and leave zookeeper_acl out.",
        )
    ways = [scheme for scheme, _ in access.auth] + ["sasl"] * (access.sasl is not None)
    ways += ["client certificate"] * bool(access.tls.get("certfile"))
    tls = "TLS" if access.tls else "no TLS"
    return ok(area, "credentials", f"{', '.join(ways)}; {tls}; nodes are created for their owner")


def _latency(
    area: str,
    connection: Connection,
    config: TopologyConfig,
    wall: Callable[[], float],
) -> Iterator[Finding]:
    """Measure versioned writes to a node of the doctor that ends with its session."""
    deadline = time.monotonic() + config.zookeeper_timeout_secs
    path = f"{_existing_parent(connection, deadline)}/txn-doctor-{secrets.token_hex(8)}"
    took: list[float] = []
    try:
        connection.multi([Create(path, b"", ephemeral=True)], deadline)
        before = wall()
        for version in range(_WRITES):
            began = time.monotonic()
            stat = connection.multi([Put(path, b"txn doctor", version)], deadline)[0]
            took.append((time.monotonic() - began) * 1000)
            if version == 0:
                skew = stat.mtime / 1000 - (before + wall()) / 2
        connection.multi([Delete(path, _WRITES)], deadline)
    except SetupError as failure:
        yield note(area, "latency", f"not measured: {failure}")
        return
    took.sort()
    p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
    text = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms of {_WRITES} versioned writes"
    if p50 <= _SLOW_MS:
        yield ok(area, "latency", text)
    else:
        yield warning(
            area,
            "latency",
            text,
            "A batch waits for two such writes, and for one per table.",
            "Put its transaction log (dataLogDir) on a disk of its own; look at the network.",
        )
    yield _clock(area, skew)


def _existing_parent(connection: Connection, deadline: float) -> str:
    """Return the deepest existing parent of topologies' nodes; "" is the root."""
    for path in (connection.chroot + BASE, connection.chroot):
        if path and connection.get(path, deadline) is not None:
            return path
    return ""


def _clock(area: str, skew: float) -> Finding:
    text = f"{abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
    if abs(skew) <= _SKEW_SECS:
        return ok(area, "clock", text)
    return warning(
        area,
        "clock",
        text,
        "No decision depends on a clock, but times in logs and `txn history` cannot be compared.",
        "Synchronize both machines with one source of time (NTP).",
    )


def _nodes(
    area: str,
    connection: Connection,
    topology: str,
    config: TopologyConfig,
) -> Iterator[Finding]:
    deadline = time.monotonic() + config.zookeeper_timeout_secs
    root = Paths(connection.chroot + BASE, topology).root
    if connection.get(root, deadline) is None:
        yield note(area, "nodes", f"there is no topology '{topology}' yet: its first run makes it")
        return
    try:
        limit = time.monotonic() + config.zookeeper_connect_secs
        status = read_topology(connection, topology, limit, time.sleep)
    except TxnError as failure:
        yield error(area, "nodes", str(failure), "The topology cannot start.", "See above.")
    else:
        leader = f"led by {status.leader}" if status.leader else "nobody leads it"
        committed = status.progress.committed.txid
        yield ok(area, "nodes", f"'{topology}' can be read: txid {committed} committed; {leader}")
        yield _positions(area, len(status.progress.committed.model_dump_json()))
    yield _acls(area, connection, root, config, deadline)


def _positions(area: str, length: int) -> Finding:
    text = f"{size(length)} of positions with each txid"
    if length < RECORD_LIMIT // 2:
        return ok(area, "positions", text)
    return warning(
        area,
        "positions",
        text,
        f"A record has at most {size(RECORD_LIMIT)}: with larger metadata no batch can start. "
        "ZooKeeper keeps the newest 500 of them in memory.",
        "Let the spout write a manifest, and put its name into the metadata (docs/zookeeper.md).",
    )


def _acls(
    area: str, connection: Connection, root: str, config: TopologyConfig, deadline: float
) -> Finding:
    """Check if some node of the topology can be read or changed without a credential."""
    changed_by_all, read_by_all, count = [], 0, 0
    # The parent too: a client that may delete there could replace a future topology.
    for path in (root.rpartition("/")[0], *_walk(connection, root, deadline)):
        acl = connection.acl(path, deadline) or []
        count += 1
        everybody = [perms for scheme, _, perms in acl if scheme == "world"]
        if any(perms & _CHANGE for perms in everybody):
            changed_by_all.append(path)
        elif everybody:
            read_by_all += 1
    if changed_by_all:
        make = warning if config.zookeeper_acl == "open" else error
        some = ", ".join(changed_by_all[:3]) + (" ..." if len(changed_by_all) > 3 else "")
        return make(
            area,
            "ACL",
            f"{len(changed_by_all)} of {count} nodes may be changed by everybody: {some}",
            "Whoever reaches ZooKeeper can stop the topology or take it back to an older state.",
            'Set zookeeper_auth, and give the nodes to it: docs/security.md, "Nodes that are '
            'open already".',
        )
    if read_by_all:
        return note(area, "ACL", f"{read_by_all} of {count} nodes may be read by everybody")
    return ok(area, "ACL", f"none of {count} nodes may be read or changed without a credential")


def _walk(connection: Connection, path: str, deadline: float) -> Iterator[str]:
    yield path
    for child in connection.children(path, deadline) or []:
        yield from _walk(connection, f"{path}/{child}", deadline)


def _quorum(
    area: str, servers: str, folder: Path | None, config: TopologyConfig
) -> Iterator[Finding]:
    """Check each server's answer to the command `mntr`, if the server allows it."""
    if folder is not None:
        yield note(
            area,
            "quorum",
            "an embedded server: one process on this machine",
            "It does not survive the machine. It listens on loopback only; its folder and nodes "
            "belong to its user alone.",
            "For more, use an ensemble of three servers or five.",
        )
        return
    roles: dict[str, str] = {}
    lagging, most = "", 0
    for server in servers.split(","):
        try:
            answer = _ask_mntr(server, config)
        except OSError as failure:
            roles[server] = "away"
            yield error(
                area,
                f"server {server}",
                f"does not answer: {failure}",
                "The ensemble goes on as long as a majority of it does.",
                "Start it, or correct it.",
            )
            continue
        roles[server] = answer.get("zk_server_state", "unknown")
        most = max(most, int(float(answer.get("zk_approximate_data_size", 0))))
        followers, synced = answer.get("zk_learners"), answer.get("zk_synced_followers")
        if followers and synced and float(synced) < float(followers):
            lagging = f"{float(followers) - float(synced):g} of its followers lag behind"
    yield _ensemble(area, roles, lagging)
    if most:
        yield _data(area, most)


def _data(area: str, most: int) -> Finding:
    text = f"{size(most)} in all nodes"
    if most < _MUCH_DATA:
        return ok(area, "data", text)
    return warning(
        area,
        "data",
        text,
        "Each server keeps all of it in memory, and sends it to a server that comes back. The "
        "default heap of ZooKeeper is 1 GB.",
        "Raise the servers' heap (ZK_SERVER_HEAP, in MB), or move topologies to another ensemble "
        "(txn export, txn import).",
    )


def _ensemble(area: str, roles: dict[str, str], lagging: str) -> Finding:
    """Judge the ensemble.

    Args:
        roles: server -> what it is: "leader", "follower", "standalone", "away" or "unknown".
        lagging: in words, how many followers lag behind; empty: none.
    """
    summary = ", ".join(f"{server} {role}" for server, role in roles.items())
    known_roles = [role for role in roles.values() if role != "unknown"]
    if not known_roles:
        return note(
            area,
            "quorum",
            "not known: the servers do not answer `mntr`",
            "",
            "To check it, set 4lw.commands.whitelist=mntr in zoo.cfg.",
        )
    if "standalone" in known_roles:
        return warning(
            area,
            "quorum",
            summary,
            "One server: while it is down, no batch starts or commits.",
            "For production use an ensemble of three servers or five.",
        )
    if lagging:
        return warning(
            area,
            "quorum",
            f"{summary}; {lagging}",
            "Losing one more server would stop the ensemble.",
            "Wait until its followers are in sync.",
        )
    if "leader" not in known_roles and len(known_roles) == len(roles):
        return warning(
            area,
            "quorum",
            summary,
            "None of the named servers leads.",
            "Name all servers of the ensemble in the connect string.",
        )
    return ok(area, "quorum", summary)


def _ask_mntr(server: str, config: TopologyConfig) -> dict[str, str]:
    """Return the answer to `mntr`: name -> value. Empty if the server does not allow it."""
    host, _, port = server.rpartition(":")
    tls = find_access(config, server).tls
    answer = b""
    with (
        _connected(host.strip("[]"), int(port), tls) as connection,
        contextlib.suppress(ConnectionResetError, ssl.SSLError),
    ):
        connection.sendall(b"mntr")
        while len(answer) < _MNTR_BYTES and (piece := connection.recv(65536)):
            answer += piece
    lines = (line.partition("\t") for line in answer.decode("utf-8", "replace").splitlines())
    return {name: value for name, tab, value in lines if tab}


def _connected(host: str, port: int, tls: Mapping[str, Any]) -> socket.socket:
    """Connect to the first address of a host that answers; kazoo's call, with TLS, tries one."""
    failed = OSError(f"{host} has no address")
    for *_, address in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
        try:
            connection: socket.socket = create_tcp_connection(
                socket, address[:2], host, _MNTR_SECS, **tls
            )
        except OSError as failure:
            failed = failure
        else:
            return connection
    raise failed


def _snapshots(area: str, folder: Path | None) -> Finding:
    if folder is None:
        return note(
            area,
            "snapshots",
            "cannot be counted from here",
            "Without autopurge a server keeps every snapshot and log until its disk is full.",
            "Set autopurge.purgeInterval above 0 in zoo.cfg; the default is 0, never.",
        )
    count = len(list((folder / "data" / "version-2").glob("snapshot.*")))
    if count <= _MOST_SNAPSHOTS:
        return ok(area, "snapshots", f"{count}; older than the last three are purged hourly")
    return warning(
        area,
        "snapshots",
        f"{count} in '{folder}'",
        "They were not purged, and fill the disk.",
        "Run the topology for a moment: the server purges when it starts.",
    )
