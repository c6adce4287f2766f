"""Shield the JVM that pyspark starts from the signals that are meant for this process.

Ctrl-C in a shell script and `kill -TERM -GROUP` reach every process of a group, `systemctl stop`
every process of a service. A run ends cleanly only if Spark outlives it. So the JVM ignores SIGTERM
(pyspark lets it ignore SIGINT). It ends with its standard input, a pipe whose other end only this
process has, so it ends with this process, after SIGKILL too. It stays in this process's group, so
that SIGKILL, SIGSTOP and Ctrl-Z for the group reach both.

It reads that pipe only once it is up. pyspark deletes the folder that it needs for that as soon as
an exception leaves the start, so a start that fails or is interrupted kills it. pyspark hands
nobody the process that it starts, so its module gets another `Popen` for that time;
tests/txn/test_session.py fails if pyspark starts Java in another way.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from txn.errors import SetupError
from txn.spark.differences import condition_of
from txn.spark.early_end import Command, no_submitter, require_user_and_loopback, why_ended
from txn.spark.versions import is_submitted

__all__ = ["start_shielded"]


def start_shielded(settings: Mapping[str, str]) -> None:
    """Start the JVM for the next session, unless one runs already.

    A JVM that spark-submit has started is this process's parent, and handles signals itself.

    Args:
        settings: every Spark setting; some count only when the JVM starts.

    Raises:
        SetupError: Java cannot be started, or ended before it was up.
    """
    from pyspark import SparkConf, SparkContext, java_gateway
    from pyspark.errors import PySparkRuntimeError

    if SparkContext._gateway is not None:
        return
    conf = SparkConf().setAll(list(settings.items()))
    if not is_submitted():
        require_user_and_loopback()
    commands: list[Command] = []
    try:
        with _guarded(commands):
            gateway = java_gateway.launch_gateway(conf)  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        if condition_of(error) != "JAVA_GATEWAY_EXITED":
            raise
        why = why_ended(commands[-1]) if commands else "A signal ended Java before Spark was up."
        raise SetupError(why, number="TXN-202") from error
    except OSError as error:
        if not commands or error.filename != commands[-1][0][0][0]:
            raise
        raise SetupError(no_submitter(error), number="TXN-202") from error
    if gateway.proc is not None:
        signals = gateway.jvm.sun.misc
        signals.Signal.handle(signals.Signal("TERM"), signals.SignalHandler.SIG_IGN)
    SparkContext._ensure_initialized(gateway=gateway)


@contextlib.contextmanager
def _guarded(commands: list[Command]) -> Iterator[None]:
    """Kill the JVM if its start fails, or as soon as a signal arrives.

    Args:
        commands: receives every command that is started; empty after a signal.

    The signal's own handler runs after the start has failed: a handler that raised inside of
    pyspark's start could lose the process that has just begun.
    """
    module: Any = importlib.import_module("pyspark.java_gateway")
    started: list[subprocess.Popen[bytes]] = []
    received: list[int] = []

    def popen(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        commands.append((args, kwargs))
        started.append(subprocess.Popen(*args, **kwargs))
        end_if_asked()
        return started[-1]

    def handler(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(number)
        end_if_asked()

    def end_if_asked() -> None:
        for process in started if received else ():
            process.kill()

    # A handler runs in the main thread, and does not interrupt other threads.
    is_main = threading.current_thread() is threading.main_thread()
    both = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    numbers = [number for number in both if callable(signal.getsignal(number))]
    before = {number: signal.signal(number, handler) for number in numbers}
    pysparks, module.Popen = module.Popen, popen
    try:
        yield
    except BaseException:
        for process in started:
            process.kill()
        raise
    finally:
        module.Popen = pysparks
        for number, previous in before.items():
            signal.signal(number, previous)
        if received:
            commands.clear()
            signal.raise_signal(received[0])
