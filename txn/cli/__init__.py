"""The command line: words for people over what `operations` and a run tell."""

from __future__ import annotations

from txn.cli.app import cli, main

__all__ = ["cli", "main"]
