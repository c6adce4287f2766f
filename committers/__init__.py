"""Durable ends of a stream: Delta tables that publish staged files in txid order."""

from __future__ import annotations

import sys

try:
    import txn.errors  # noqa: F401 - to name the file that hides `txn`, if one does
except ModuleNotFoundError as error:
    if error.name != "txn.errors":
        raise
    raise ImportError(
        f"'{sys.modules['txn'].__file__}' hides the installed package 'txn', which 'committers' "
        "needs. Rename it, or move it to a folder that Python does not search first."
    ) from error
