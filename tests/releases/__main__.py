"""Keep the state that this release leaves behind: `python -m tests.releases`.

Run it once for a release, at the commit of its tag, and commit tests/releases/<release>.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.faults.harness import ROOT, wait_for
from tests.releases.stage import Stage
from tests.releases.stored import Kept, nodes_below, stamp
from tests.releases.topology import CHECKPOINTED, CORRECTED, FILES, NAME, REMOVING, expected_rows
from tests.zookeeper.progress_store import bare_client
from txn.delta.commits import LAST_CHECKPOINT, checkpoint_version
from txn.embedded import EmbeddedZooKeeper

PROGRAM = f"{Path(__file__).with_name('topology.py')}:topology"
ONE_BY_ONE = {"max_group_processing": 1, "max_group_commit": 2}


class Writer:
    """The topologies in a folder, run by process after process."""

    def __init__(self, folder: Path, hosts: str) -> None:
        self.folder, self.hosts = folder, hosts
        (folder / "in").mkdir()

    def files(self, *numbers: int) -> None:
        """Put files of input into the folder."""
        for number in numbers:
            lines = FILES[number].split()
            (self.folder / "in" / f"{number}.csv").write_text("\n".join(["k,v", *lines, ""]))
        stamp(self.folder / "in")

    def run(self, **stage: Any) -> None:
        """Run one stage to its end."""
        whole = Stage(zookeeper=self.hosts, **stage)
        done = self._python("-m", "tests.releases.stage", whole.model_dump_json())
        assert done.returncode == (-signal.SIGKILL if whole.kill else 0), done.stderr[-4000:]

    def txn(self, *arguments: str) -> Any:
        """Return the JSON of a command of `txn`."""
        done = self._python("-m", "txn", *arguments, "--zookeeper", self.hosts, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def correct(self, lines: str) -> None:
        """Replay the rows that are set aside, corrected."""
        exported = self.txn("rows", "export", PROGRAM, "--stream", "files", "open.csv")
        (self.folder / "open.csv").write_text("\n".join(["k,v", *lines.split(), ""]))
        which = ["--number", str(exported["number"]), "--up-to", str(exported["up_to"])]
        self.txn("rows", "replay", PROGRAM, "--stream", "files", *which, "open.csv")
        stamp(self.folder / "in")

    def checkpoint_often(self, *tables: str) -> None:
        """Set the interval of checkpoints so low that short logs have one."""
        for name in tables:
            table = DeltaTable(self.folder / "tables" / name)
            table.alter.set_table_properties({"delta.checkpointInterval": "3"})

    def checkpoint(self, table: str) -> int:
        """Return the version of a table's newest checkpoint."""
        version = checkpoint_version(
            (self.folder / "tables" / table / LAST_CHECKPOINT).read_bytes()
        )
        assert version is not None
        return version

    def expire(self, table: str) -> None:
        """Delete what the clean-up of a log deletes when its retention has passed."""
        last = self.checkpoint(table)
        for path in (self.folder / "tables" / table / "_delta_log").glob("[0-9]*"):
            if int(path.name.partition(".")[0]) < last:
                path.unlink()

    def logs(self, *tables: str) -> str:
        """Return the logs of tables."""
        files = (self.folder / "tables" / name / "_delta_log" for name in tables)
        return "".join(path.read_text() for log in files for path in sorted(log.glob("*.json")))

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TXN_ZOOKEEPER_ACL": "open"}
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


def leave_behind(writer: Writer) -> None:
    """Come to a state with a group, a quarantine, bad rows, open batches and requests."""
    writer.files(0, 1, 2)
    writer.run(events=6, notes=3, open=3)
    writer.checkpoint_often("totals", "log")
    writer.run(events=14, notes=3, config={"max_group_commit": 1})
    aside = [entry["txid"] for entry in writer.txn("quarantine", "list", NAME)["quarantine"]]
    assert len(aside) == 3, aside
    writer.correct(CORRECTED[0])
    writer.files(3, 4)
    writer.run(events=22, notes=7, open=4, kill=True, config=ONE_BY_ONE)
    writer.files(5)
    with bare_client(writer.hosts) as client:
        wait_for(lambda: not client.exists(f"/txn/{NAME}/leader"), what="the end of the session")
    writer.txn("quarantine", "replay", NAME, str(aside[1]))
    writer.txn("quarantine", "drop", NAME, str(aside[2]))
    writer.txn("export", NAME, "-o", "progress.json")
    for mark in ("txn_compaction", "txn_settled", "txn_fence", '"members":[{'):
        assert mark in writer.logs("log", "event_log"), mark


def leave_removed_keys(writer: Writer) -> None:
    """Come to a state with removed keys, and a txid that one of two tables has."""
    writer.run(events=8)
    writer.checkpoint_often("balances", "balance_log")
    writer.run(events=18)
    writer.run(events=22, kill=True)
    with bare_client(writer.hosts) as client:
        wait_for(
            lambda: not client.exists(f"/txn/{REMOVING}/leader"), what="the end of the session"
        )
    writer.txn("export", REMOVING, "-o", "removing.json")
    writer.expire("balances")
    writer.expire("balance_log")
    for name in CHECKPOINTED:
        assert 0 < writer.checkpoint(name) < DeltaTable(writer.folder / "tables" / name).version()


def main() -> None:
    """Write the folder of this release."""
    # Delta's logs and the table of bad rows name their folder: the same one on every machine.
    folder = Path(tempfile.gettempdir()) / "txn-release"
    kept = Kept(version("txn-spark"))
    if kept.folder.exists():
        sys.exit(f"{kept.folder} is there: a release's state is kept once. Raise the version.")
    folder.mkdir()
    try:
        with EmbeddedZooKeeper(folder / ".zookeeper") as server:
            writer = Writer(folder, server.hosts)
            leave_behind(writer)
            leave_removed_keys(writer)
            with bare_client(server.hosts) as client:
                nodes = {
                    path: data
                    for name in (NAME, REMOVING)
                    for path, data in nodes_below(client, f"/txn/{name}")
                }
        kept.pack(folder, nodes, expected_rows())
    finally:
        shutil.rmtree(folder)
    files = [path for path in kept.folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print(f"{kept.folder}: {len(files)} files, {size:,} bytes")


if __name__ == "__main__":
    main()
