"""What users say: connect strings, settings, table folders, and whole command lines."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.inputs import COUNTED, fuzz, junk_text
from txn import Topology
from txn.cli.app import cli
from txn.config import TopologyConfig
from txn.config.location import resolve
from txn.delta.durations import duration_secs
from txn.doctor.machine import fits
from txn.errors import SetupError, TopologyError, UserError
from txn.storage.locations import identity, parent
from txn.storage.storage import Storage
from txn.text import printable
from txn.zookeeper.client.access import completed, find_access
from txn.zookeeper.client.connection import split_chroot

WORDS = st.sampled_from(
    [
        "host", "zk1:2181", ",", "/", ":", "embedded", "embedded:", "[::1]", "@", "me:s3cret@",
        "//", "2181", "99999", "..", "zookeeper", " ", "a", "~x", "~",
    ]
)  # fmt: skip


@fuzz(9)
@given(spec=st.one_of(junk_text, st.lists(WORDS, max_size=6).map("".join)))
def test_a_connect_string_is_understood_or_refused(spec: str) -> None:
    """What is understood is a folder, or hosts with ports and a chroot that stays where it is."""
    COUNTED["connect strings"] += 1
    try:
        where = resolve(spec)
    except UserError as error:
        assert "s3cret" not in str(error) or spec.startswith("embedded")
        return
    if where.folder is not None:
        assert "\0" not in str(where.folder)
        return
    servers, chroot = split_chroot(where.hosts)
    for server in servers.split(","):
        assert 0 < int(server.rpartition(":")[2]) < 65536
    assert not {".", "..", "zookeeper"} & {
        *chroot.split("/")[:2],
        ".." if ".." in chroot.split("/") else "",
    }


NAMES = [
    f"TXN_ZOOKEEPER_{name}"
    for name in (
        "AUTH", "READERS", "ACL", "TLS", "CA", "CHECK_HOSTNAME", "CERTFILE", "KEYFILE",
        "KEYFILE_PASSWORD",
    )
]  # fmt: skip
SETTINGS = st.one_of(
    junk_text,
    st.lists(
        st.sampled_from(
            ["digest", "sasl", "ip", ":", "a", "#", "\n", "open", "creator", "1", "no"]
        ),
        max_size=5,
    ).map("".join),
)


@fuzz(6)
@given(environ=st.dictionaries(st.sampled_from(NAMES), SETTINGS, max_size=4))
def test_the_environment_is_understood_or_refused(environ: dict[str, str]) -> None:
    """Whatever the variables hold, they are settings, or one error names a variable or setting."""
    COUNTED["environments"] += 1
    try:
        completed(TopologyConfig(), environ)
        find_access(TopologyConfig(), "h:1", environ)
    except UserError as error:
        assert "TXN_ZOOKEEPER_" in str(error) or "zookeeper_" in str(error)


@fuzz(6)
@given(name=st.one_of(junk_text, st.lists(WORDS, max_size=5).map("".join)))
def test_names_of_topologies_streams_and_tables(name: str) -> None:
    """A table's folder is absolute, or refused; a topology's name is one plain word, or refused."""
    COUNTED["names"] += 3
    try:
        storage = Storage(name)
        assert not storage.is_local or Path(storage.uri or "/").is_absolute()
        assert storage.uri.isprintable()
    except TopologyError:
        pass
    for make in (Topology, lambda text: Topology("t").stream(text, None)):
        try:
            make(name)  # type: ignore[arg-type]
        except TopologyError:
            continue
        assert name.isascii()
        assert "/" not in name
        assert name not in (".", "..")
    assert identity(name or "x")
    with contextlib.suppress(TopologyError):
        assert parent(name or "x")


@fuzz(3)
@given(text=junk_text, other=junk_text)
def test_small_readers_of_words(text: str, other: str) -> None:
    """Durations, versions, and what a terminal is given."""
    COUNTED["words"] += 3
    seconds = duration_secs(text)
    assert seconds is None or seconds >= 0
    assert fits(text, other) in (True, False)
    shown = printable(text)
    assert all(c.isprintable() or c in "\n\t" for c in shown)
    shown.encode("utf-8")


# --- whole command lines ---------------------------------------------------------------------

COMMANDS = [
    ["run"], ["status"], ["history"], ["recover"], ["plan"], ["plugins"], ["doctor"],
    ["quarantine"], ["quarantine", "list"], ["quarantine", "replay"], ["export"], ["import"], [],
]  # fmt: skip
PIECES = st.one_of(
    junk_text,
    st.sampled_from(
        [
            "--json", "--zookeeper", "embedded", "embedded:x", "h:1/c", "--until", "caught_up",
            "--limit", "7", "-1", "--all", "--conf", "a=b", "=", "--master", "--log-level", "debug",
            "--yes", "--help", "--table", "program.py:topology", "program.py:made", "program.py:",
            "program.py", "broken.py:x", "no.such.module:x", "program:topology", "t", ":", "--",
            "program.py:topology.config", "program.py:number", "..", "99999999999999999999",
        ]
    ),
)  # fmt: skip


def is_argument(text: str) -> bool:
    """Whether the kernel would hand it to a program."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


PROGRAM = """
from txn import Topology
topology = Topology("t")
number = 7
def made():
    return topology
"""


@contextlib.contextmanager
def no_server(*_: Any, **__: Any) -> Iterator[str]:
    """Where the commands end: no ZooKeeper is asked."""
    raise SetupError("no ZooKeeper in this test")
    yield ""


@pytest.fixture
def boundary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder; nothing behind the command line is reached but files."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("raise RuntimeError('\\x1b[2J')")
    monkeypatch.chdir(tmp_path)
    # This module first: imported behind the next line, it would keep what stands in for good.
    monkeypatch.setattr("txn.backends.zookeeper_service", no_server)
    monkeypatch.setattr("txn.embedded.service.zookeeper_service", no_server)
    monkeypatch.setattr(
        "txn.cli.running.driver.drive", lambda *_, **__: (_ for _ in ()).throw(SetupError("x"))
    )
    monkeypatch.setattr("txn.doctor.checkup.check_machine", lambda: iter(()))
    monkeypatch.setattr("txn.doctor.checkup.check_storage", lambda *_: iter(()))
    return tmp_path


@fuzz(6)
@given(command=st.sampled_from(COMMANDS), rest=st.lists(PIECES.filter(is_argument), max_size=5))
def test_a_command_line_ends_with_a_clear_word(
    boundary: Path, command: list[str], rest: list[str]
) -> None:
    """An exit code from the list, one paragraph, and never an error that nobody meant."""
    COUNTED["command lines"] += 1
    result = CliRunner().invoke(cli, [*command, *rest])
    assert result.exit_code in (0, 1, 2), result.output
    if result.exit_code:
        assert result.output
    assert "(--traceback shows where)" not in result.output
    assert "Traceback" not in result.output
    # click repeats an argument that it does not want as it stands; all that we say is escaped.
    ours = [line for line in result.output.splitlines() if line.startswith("error:")]
    assert all(line.replace("\t", "").isprintable() for line in ours), result.output
