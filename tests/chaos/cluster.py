"""A standalone Spark cluster of processes: a master, workers, and the executors they start."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import signal
import time
from pathlib import Path

import txn
from tests.chaos.machines import DRIVER, Network
from tests.chaos.processes import Server, children, send
from tests.children import LOOPBACK, free_ports, listens
from txn.machine.jars import class_archive
from txn.machine.java import find_java

__all__ = ["CLUSTERS", "WORKERS", "Cluster"]

CLUSTERS = ("shared", "isolated")
WORKERS = {"shared": 2, "isolated": 3}
"""Kind of cluster -> workers; those of an isolated one share neither disk nor network address with
the driver, and a further worker comes and goes."""
START_SECS = 60.0
CORES = 3
"""Of a worker: a zombie, its successor, and what a lost worker leaves to the other one."""
CONF = Path(txn.__file__).parent / "machine" / "spark_conf"
EXECUTOR = b"CoarseGrainedExecutorBackend"
JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xms64m",
    "-Xmx256m",
    "-Dspark.deploy.maxExecutorRetries=-1",  # executors are killed on purpose
    "-Dspark.master.rest.enabled=false",
    "-Dspark.worker.timeout=20",
    "-Dspark.ui.enabled=false",
    "-Dspark.deploy.retainedApplications=5",
    "-Dspark.worker.ui.retainedExecutors=5",
    "-Dspark.decommission.enabled=true",
)


class Cluster:
    """Addresses stay the same over restarts.

    Args:
        network: one machine for each worker, and one for the worker that comes and goes; None: all
            run on loopback.
    """

    def __init__(self, folder: Path, network: Network | None = None) -> None:
        found = importlib.util.find_spec("pyspark")
        assert found is not None
        assert found.submodule_search_locations
        home = found.submodule_search_locations[0]
        self.machines = [] if network is None else network.machines
        count = len(self.machines) or WORKERS["shared"]
        (port, *self._ports) = free_ports(1 + count)
        self._port = port
        self.host = LOOPBACK if network is None else DRIVER
        self.url = f"spark://{self.host}:{port}"
        self._java = [str(find_java()), *JVM_FLAGS, "-cp", f"{home}/jars/*"]
        self._work = folder / "work"
        self.scratch = folder / "scratch"
        self.scratch.mkdir(parents=True)
        self._environ = {
            "SPARK_HOME": home,
            "SPARK_SCALA_VERSION": "2.13",  # else it looks for a build of Spark
            "SPARK_LOCAL_DIRS": str(self.scratch),
        }
        own = {"SPARK_LOCAL_IP": self.host}
        command = self._command("master.Master", self.host, port)
        self.master = Server("master", lambda: command, folder / "master", {**self._environ, **own})
        everyone = [self._worker(number, folder) for number in range(1, 1 + count)]
        self.workers = everyone[: len(everyone) - bool(self.machines)]
        self.spare = everyone[-1]
        """The worker that comes and goes, if workers have machines of their own."""

    def _worker(self, number: int, folder: Path) -> Server:
        name, machine = f"worker-{number}", (self.machines or [None] * number)[number - 1]
        host = LOOPBACK if machine is None else machine.host
        work = self._work / name
        options = ["--cores", str(CORES), "--memory", "3g", "--work-dir", str(work), self.url]
        command = self._command("worker.Worker", host, self._ports[number - 1], *options)
        if machine is not None:
            command = machine.command(command, self.scratch)
        return Server(
            name, lambda: command, folder / name, {**self._environ, "SPARK_LOCAL_IP": host}
        )

    def _command(self, main: str, host: str, port: int, *options: str) -> list[str]:
        where = ["--host", host, "--port", str(port), "--webui-port", "0"]
        return [*self._java, f"org.apache.spark.deploy.{main}", *where, *options]

    def start(self) -> None:
        """Start master and workers."""
        self.master.start()
        for worker in self.workers:
            worker.start()

    def wait(self) -> None:
        """Wait until the master listens; workers find it by themselves."""
        deadline = time.monotonic() + START_SECS
        hosts = [machine.host for machine in self.machines] or [LOOPBACK] * len(self.workers)
        servers = [(self._port, self.host), *zip(self._ports, hosts, strict=True)]
        while not all(listens(*server) for server in servers[: 1 + len(self.workers)]):
            assert time.monotonic() < deadline, "the Spark cluster did not come up"
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop workers, with their executors, and the master."""
        for server in (self.spare, *self.workers, self.master):
            server.stop()

    def executors(self) -> list[int]:
        """Process ids of the executors of all workers."""
        alive = dict.fromkeys(
            worker.pid for worker in (*self.workers, self.spare) if worker.is_alive
        )
        return [pid for worker in alive for pid in children(worker, EXECUTOR)]

    @property
    def executor_options(self) -> str:
        """Java options of executors: quick to start, and quiet."""
        log = (CONF / "log4j2.properties").as_uri()
        flags = ["-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={log}"]
        if class_archive().is_file() and not self.machines:
            flags += [f"-XX:SharedArchiveFile={class_archive()}"]
            flags += ["-Xlog:disable", "-Xlog:all=error:stderr"]
        return " ".join([*flags, f"-Djava.io.tmpdir={self.scratch}"])

    def kill_executor(self, choose: int) -> int | None:
        """SIGKILL one executor; its process id, None when there is none."""
        found = self.executors()
        if not found:
            return None
        victim = found[choose % len(found)]
        return victim if send(victim, signal.SIGKILL) else None

    def sweep(self) -> None:
        """Delete the folders of executors that are gone: each has a copy of all jars."""
        used = set()
        for pid in self.executors():
            with contextlib.suppress(OSError):
                used.add(Path(f"/proc/{pid}/cwd").readlink().parent.name)
        for worker in (*self.workers, self.spare):
            root = Path(f"/proc/{worker.pid}/root") if worker.is_alive else Path("/")
            for folder in root.joinpath(self._work.relative_to("/")).glob("worker-*/app-*"):
                with contextlib.suppress(OSError):
                    if folder.name not in used and time.time() - folder.stat().st_mtime > 30:
                        shutil.rmtree(folder, ignore_errors=True)
