"""A standalone Spark cluster of processes: a master, two workers, and the executors they start."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import signal
import time
from pathlib import Path

import txn
from tests.chaos.processes import Server, children, send
from tests.children import free_ports, listens
from txn.machine.jars import class_archive
from txn.machine.java import find_java

__all__ = ["WORKERS", "Cluster"]

WORKERS = 2
LOOPBACK = "127.0.0.1"
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
)


class Cluster:
    """On loopback; addresses stay the same over restarts."""

    def __init__(self, folder: Path) -> None:
        found = importlib.util.find_spec("pyspark")
        assert found is not None
        assert found.submodule_search_locations
        home = found.submodule_search_locations[0]
        (port, *self._ports) = free_ports(1 + WORKERS)
        self._port = port
        self.url = f"spark://{LOOPBACK}:{port}"
        self._java = [str(find_java()), *JVM_FLAGS, "-cp", f"{home}/jars/*"]
        self._work = folder / "work"
        self.scratch = folder / "scratch"
        self.scratch.mkdir(parents=True)
        self._environ = {
            "SPARK_HOME": home,
            "SPARK_SCALA_VERSION": "2.13",  # else it looks for a build of Spark
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_LOCAL_DIRS": str(self.scratch),
        }
        options = ["--host", LOOPBACK, "--port", str(port), "--webui-port", "0"]
        self.master = self._server("master", folder, "master.Master", options)
        self.workers = [
            self._server(
                f"worker-{n + 1}",
                folder,
                "worker.Worker",
                [
                    *("--host", LOOPBACK, "--port", str(own), "--webui-port", "0"),
                    *("--cores", str(CORES), "--memory", "3g"),
                    *("--work-dir", str(self._work / f"worker-{n + 1}"), self.url),
                ],
            )
            for n, own in enumerate(self._ports)
        ]

    def _server(self, name: str, folder: Path, main: str, options: list[str]) -> Server:
        command = [*self._java, f"org.apache.spark.deploy.{main}", *options]
        return Server(name, lambda: command, folder / name, self._environ)

    def start(self) -> None:
        """Start master and workers."""
        self.master.start()
        for worker in self.workers:
            worker.start()

    def wait(self) -> None:
        """Wait until the master listens; workers find it by themselves."""
        deadline = time.monotonic() + START_SECS
        while not all(listens(port) for port in (self._port, *self._ports)):
            assert time.monotonic() < deadline, "the Spark cluster did not come up"
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop workers, with their executors, and the master."""
        for server in (*self.workers, self.master):
            server.stop()

    def executors(self) -> list[int]:
        """Process ids of the executors of all workers."""
        return [pid for worker in self.workers for pid in children(worker.pid, EXECUTOR)]

    @property
    def executor_options(self) -> str:
        """Java options of executors: quick to start, and quiet."""
        log = (CONF / "log4j2.properties").as_uri()
        flags = ["-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={log}"]
        if class_archive().is_file():
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
        for folder in self._work.glob("worker-*/app-*"):
            if folder.name not in used and time.time() - folder.stat().st_mtime > 30:
                shutil.rmtree(folder, ignore_errors=True)
