"""A canary in the place of every secret: real commands, and a look at all that they leave."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.nodes import client, walked
from tests.thorough import SPARK
from txn.embedded import EmbeddedZooKeeper

ROOT = Path(__file__).parents[2]
RIGHT, WRONG = "canary-right-7f3a", "canary-wrong-91bc"
CANARIES = [
    form
    for secret in (RIGHT, WRONG)
    for form in (
        secret.encode(),
        base64.b64encode(secret.encode()),
        secret.encode("utf-16-le"),
        secret.encode().hex().encode(),
    )
]

PROGRAM = """
from committers.append_table import AppendTable
from spouts.rate import RateSpout
from txn import Topology, TopologyConfig
import os

def made():
    secret = open(os.environ["SECRET"]).read().strip()
    config = TopologyConfig(
        zookeeper_auth=(("digest", "me:" + secret),),
        zookeeper_timeout_secs=4, zookeeper_deadline_secs=10,
    )
    topology = Topology("t", config)
    topology.stream("rows", RateSpout(1, total=3)).partition_persist(AppendTable("table"))
    return topology

def fails():
    topology = made()
    def fail(rows):
        raise ValueError("of the user's own")
    other = Topology("t", topology.config)
    other.stream("rows", RateSpout(1, total=9)).transform(fail).partition_persist(
        AppendTable("table")
    )
    return other

# What a careless user writes: the error must not repeat it.
def careless():
    secret = open(os.environ["SECRET"]).read()
    return Topology("t", TopologyConfig(zookeeper_auth="digest:me:" + secret))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's working directory, and outside of it the secrets."""
    place = tmp_path / "work"
    place.mkdir()
    (place / "program.py").write_text(PROGRAM)
    for name, secret in (("right", RIGHT), ("wrong", WRONG)):
        (tmp_path / name).write_text(secret + "\n")
        (tmp_path / f"{name}-auth").write_text(f"digest:me:{secret}\n")
    return place


class Arguments:
    """Watches the arguments of all processes for a canary."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self.looks = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Arguments:  # noqa: PYI034 - typing.Self is Python 3.11
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = process.read_bytes()
                except OSError:
                    continue
                self.seen |= {line for canary in CANARIES if canary in line}
            self.looks += 1
            time.sleep(0.1)


@pytest.fixture
def arguments() -> Iterator[Arguments]:
    """Watches for as long as the test takes."""
    with Arguments() as watching:
        yield watching


def txn(folder: Path, *command: str, **environ: str) -> tuple[int, bytes]:
    """Exit code and everything that a command says."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TXN_ZOOKEEPER_")}
    done = subprocess.run(
        [sys.executable, "-m", "txn", *command],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        timeout=240,
    )
    return done.returncode, done.stdout + done.stderr


def test_no_secret_is_anywhere_but_where_it_was_put(
    folder: Path, arguments: Arguments, tmp_path: Path
) -> None:
    """No secret appears in output, errors, tracebacks, logs, znodes, tables or process arguments.

    Right and wrong ones, by the program, by variables and by files, with the log at its loudest.
    """
    said: list[bytes] = []
    settings = {"spark.driver.memory": "1g", **SPARK}
    run = ("--master", "local[1]", "--until", "caught_up")
    run += tuple(word for item in settings.items() for word in ("--conf", "=".join(item)))
    loud = ("--log-level", "debug", "--traceback")
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as server:
        where = ("--zookeeper", server.hosts)

        def expect(code: int, *command: str, **environ: str) -> None:
            found, output = txn(folder, *command, *where, **environ)
            assert found == code, output.decode()
            said.append(output)

        right = {"SECRET": str(tmp_path / "right")}
        wrong = {"SECRET": str(tmp_path / "wrong")}
        expect(0, "run", "program.py:made", *run, *loud, **right)
        expect(1, "run", "program.py:made", *run, *loud, **wrong)
        expect(1, "run", "program.py:fails", *run, *loud, **right)
        expect(1, "run", "program.py:careless", *run, *loud, **right)
        expect(0, "status", "program.py:made", "--traceback", **right)
        expect(1, "status", "program.py:made", "--json", "--traceback", **wrong)
        expect(0, "status", "t", TXN_ZOOKEEPER_AUTH=f"digest:me:{RIGHT}")
        expect(1, "status", "t", "--traceback", TXN_ZOOKEEPER_AUTH=f"digest:me:{WRONG}")
        expect(1, "status", "t", "--traceback", TXN_ZOOKEEPER_AUTH=WRONG)
        expect(0, "history", "t", TXN_ZOOKEEPER_AUTH_FILE=str(tmp_path / "right-auth"))
        expect(1, "history", "t", "--traceback", TXN_ZOOKEEPER_AUTH_FILE=str(tmp_path / "wrong"))
        expect(0, "quarantine", "list", "program.py:made", **right)
        expect(0, "doctor", "program.py:made", **right)
        expect(1, "doctor", "program.py:made", "--json", **wrong)
        code, output = txn(folder, "status", "t", "--zookeeper", f"me:{WRONG}@{server.hosts}")
        assert code == 2
        said.append(output)
        with client(server.hosts, ("digest", f"me:{RIGHT}")) as owner:
            nodes = [owner.get(path)[0] for path in walked(owner, "/txn")]
    assert b"0 errors" not in said[0]
    assert len(nodes) > 6
    files = [p for p in (*folder.rglob("*"), *(tmp_path / "zookeeper").rglob("*")) if p.is_file()]
    kinds = {path.suffix for path in files}
    assert {".log", ".json", ".parquet"} <= kinds
    assert (folder / ".txn/logs/t.log").stat().st_size > 1000
    held = {path: path.read_bytes() for path in files}
    texts = [*said, *nodes, *held.values()]
    assert [text for text in texts if any(canary in text for canary in CANARIES)] == []
    # The one argument that holds it is the one that this test gave, to see it refused.
    own = [line for line in arguments.seen if f"me:{WRONG}@".encode() not in line]
    assert (own, arguments.looks > 20) == ([], True)
