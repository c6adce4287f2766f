from __future__ import annotations

from pathlib import Path

import pytest

from txn.config.location import ZooKeeperSpec, resolve
from txn.errors import UserError


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("embedded", ZooKeeperSpec(Path(".txn/zookeeper"), "")),
        ("embedded:some/folder", ZooKeeperSpec(Path("some/folder"), "")),
        ("embedded:/a:b c", ZooKeeperSpec(Path("/a:b c"), "")),
        ("zk1", ZooKeeperSpec(None, "zk1:2181")),
        ("zk1:2182, zk2", ZooKeeperSpec(None, "zk1:2182,zk2:2181")),
        ("zk1:2181,zk2:2181/apps/txn", ZooKeeperSpec(None, "zk1:2181,zk2:2181/apps/txn")),
        ("[::1]:2181/x", ZooKeeperSpec(None, "[::1]:2181/x")),
        ("[fe80::1]", ZooKeeperSpec(None, "[fe80::1]:2181")),
        ("embed:2181", ZooKeeperSpec(None, "embed:2181")),
        ("embed.example", ZooKeeperSpec(None, "embed.example:2181")),
    ],
)
def test_every_form_is_understood(spec: str, expected: ZooKeeperSpec) -> None:
    """A folder for an embedded server, or hosts with ports and perhaps a chroot."""
    assert expected == resolve(spec)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("", "a host is missing"),
        ("zk1,,zk2", "a host is missing"),
        ("/chroot", "a host is missing"),
        ("embedded:", "comes a folder"),
        ("embedded:\0", "NUL"),
        ("embeded", "did you mean 'embedded'"),
        ("Embedded:data", "did you mean 'embedded'"),
        ("zk://host:2181", "scheme"),
        ("::1:2181", "in brackets"),
        ("host:port", "not host:port"),
        ("host:0", "0 is not a port"),
        ("host:70000", "70000 is not a port"),
        ("ho st:2181", "not host:port"),
        ("host:2181/", "not a ZooKeeper path"),
        ("host:2181/a//b", "not a ZooKeeper path"),
        ("host:2181/a/../b", "not a ZooKeeper path"),
        ("host:2181/a b", "not a ZooKeeper path"),
        ("host:2181/a\x7fb", "not a ZooKeeper path"),
        ("host:2181/zookeeper", "ZooKeeper's own"),
        ("host:2181/zookeeper/quota", "ZooKeeper's own"),
        ("h" * 5000, "it has 5000 characters"),
        ("embedded:" + "x" * 5000, "name has 5000 characters"),
        ("embedded:\ud800", "cannot be such a folder"),
        ("embedded:~nobody-of-that-name/x", "cannot be such a folder"),
    ],
)
def test_what_cannot_be_meant_is_refused(spec: str, says: str) -> None:
    """The error says what is wrong and which forms there are."""
    with pytest.raises(UserError, match=says) as error:
        resolve(spec)
    assert "embedded:FOLDER" in str(error.value)


def test_a_password_in_a_connect_string_is_refused_and_not_repeated() -> None:
    """It stood on a command line, where everybody can read it: it is not said once more."""
    with pytest.raises(UserError, match="TXN_ZOOKEEPER_AUTH_FILE") as error:
        resolve("digest:me:sesame@host:2181")
    assert "sesame" not in str(error.value)
