"""Looks at a real ZooKeeper: one connection, topologies that come and go, a server that ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.children import wait_until
from txn.cli import cli
from txn.config import TopologyConfig
from txn.dashboard.watching import feed as feed_module
from txn.dashboard.watching.feed import Look, StatusFeed
from txn.embedded import EmbeddedZooKeeper, zookeeper_service
from txn.embedded.service import is_served
from txn.protocol.backend import TopologyStatus
from txn.zookeeper import ZooKeeperProgress
from txn.zookeeper.backend import ZooKeeperBackend


def led(hosts: str, topology: str) -> ZooKeeperProgress:
    """A topology with a leader."""
    progress = ZooKeeperProgress(hosts, topology, TopologyConfig())
    progress.lead()
    return progress


def test_topologies_that_nobody_has_named_are_found(zookeeper: EmbeddedZooKeeper) -> None:
    """One that begins while the feed runs appears in one of its next looks."""
    looks: list[Look] = []
    feed = StatusFeed(zookeeper.hosts, {}, looks.append)
    feed.start()
    progress = led(zookeeper.hosts, "feed-found")
    try:
        wait_until(lambda: any("feed-found" in look.statuses for look in looks), "it is found", 20)
        assert looks[-1].error is None
        assert looks[-1].hosts == zookeeper.hosts
    finally:
        progress.close()
        feed.close()


def test_a_name_that_zookeeper_does_not_know_is_no_fault_of_zookeeper(
    zookeeper: EmbeddedZooKeeper,
) -> None:
    """It is told from one that cannot be read; its error has its number."""
    looks: list[Look] = []
    feed = StatusFeed(zookeeper.hosts, {"feed-never": TopologyConfig()}, looks.append)
    feed.start()
    try:
        wait_until(lambda: bool(looks), "a look", 20)
    finally:
        feed.close()
    assert (looks[0].error, looks[0].absent) == (None, frozenset({"feed-never"}))
    assert looks[0].errors["feed-never"].endswith("[TXN-607]")


def test_one_that_nobody_leads_is_left_alone(
    zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read in full only now and then, or at once when somebody leads it again."""
    name, read = "feed-unled", ZooKeeperBackend.status
    looks: list[Look] = []
    asked: list[str] = []

    def counted(backend: ZooKeeperBackend, topology: str) -> TopologyStatus:
        asked.append(topology)
        return read(backend, topology)

    def leads() -> bool:
        return looks[-1].statuses[name].found.leader is not None

    monkeypatch.setattr(feed_module, "_UNLED_SECS", 3600.0)
    monkeypatch.setattr(feed_module, "_EVERY_SECS", 0.05)
    monkeypatch.setattr(ZooKeeperBackend, "status", counted)
    led(zookeeper.hosts, name).close()
    feed = StatusFeed(zookeeper.hosts, {name: TopologyConfig()}, looks.append)
    feed.start()
    try:
        wait_until(lambda: len(looks) > 1 and not leads(), "nobody leads it", 20)
        before, since = len(asked), len(looks)
        wait_until(lambda: len(looks) > since + 10, "ten looks", 20)
        assert len(asked) == before
        again = led(zookeeper.hosts, name)
        wait_until(leads, "somebody leads it", 20)
        again.close()
        wait_until(lambda: not leads(), "nobody leads it", 20)
    finally:
        feed.close()


def test_one_that_is_missing_hides_no_other(zookeeper: EmbeddedZooKeeper) -> None:
    """Of two named topologies, the one that is not there is named with the reason."""
    looks: list[Look] = []
    progress = led(zookeeper.hosts, "feed-there")
    wanted = {"feed-there": TopologyConfig(), "feed-missing": TopologyConfig()}
    feed = StatusFeed(zookeeper.hosts, wanted, looks.append)
    feed.start()
    try:
        wait_until(lambda: bool(looks), "a look", 20)
        assert set(looks[0].statuses) == {"feed-there"}
        assert "knows no topology 'feed-missing'" in looks[0].errors["feed-missing"]
    finally:
        progress.close()
        feed.close()


@pytest.mark.parametrize("starts", [True, False])
def test_an_embedded_server_is_started_for_a_moment(tmp_path: Path, starts: bool) -> None:
    """With the topology stopped, its state is read once and the folder is free again; in a run,
    which is about to start the server itself, nothing is started.
    """
    folder = tmp_path / "zookeeper"
    with zookeeper_service(f"embedded:{folder}") as hosts:
        led(hosts, "stopped").close()
    looks: list[Look] = []
    feed = StatusFeed(f"embedded:{folder}", {}, looks.append, starts_server=starts)
    feed.start()
    try:
        wait_until(lambda: len(looks) > 1, "two looks", 40)
        assert [*looks[-1].statuses] == (["stopped"] if starts else [])
        assert (looks[-1].error, looks[-1].hosts) == (None, None)
        with zookeeper_service(f"embedded:{folder}") as hosts:
            again = led(hosts, "again")
            wait_until(lambda: "again" in looks[-1].statuses, "the server of a run", 20)
            again.close()
    finally:
        feed.close()


def test_nobody_leads_by_a_server_that_does_not_run(tmp_path: Path) -> None:
    """After a power cut an embedded folder still has the leader's node. Nobody leads by it, also
    where that process may run for all that can be told: the page says so, and `txn status`.
    """
    spec = f"embedded:{tmp_path / 'zookeeper'}"
    with zookeeper_service(spec) as hosts:
        progress = led(hosts, "cut-off")
        assert is_served(spec)
    assert not is_served(spec)
    looks: list[Look] = []
    feed = StatusFeed(spec, {}, looks.append)
    feed.start()
    try:
        wait_until(lambda: "cut-off" in looks[-1].statuses if looks else False, "a look", 40)
        found = looks[-1].statuses["cut-off"].found
        assert (found.leader, found.last_leader is not None) == (None, True)
    finally:
        feed.close()
        progress.close()
    told = CliRunner().invoke(cli, ["status", "cut-off", "--zookeeper", spec, "--json"])
    assert json.loads(told.stdout)["leader"] is None


def test_a_server_that_does_not_answer_for_a_moment_is_led_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine it may take longer than a look waits: its leader stays shown."""
    spec = f"embedded:{tmp_path / 'zookeeper'}"
    looks: list[Look] = []
    with zookeeper_service(spec) as hosts:
        progress = led(hosts, "busy")
        feed = StatusFeed(spec, {}, looks.append)
        feed.start()
        try:
            wait_until(lambda: "busy" in looks[-1].statuses if looks else False, "a look", 40)
            monkeypatch.setattr(feed_module, "running_server", lambda *_: None)
            wait_until(lambda: looks[-1].hosts is None, "a look without an answer", 20)
            assert looks[-1].error is None
            assert looks[-1].statuses["busy"].found.leader is not None
        finally:
            feed.close()
            progress.close()


def test_a_look_that_cannot_be_taken_in_ends_nothing(
    zookeeper: EmbeddedZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk is full when a topology appears: it is in the log, and the next look comes."""
    looks: list[Look] = []

    def tell(look: Look) -> None:
        looks.append(look)
        if len(looks) == 1:
            raise OSError(28, "No space left on device")

    feed = StatusFeed(zookeeper.hosts, {}, tell)
    feed.start()
    try:
        wait_until(lambda: len(looks) > 1, "the next look", 20)
        assert "No space left on device" in caplog.text
    finally:
        feed.close()


def test_a_zookeeper_that_is_away_is_told(tmp_path: Path) -> None:
    """With the reason, and the feed goes on asking."""
    looks: list[Look] = []
    feed = StatusFeed(f"embedded:{tmp_path / 'nothing'}", {}, looks.append)
    feed.start()
    try:
        wait_until(lambda: len(looks) > 2, "three looks", 20)
        assert all("no topology has been run" in (look.error or "") for look in looks)
    finally:
        feed.close()
