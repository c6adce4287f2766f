"""The command line: shows people the results of `operations` and of a run."""

from __future__ import annotations

from txn.cli.app import cli, main

__all__ = ["cli", "main"]
