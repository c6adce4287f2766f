"""A second S3 server of other hands (Versity's gateway over a folder), as a child process.

    python -m tests.stores.versity     # builds it with Go, which takes some minutes

What holds on it and on the server of `tests.stores.s3` is less likely to be one server's habit.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tests.children import LOOPBACK
from tests.stores.go import program
from tests.stores.s3 import KEY, REGION, SECRET, S3Server
from txn.errors import SetupError

__all__ = ["VersityServer", "server_program"]

VERSION = "1.8.0"


def server_program() -> Path:
    """The server's program, built if it is not there yet."""
    return program("github.com/versity/versitygw/cmd/versitygw", VERSION)


class VersityServer(S3Server):
    """One S3 server in a folder, used as the other one is."""

    def _command(self) -> tuple[list[str], Mapping[str, str]]:
        keys = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
        where = ["--port", f"{LOOPBACK}:{self.port}", "--region", REGION, "--keep-alive", "--quiet"]
        return [str(server_program()), *where, "posix", "data"], keys


if __name__ == "__main__":
    try:
        server_program()
    except SetupError as error:
        sys.exit(str(error))
