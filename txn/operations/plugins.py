"""Find the installed spouts and committers, the project's own and other people's.

A plugin is an entry point of a distribution, in its pyproject.toml:

    [project.entry-points."txn.spouts"]
    sqlite_log = "sqlite_log:SqliteLogSpout"

An entry point is a name in a list. Nothing needs one to work: a program imports its spouts.
`txn plugins` reads the list and loads each one to show its guarantee.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from txn.interfaces import Committer, Semantics, Spout, SpoutKind, State
from txn.text import first_line

__all__ = ["COMMITTERS", "SPOUTS", "Plugin", "find_plugins"]

SPOUTS = "txn.spouts"
"""Entry point group of classes that inherit from `txn.interfaces.Spout`."""
COMMITTERS = "txn.committers"
"""Entry point group of classes that inherit from `txn.interfaces.Committer` or `State`."""

BY_ARGUMENT = "by argument"

_SPOUT_GUARANTEES = {
    SpoutKind.TRANSACTIONAL: "exactly once with transactional and opaque tables",
    SpoutKind.OPAQUE: "exactly once with opaque tables",
    SpoutKind.NON_TRANSACTIONAL: "none: a replay reads what is there by then",
}
_TABLE_GUARANTEES = {
    Semantics.TRANSACTIONAL: "exactly once with transactional spouts",
    Semantics.OPAQUE: "exactly once with transactional and opaque spouts",
    Semantics.NON_TRANSACTIONAL: "at least once: a replay is applied again",
}


@dataclass(frozen=True)
class Plugin:
    """One entry point, and the facts of its class."""

    group: str
    """`SPOUTS` or `COMMITTERS`."""
    name: str
    target: str
    """"module:Class", as declared."""
    distribution: str
    version: str
    kind: str | None = None
    """Value of a `SpoutKind` or `Semantics`, or "by argument"; None: it could not be loaded."""
    default: str | None = None
    """Kind when the argument is left out; None: it is required, or there is no argument."""
    guarantee: str | None = None
    """In words; with "by argument", that of the default."""
    summary: str = ""
    """First line of the docstring."""
    error: str | None = None
    """Why it cannot be used, and what to do."""


def find_plugins() -> list[Plugin]:
    """Return every installed plugin, spouts first, by name. One that cannot load has its error."""
    plugins = [
        _described(group, entry)
        for group in (SPOUTS, COMMITTERS)
        for entry in sorted(metadata.entry_points(group=group), key=lambda e: (e.name, e.value))
    ]
    return [_with_name_clash(plugin, plugins) for plugin in plugins]


def _described(group: str, entry: metadata.EntryPoint) -> Plugin:
    distribution = entry.dist
    name = distribution.metadata["Name"] if distribution else "?"
    version = distribution.version if distribution else "?"
    target = f"{entry.module}:{entry.attr}"
    missing = _missing_extra(entry, name)
    if missing is not None:
        return Plugin(group, entry.name, target, name, version, error=missing)
    try:
        loaded = entry.load()
        kind, default, guarantee = _promise(group, loaded)
    except Exception as error:  # noqa: BLE001 - other people's modules may raise anything
        why = f"cannot be loaded: {first_line(error)}"
        return Plugin(group, entry.name, target, name, version, error=why)
    return Plugin(
        group, entry.name, target, name, version, kind, default, guarantee, _summary(loaded)
    )


def _promise(group: str, loaded: Any) -> tuple[str, str | None, str | None]:
    """Return kind, default of the kind, and guarantee."""
    bases = (Spout,) if group == SPOUTS else (Committer, State)
    if not isinstance(loaded, type) or not issubclass(loaded, bases):
        allowed = " or ".join(f"txn.interfaces.{base.__name__}" for base in bases)
        raise TypeError(f"{loaded!r} is not a class that inherits from {allowed}")
    attribute, kinds = ("kind", SpoutKind) if group == SPOUTS else ("semantics", Semantics)
    argument = inspect.signature(loaded).parameters.get(attribute)
    stated = getattr(loaded, attribute, None) if argument is None else argument.default
    kind = kinds(stated) if isinstance(stated, str) else None
    if kind is None and argument is None:
        raise TypeError(
            f"{loaded.__name__} does not declare its {attribute}: set it in the class, or take "
            f"an argument {attribute}=..."
        )
    guarantee = _guarantee(kind) if kind is not None else None
    if argument is None and kind is not None:
        return kind.value, None, guarantee
    return BY_ARGUMENT, kind.value if kind is not None else None, guarantee


def _guarantee(kind: SpoutKind | Semantics) -> str:
    return _SPOUT_GUARANTEES[kind] if isinstance(kind, SpoutKind) else _TABLE_GUARANTEES[kind]


def _summary(loaded: Any) -> str:
    text = inspect.getdoc(loaded) or ""
    return text.splitlines()[0] if text else ""


def _missing_extra(entry: metadata.EntryPoint, distribution: str) -> str | None:
    """Name what to install if the entry point has an extra: "module:Class [extra]"."""
    for extra in entry.extras:
        needed = _requirements(entry.dist.requires or () if entry.dist else (), extra)
        absent = [name for name in needed if not _installed(name)]
        if absent:
            return f"needs pip install '{distribution}[{extra}]' ({', '.join(absent)} is missing)"
    return None


def _requirements(requires: Iterable[str], extra: str) -> list[str]:
    """Return the names of the distributions that an extra installs."""
    names = []
    for line in requires:
        with contextlib.suppress(InvalidRequirement):  # other people's metadata
            requirement = Requirement(line)
            marker = requirement.marker
            if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
                names.append(requirement.name)
    return names


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _with_name_clash(plugin: Plugin, plugins: Iterable[Plugin]) -> Plugin:
    """Add an error that lists the plugins of the same name, so that readers do not confuse them."""
    same = [p for p in plugins if (p.group, p.name) == (plugin.group, plugin.name) and p != plugin]
    if not same or plugin.error is not None:
        return plugin
    others = ", ".join(f"{p.target} of {p.distribution} {p.version}" for p in same)
    return replace(plugin, error=f"another {plugin.group} plugin has the same name: {others}")
