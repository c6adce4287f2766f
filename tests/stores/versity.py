"""A second S3 server of other hands (Versity's gateway over a folder), as a child process.

    python -m tests.stores.versity     # builds it with Go, which takes some minutes

What holds on it and on the server of `tests.stores.s3` is less likely to be one server's habit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.children import LOOPBACK
from tests.stores.s3 import KEY, REGION, SECRET, S3Server
from txn.machine.jars import cache_folder

__all__ = ["VersityServer", "server_program"]

VERSION = "1.8.0"


def server_program() -> Path:
    """The server's program, built if it is not there yet; it appears when it is whole."""
    program = cache_folder() / f"versitygw-{VERSION}"
    if not program.is_file():
        program.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=program.parent))
        try:
            module = f"github.com/versity/versitygw/cmd/versitygw@v{VERSION}"
            own = {"GOBIN": str(scratch), "CGO_ENABLED": "0"}
            subprocess.run(["go", "install", module], check=True, env={**os.environ, **own})
            (scratch / "versitygw").rename(program)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return program


class VersityServer(S3Server):
    """One S3 server in a folder, used as the other one is."""

    def _command(self) -> tuple[list[str], Mapping[str, str]]:
        keys = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
        where = ["--port", f"{LOOPBACK}:{self.port}", "--region", REGION, "--keep-alive", "--quiet"]
        return [str(server_program()), *where, "posix", "data"], keys


if __name__ == "__main__":
    try:
        server_program()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"versitygw {VERSION} could not be built with Go: {error}")
