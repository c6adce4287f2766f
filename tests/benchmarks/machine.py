"""Facts about the machine and the software that a figure is worth nothing without."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from txn.errors import SetupError
from txn.machine.java import find_java, java_version

__all__ = ["facts"]

_PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow", "kazoo", "pydantic")
_ROOT = Path(__file__).parent.parent.parent


def facts(scratch: Path) -> dict[str, Any]:
    """What can be found out of this machine.

    Args:
        scratch: the folder in which tables are written: its disk is told.
    """
    disk = shutil.disk_usage(scratch)
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count() or 1,
        "memory_gb": _memory_gb(),
        "disk": _disk(scratch),
        "disk_free_gb": round(disk.free / 1e9),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "java": _java(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "commit": _commit(),
    }


def _cpu() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gb() -> float | None:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal"):
            return round(int(line.split()[1]) / 1e6, 1)
    return None


def _disk(folder: Path) -> str:
    """File system and device of the mount that holds `folder`."""
    best = ("", "not known")
    for line in _lines("/proc/mounts"):
        device, mount, kind = line.split()[:3]
        inside = mount == "/" or folder.resolve().is_relative_to(mount)
        if inside and len(mount) >= len(best[0]):
            best = (mount, f"{kind} on {device}")
    return best[1]


def _java() -> str:
    try:
        return java_version(find_java())
    except SetupError as error:
        return f"none: {error}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _commit() -> str:
    """The commit that was measured, and whether files differ from it."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + (" with changes" if _git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return "not known"


def _git(*command: str) -> str:
    done = subprocess.run(
        ["git", *command], capture_output=True, text=True, timeout=20, check=True, cwd=_ROOT
    )
    return done.stdout.strip()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
