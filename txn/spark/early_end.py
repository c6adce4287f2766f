"""Find out why Java ended before Spark was up, from its output and this process's limits.

Java writes to stderr, and nothing stores that output. So this module runs the same command once
more and reads its output. A pipe instead would have to be emptied as long as Java lives.
"""

from __future__ import annotations

import os
import pwd
import re
import resource
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from txn.errors import SetupError
from txn.text import printable

__all__ = ["Command", "no_submitter", "require_user_and_loopback", "why_ended"]

Command = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a `Popen`."""

_AGAIN_SECS = 60.0
_SHOWN_CHARACTERS = 300
_FEW_FILES = 1024
"""Java opens all of Spark's jars, some 300."""
_NOISE = re.compile(r"\s*at |\s*\.\.\. \d+ more|WARNING:|NOTE:|Picked up |#?\s*$")
_SETTING = (
    "Correct what it names: a setting in `conf`, PYSPARK_SUBMIT_ARGS or spark-defaults.conf "
    "(memory, Java options), or an option in JAVA_TOOL_OPTIONS."
)
_UNKNOWN_HOST = re.compile(r"UnknownHostException: ([^\s:]+)")


def require_user_and_loopback() -> None:
    """Check, before Java starts, two conditions that no setting of Spark or Java can replace.

    Raises:
        SetupError: the user has no name, or this machine's loopback does not work.
    """
    uid, gid = os.getuid(), os.getgid()
    try:
        pwd.getpwuid(uid)
    except KeyError:
        raise SetupError(
            f"User id {uid} has no entry in /etc/passwd, and Spark (Hadoop) does not start for a "
            f"user without a name. Add one (`echo 'spark:x:{uid}:{gid}::/tmp:/bin/sh' >> "
            "/etc/passwd`, in a container as part of its image or entry point), or run as a user "
            "that has one.",
            number="TXN-202",
        ) from None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("127.0.0.1", 9))  # sends nothing
    except OSError as error:
        raise SetupError(
            f"Nothing on this machine can be reached by 127.0.0.1 ({error.strerror}), by which "
            "this program and Spark's Java talk. Start the loopback interface: `ip link set lo "
            "up`.",
            number="TXN-202",
        ) from error


def why_ended(command: Command) -> str:
    """Explain why a command of pyspark's ended, and the way out, in one paragraph."""
    output = _output_of_rerun(command)
    lines = [line.strip() for line in output.splitlines() if not _NOISE.match(line)]
    causes = [line for line in lines if line.startswith("Caused by:")]
    words = printable(" ... ".join([*lines[:1], *causes[-1:]])[:_SHOWN_CHARACTERS])
    quoted = f"Java ended before Spark was up. It said: {words or 'nothing'}. "
    if host := _UNKNOWN_HOST.search(output):
        return quoted + (
            f"This machine's own name, '{host[1]}', cannot be resolved. Add the line '127.0.0.1 "
            f"{host[1]}' to /etc/hosts, or set SPARK_LOCAL_IP to an address of this machine."
        )
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files < _FEW_FILES:
        return quoted + (
            f"This process may open {files} files (`ulimit -n`), fewer than Spark has jars. Allow "
            f"{_FEW_FILES} or more (`ulimit -n {_FEW_FILES}`, LimitNOFILE= of systemd)."
        )
    return quoted + _SETTING


def no_submitter(error: OSError) -> str:
    """Explain why the command that starts Spark cannot be run, and the way out."""
    home = os.environ.get("SPARK_HOME")
    cause = f"SPARK_HOME is '{home}'" if home else "the installed pyspark is not whole"
    way_out = "Correct SPARK_HOME, or unset it: pyspark has a Spark of its own."
    return (
        f"Spark cannot be started: {cause}, and {printable(str(error.filename))} cannot be run "
        f"({error.strerror}). {way_out if home else 'Install pyspark anew.'}"
    )


def _output_of_rerun(command: Command) -> str:
    """Run the command once more and return its output; it does not stay up."""
    (words, *_), options = command
    with tempfile.TemporaryDirectory() as folder:
        environ = {**options["env"], "_PYSPARK_DRIVER_CONN_INFO_PATH": str(Path(folder) / "port")}
        process = subprocess.Popen(
            words,
            env=environ,
            stdin=subprocess.DEVNULL,  # Java, should it come up, ends with its stdin
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            return process.communicate(timeout=_AGAIN_SECS)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[0]
