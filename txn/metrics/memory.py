"""How much memory the driver has: its own process, and the JVM that pyspark started for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["driver_memory"]

_PROC = Path("/proc")


def driver_memory() -> Mapping[str, int]:
    """Resident bytes of "python" and of the "jvm"; what the system does not tell is left out.

    Only Linux tells of now. Elsewhere it is the most that Python's process has had.
    """
    if not (_PROC / "self" / "statm").exists():
        return _most_of_python()
    found = {"python": _resident("self")}
    if (jvm := _gateway_pid()) is not None:
        found["jvm"] = _resident(str(jvm))
    return {process: size for process, size in found.items() if size}


def _resident(pid: str) -> int:
    try:
        pages = (_PROC / pid / "statm").read_text("ascii").split()[1]
    except (OSError, IndexError):  # it has ended
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _gateway_pid() -> int | None:
    """The JVM's process; None: there is none, or somebody else started it."""
    context = sys.modules.get("pyspark.core.context")
    gateway = getattr(getattr(context, "SparkContext", None), "_gateway", None)
    return getattr(getattr(gateway, "proc", None), "pid", None)


def _most_of_python() -> Mapping[str, int]:
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"python": most if sys.platform == "darwin" else most * 1024}
