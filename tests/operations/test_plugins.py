"""`txn plugins`: real entry points of really installed distributions."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import committers
import spouts
from txn.cli.app import cli
from txn.interfaces import Committer, Spout, State
from txn.operations.plugins import Plugin, find_plugins

MODULE = '''
from txn.interfaces import (PartitionPositions, Spout, SpoutKind)

class LogSpout(Spout):
    """Reads a log.

    More about it.
    """
    kind = SpoutKind.OPAQUE
    metadata_type = PartitionPositions

class Chosen(LogSpout):
    def __init__(self, *, kind): ...

class Mute(LogSpout):
    kind = None

def function(): ...
'''

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution: its module and the metadata that pip would write."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def install(name: str, entry_points: str, *, version: str = "1.2", more: str = "") -> None:
        module = name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(MODULE)
        info = tmp_path / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}"
        )
        (info / "entry_points.txt").write_text(entry_points)
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


def plugins_of(distribution: str) -> dict[str, Plugin]:
    return {p.name: p for p in find_plugins() if p.distribution == distribution}


def test_an_installed_plugin_is_listed_with_kind_and_guarantee(install: Install) -> None:
    """Name, class, distribution, version, kind, guarantee and first line of the docstring."""
    install("log-plugin", "[txn.spouts]\nlog = log_plugin:LogSpout\n")
    told = json.loads(CliRunner().invoke(cli, ["plugins", "--json"]).output)
    (log,) = (plugin for plugin in told if plugin["distribution"] == "log-plugin")
    assert log == {
        "group": "txn.spouts",
        "name": "log",
        "target": "log_plugin:LogSpout",
        "distribution": "log-plugin",
        "version": "1.2",
        "kind": "opaque",
        "default": None,
        "guarantee": "exactly once with opaque tables",
        "summary": "Reads a log.",
        "error": None,
    }
    text = CliRunner().invoke(cli, ["plugins"]).output
    assert "  log  log_plugin:LogSpout  (log-plugin 1.2)\n    opaque: exactly once with" in text


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("broken_plugin:Missing", "cannot be loaded: AttributeError"),
        ("no_such_module:LogSpout", "cannot be loaded: ModuleNotFoundError"),
        ("broken_plugin:function", "not a class that inherits from txn.interfaces.Spout"),
        ("broken_plugin:Mute", "Mute does not declare its kind"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_listed_with_its_error(
    install: Install, target: str, error: str
) -> None:
    """A broken plugin is shown as such, and the others all the same."""
    install("broken-plugin", f"[txn.spouts]\nbroken = {target}\n")
    found = plugins_of("broken-plugin")["broken"]
    assert found.kind is None
    assert error in (found.error or "")
    assert {"files", "memory"} <= set(plugins_of("txn-spark"))
    shown = CliRunner().invoke(cli, ["plugins"])
    assert (shown.exit_code, "    error: " in shown.output) == (0, True)


def test_two_plugins_of_one_name_are_told_apart(install: Install) -> None:
    """Each of two plugins with the same name says that there is the other."""
    install("one-plugin", "[txn.spouts]\nlog = one_plugin:LogSpout\n")
    install("other-plugin", "[txn.spouts]\nlog = other_plugin:LogSpout\n", version="3")
    assert "other_plugin:LogSpout of other-plugin 3" in (
        plugins_of("one-plugin")["log"].error or ""
    )
    assert "one_plugin:LogSpout of one-plugin 1.2" in (
        plugins_of("other-plugin")["log"].error or ""
    )


def test_a_missing_extra_is_named(install: Install) -> None:
    """A plugin whose extra is not installed says what to install; with it, it is usable."""
    more = (
        "Provides-Extra: broker\nRequires-Dist: pydantic>=2; extra == 'broker'\n"
        "Provides-Extra: absent\nRequires-Dist: no-such-client>=2; extra == 'absent'\n"
    )
    entries = "here = extra_plugin:LogSpout [broker]\nabsent = extra_plugin:LogSpout [absent]\n"
    install("extra-plugin", f"[txn.spouts]\n{entries}", more=more)
    found = plugins_of("extra-plugin")
    assert found["here"].kind == "opaque"
    assert found["absent"].error == (
        "needs pip install 'extra-plugin[absent]' (no-such-client is missing)"
    )


def test_a_kind_by_argument_is_told_with_its_default(install: Install) -> None:
    """Where an argument decides, its default is told; where there is none, nothing is promised."""
    install("chosen-plugin", "[txn.spouts]\nchosen = chosen_plugin:Chosen\n")
    chosen = plugins_of("chosen-plugin")["chosen"]
    assert (chosen.kind, chosen.default, chosen.guarantee) == ("by argument", None, None)
    table = plugins_of("txn-spark")["state_table"]
    assert (table.kind, table.default) == ("by argument", "opaque")
    assert table.guarantee == "exactly once with transactional and opaque spouts"


INNER = {
    "Corrections",
    "KeptKeys",
    "KeptRows",
    "LogCommitter",
    "RowsCommitter",
    "UpsertCommitter",
}
"""What StateTable binds or keeps, what AppendTable is, and what KafkaSpout reads corrected records
with."""


def test_every_spout_and_committer_of_the_project_is_a_plugin() -> None:
    """What `spouts` and `committers` offer is declared in pyproject.toml, and can be loaded."""
    ours = plugins_of("txn-spark").values()
    assert [plugin for plugin in ours if plugin.error] == []
    offered = set()
    for package in (spouts, committers):
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            for name, value in vars(importlib.import_module(module.name)).items():
                if (
                    inspect.isclass(value)
                    and issubclass(value, Spout | Committer | State)
                    and not inspect.isabstract(value)
                    and value.__module__.startswith(package.__name__)
                    and not name.startswith("_")
                    and name not in INNER
                ):
                    offered.add(name)
    assert {plugin.target.partition(":")[2] for plugin in ours} == offered
