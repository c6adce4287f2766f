"""Programs of tests that come as modules of Go."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from txn.errors import SetupError
from txn.machine.jars import cache_folder

__all__ = ["program"]


def program(module: str, version: str) -> Path:
    """A program of a module, built if it is not there yet; it appears when it is whole.

    Raises:
        SetupError: it could not be built.
    """
    name = module.rpartition("/")[2]
    found = cache_folder() / f"{name}-{version}"
    if not found.is_file():
        found.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=found.parent))
        own = {"GOBIN": str(scratch), "CGO_ENABLED": "0"}
        try:
            command = ["go", "install", f"{module}@v{version}"]
            subprocess.run(command, check=True, env={**os.environ, **own})
            (scratch / name).rename(found)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SetupError(f"{name} {version} could not be built with Go: {error}") from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return found
