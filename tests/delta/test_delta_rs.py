"""The settings of delta-rs's allocator are there before it is loaded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from txn.delta.delta_rs import CONF, VARIABLE

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import importlib, os, sys

class Watch:
    def find_spec(self, name, path, target=None):
        if name == "deltalake":
            print(os.environ.get(sys.argv[2]))
            sys.exit()

sys.meta_path.insert(0, Watch())
importlib.import_module(sys.argv[1])
"""


def seen(module: str, **environment: str) -> str:
    """What the variable holds when importing `module` begins to load delta-rs."""
    others = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, module, VARIABLE],
        capture_output=True,
        text=True,
        env={**others, "PYTHONPATH": str(ROOT), **environment},
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module", ["committers.state_table", "committers.publishing.log", "spouts.delta"]
)
def test_the_allocator_is_set_before_delta_rs_is_loaded(module: str) -> None:
    """Whatever of the product a program imports first, memory that is free is given back soon."""
    assert seen(module) == CONF


def test_only_the_module_that_sets_it_loads_delta_rs() -> None:
    """Every other module has the names of delta-rs from there."""
    sources = [p for name in ("txn", "spouts", "committers") for p in (ROOT / name).rglob("*.py")]
    loads = re.compile(r"^\s*(from|import) deltalake\b", re.MULTILINE)
    found = [str(p.relative_to(ROOT)) for p in sources if loads.search(p.read_text("utf-8"))]
    assert found == ["txn/delta/delta_rs.py"]


def test_a_setting_of_the_users_own_holds() -> None:
    """What the environment says already is not replaced."""
    assert seen("committers.state_table", **{VARIABLE: "narenas:1"}) == "narenas:1"
