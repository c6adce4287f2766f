"""From `pip install` to the first committed batch, in an empty environment outside the repository.

    make smoke ARGS='[WHEEL] [--python PYTHON] [--keep]'

Builds the wheel if none is given. Prints seconds and sizes of each step. A home folder of its own
has no cache, so the jars are fetched too. Then such projects are submitted to a standalone master
on this machine, with txn as `--py-files`: as a wheel, and as a zip. Exits with an error at the
first step that fails or commits something else. The index has pyspark as sources only: a folder of
wheels in PIP_FIND_LINKS saves minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.children import free_ports, listens
from tests.release.distribution import ROOT, build

LOOPBACK = "127.0.0.1"
START_SECS = 120.0
EXPECTED = [("anna", "3", "18"), ("bert", "2", "24"), ("dora", "1", "12")]
"""The totals of the project that `txn new` makes."""
PACKAGES = ("txn", "spouts", "committers")


class Machine:
    """An environment and a home folder with nothing in them."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self._python = python
        self.bin = folder / "env" / "bin"
        hidden = ("PYTHONPATH", "SPARK_HOME", "TXN_", "PYSPARK_")
        self._environ = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        self._environ |= {
            "HOME": str(folder / "home"),
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "SPARK_LOCAL_IP": LOOPBACK,
            "TXN_SHARED_FOLDERS": str(folder),  # driver and executors are on this machine
        }
        (folder / "home").mkdir()
        self._began = time.time()

    def run(self, *command: str, cwd: str = ".") -> str:
        """Run a command as a user would, print how long it took, and return what it printed."""
        began = time.monotonic()
        ended = subprocess.run(
            command,
            cwd=self.folder / cwd,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        shown = " ".join(command).replace(f"{self.folder}/", "")
        print(f"{time.monotonic() - began:7.1f} s  {shown}", flush=True)
        if ended.returncode:
            sys.exit(f"{shown} ended with {ended.returncode}:\n{ended.stdout}\n{ended.stderr}")
        return ended.stdout

    def install(self, wheel: Path) -> None:
        """Make the environment, and install the wheel and a Spark."""
        self.run(self._python, "-m", "venv", "env")
        self.run("pip", "install", "--quiet", f"{wheel}[spark]")
        print(f"  sizes: wheel {_megabytes(wheel)}, environment {_megabytes(self.folder / 'env')}")
        print(f"  {self.run('txn', '--version').strip()}", flush=True)

    def check(self, project: str, printed: str) -> None:
        """Compare the totals that a run printed, and count what it committed."""
        lines = [line.strip("|").split("|") for line in printed.splitlines() if "|" in line]
        rows = [tuple(cell.strip() for cell in line) for line in lines]
        if rows[1:] != EXPECTED:
            sys.exit(f"{project} printed other totals:\n{printed}")
        history = json.loads(self.run("txn", "history", project, "--json", cwd=project))
        published = [entry["published_at_ms"] / 1000 for entry in history["txids"]]
        seconds = min(published) - self._began
        print(f"  {len(published)} transactions, the first one {seconds:.1f} s after the beginning")

    @contextmanager
    def master(self) -> Iterator[str]:
        """Run a standalone master and one worker; yield the master's address."""
        (port,) = free_ports(1)
        address = f"spark://{LOOPBACK}:{port}"
        own = ["--host", LOOPBACK, "--webui-port", "0"]
        worker = [*own, "--cores", "2", "--memory", "1g", "--work-dir", str(self.folder / "work")]
        commands = [
            ["master.Master", *own, "--port", str(port)],
            ["worker.Worker", *worker, address],
        ]
        with (self.folder / "master.log").open("w") as log:
            servers = [
                subprocess.Popen(
                    [self.bin / "spark-class", f"org.apache.spark.deploy.{main}", *options],
                    env=self._environ,
                    stdout=log,
                    stderr=log,
                )
                for main, *options in commands
            ]
            try:
                deadline = time.monotonic() + START_SECS
                while not listens(port):
                    if time.monotonic() > deadline:
                        sys.exit((self.folder / "master.log").read_text())
                    time.sleep(0.1)
                yield address
            finally:
                for server in servers:
                    server.terminate()
                    server.wait()


def _megabytes(path: Path) -> str:
    files = path.rglob("*") if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())
    return f"{size / 1e6:.1f} MB"


def _zip(wheel: Path, folder: Path) -> Path:
    """The packages of a wheel alone, as a zip."""
    shutil.unpack_archive(wheel, folder / "unpacked", "zip")
    for path in (folder / "unpacked").iterdir():
        if path.name not in PACKAGES:
            shutil.rmtree(path)
    return Path(shutil.make_archive(str(folder / "txn-packages"), "zip", folder / "unpacked"))


def smoke(machine: Machine, wheel: Path) -> None:
    """Install, run a new project, then submit two others."""
    machine.install(wheel)
    machine.run("txn", "new", "sales")
    machine.check("sales", machine.run("python", "sales.py", cwd="sales"))
    print(f"  jars fetched: {_megabytes(machine.folder / 'home' / '.cache')}", flush=True)
    archives = {"by_wheel": wheel, "by_zip": _zip(wheel, machine.folder)}
    for project in archives:
        machine.run("txn", "new", project)
    with machine.master() as address:
        for project, archive in archives.items():
            # Its packages stay: the driver needs them, and finds txn in the archive alone.
            machine.run("pip", "uninstall", "--quiet", "--yes", "txn-spark")
            machine.run("python", "-c", "import importlib.util as u; assert not u.find_spec('txn')")
            submit = ["spark-submit", "--master", address, "--py-files", str(archive)]
            printed = machine.run(*submit, f"{project}.py", cwd=project)
            machine.run("pip", "install", "--quiet", "--no-deps", str(wheel))
            machine.check(project, printed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", nargs="?", type=Path)
    parser.add_argument("--python", default=sys.executable, help="the Python of the environment")
    parser.add_argument("--keep", action="store_true", help="leave the folder there")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="txn-smoke-"))
    assert not folder.is_relative_to(ROOT)
    try:
        wheel = given.wheel or build("wheel", ROOT, folder)
        smoke(Machine(folder, given.python), wheel.resolve())
    finally:
        if given.keep:
            print(folder)
        else:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
