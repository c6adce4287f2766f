"""Says how many inputs were tried, where a run was asked for that many."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.fuzz.inputs import COUNTED


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What a worker of several has tried."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["fuzz"] = dict(COUNTED)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add up what the workers have tried."""
    COUNTED.update(getattr(node, "workeroutput", {}).get("fuzz", {}))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line per target, and their sum."""
    if "TXN_FUZZ_INPUTS" not in os.environ or not COUNTED:
        return
    for target, number in sorted(COUNTED.items()):
        terminalreporter.write_line(f"fuzz: {number:>8,} {target}")
    terminalreporter.write_line(f"fuzz: {sum(COUNTED.values()):>8,} inputs in all")
