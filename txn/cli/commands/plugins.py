"""`txn plugins`: list the installed spouts and committers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from txn.cli.options import output_options, print_json

if TYPE_CHECKING:
    from txn.operations.plugins import Plugin

__all__ = ["plugins"]


@click.command()
@output_options
def plugins(as_json: bool) -> None:
    """List the spouts and committers that are installed, and what each one guarantees.

    A plugin is an entry point in the group txn.spouts or txn.committers. One that cannot be
    loaded is listed with its error.
    """
    from txn.operations.plugins import find_plugins

    installed = find_plugins()
    if as_json:
        print_json(installed)
    else:
        click.echo("\n".join(_plugin_lines(installed)))


def _plugin_lines(plugins: list[Plugin]) -> Iterator[str]:
    from txn.operations.plugins import COMMITTERS, SPOUTS

    for group, title in ((SPOUTS, "spouts"), (COMMITTERS, "committers")):
        yield title if group == SPOUTS else f"\n{title}"
        for plugin in (p for p in plugins if p.group == group):
            yield f"  {plugin.name}  {plugin.target}  ({plugin.distribution} {plugin.version})"
            if plugin.kind is not None:
                default = f", {plugin.default} if left out" if plugin.default else ""
                guarantee = f": {plugin.guarantee}" if plugin.guarantee else ""
                yield f"    {plugin.kind}{default}{guarantee}"
            if plugin.summary:
                yield f"    {plugin.summary}"
            if plugin.error is not None:
                yield f"    error: {plugin.error}"
