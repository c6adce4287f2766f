"""Measure the driver's memory: of its own process, and of the JVM that pyspark started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["driver_memory"]

_PROC = Path("/proc")


def driver_memory() -> Mapping[str, int]:
    """Return the resident bytes of "python" and the "jvm"; unknown ones are left out.

    Only Linux reports the present size. Elsewhere it is the peak of Python's process.
    """
    if not (_PROC / "self" / "statm").exists():
        return _most_of_python()
    sizes = {"python": _resident("self")}
    if (jvm := _gateway_pid()) is not None:
        sizes["jvm"] = _resident(str(jvm))
    return {process: size for process, size in sizes.items() if size}


def _resident(pid: str) -> int:
    try:
        pages = (_PROC / pid / "statm").read_text("ascii").split()[1]
    except (OSError, IndexError):  # it has ended
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _gateway_pid() -> int | None:
    """Return the JVM's process id; None if there is none, or another process started it."""
    pyspark = sys.modules.get("pyspark")
    gateway = getattr(getattr(pyspark, "SparkContext", None), "_gateway", None)
    return getattr(getattr(gateway, "proc", None), "pid", None)


def _most_of_python() -> Mapping[str, int]:
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"python": most if sys.platform == "darwin" else most * 1024}
