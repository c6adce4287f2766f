"""Importing the packages changes nothing in the program that does it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import gc, logging, os, signal, sys, threading

def state():
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    return {
        "sys.meta_path": [str(finder) for finder in sys.meta_path],
        "sys.path_hooks": len(sys.path_hooks),
        "sys.excepthook": sys.excepthook,
        "garbage": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "environment": dict(os.environ),
        "handlers": [h for one in loggers for h in getattr(one, "handlers", ())
                     if not isinstance(h, logging.NullHandler)],
        "level": logging.root.level,
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "threads": threading.active_count(),
    }

before = state()
__import__(sys.argv[1])
print([name for name, value in state().items() if value != before[name]])
"""


@pytest.mark.parametrize("module", ["txn", "spouts.delta", "committers.state_table"])
def test_an_import_has_no_side_effect(module: str) -> None:
    """Finders, hooks, the collector, the environment, logging, signals, threads: all as before."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, module], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[]\n"
