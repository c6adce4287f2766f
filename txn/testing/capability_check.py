"""The optional capabilities that the contract kits find in a plugin."""

from __future__ import annotations

import inspect
import logging
from inspect import Parameter
from typing import Any

from txn.interfaces import Committer, Spout, committer_capabilities, spout_capabilities

__all__ = ["capabilities", "unfit_method"]

log = logging.getLogger("txn.testing")


def capabilities(plugin: Spout[Any] | Committer) -> tuple[str, ...]:
    """Name the capabilities that the engine finds in a plugin, such as "ReportsLag"."""
    return tuple(protocol.__name__ for protocol in _protocols_of(plugin))


def unfit_method(plugin: Spout[Any] | Committer) -> str | None:
    """Name a capability's method that does not take the engine's arguments; None if all do.

    The log has the capabilities that were found (`pytest --log-cli-level=INFO`).
    """
    log.info("%s has %s", type(plugin).__name__, ", ".join(capabilities(plugin)) or "no capability")
    for protocol in _protocols_of(plugin):
        for name, method in vars(protocol).items():
            if name.startswith("_"):
                continue
            _, *arguments = inspect.signature(method).parameters.values()
            by_name = {one.name: one for one in arguments if one.kind is Parameter.KEYWORD_ONLY}
            by_place = [one for one in arguments if one.name not in by_name]
            try:
                inspect.signature(getattr(plugin, name)).bind(*by_place, **by_name)
            except TypeError as error:
                called = f"{name}({', '.join(one.name for one in arguments)})"
                return f"{type(plugin).__name__}.{name} is called as {called}: {error}"
    return None


def _protocols_of(plugin: Spout[Any] | Committer) -> list[type]:
    module = spout_capabilities if isinstance(plugin, Spout) else committer_capabilities
    public = (getattr(module, name) for name in module.__all__)
    return [one for one in public if isinstance(one, type) and isinstance(plugin, one)]
