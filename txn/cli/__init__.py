"""The command line: text for people over the results of `operations` and of a run."""

from __future__ import annotations

from txn.cli.app import cli, main

__all__ = ["cli", "main"]
