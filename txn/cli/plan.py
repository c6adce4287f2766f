"""`txn plan` and `txn plugins`: what would run, and what there is to run it with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from txn.cli.options import output_options, print_json
from txn.operations.loading import load_topology
from txn.operations.plan import TopologyPlan, plan_topology
from txn.operations.plugins import COMMITTERS, SPOUTS, Plugin, find_plugins

__all__ = ["plan", "plugins"]


@click.command()
@click.argument("target", metavar="FILE.py:TOPOLOGY")
@output_options
def plan(target: str, as_json: bool) -> None:
    """Show streams, stages and tables, and what each table guarantees. Runs nothing.

    Refuses what `txn run` would refuse at once. Needs neither Spark nor ZooKeeper.
    """
    found = plan_topology(load_topology(target))
    if as_json:
        print_json(found.to_json())
    else:
        click.echo("\n".join(_plan_lines(found)))


def _plan_lines(found: TopologyPlan) -> Iterator[str]:
    yield f"topology {found.topology}"
    yield from ("", "streams")
    yield from _columns((s.id, s.spout, s.kind) for s in found.streams)
    if found.stages:
        yield from ("", "stages")
        yield from _columns(
            (s.id, f"<- {', '.join(s.reads)}", _phase(s.phase), s.detail) for s in found.stages
        )
    yield from ("", "tables")
    for table in found.tables:
        described = filter(None, (table.committer, table.layout, table.semantics))
        needs = f"; needs {', '.join(table.columns)}" if table.columns else ""
        yield f"  {table.name}  <- {table.reads}  {', '.join(described)}{needs}"
        yield f"    {table.guarantee}: {table.why}"


def _phase(phase: str) -> str:
    return "in the commit turn" if phase == "commit" else ""


@click.command()
@output_options
def plugins(as_json: bool) -> None:
    """List the spouts and committers that are installed, and what each one guarantees.

    A plugin is an entry point in the group txn.spouts or txn.committers. One that cannot be
    loaded is listed with its error.
    """
    found = find_plugins()
    if as_json:
        print_json([plugin.to_json() for plugin in found])
    else:
        click.echo("\n".join(_plugin_lines(found)))


def _plugin_lines(found: list[Plugin]) -> Iterator[str]:
    for group, title in ((SPOUTS, "spouts"), (COMMITTERS, "committers")):
        yield title if group == SPOUTS else f"\n{title}"
        for plugin in (p for p in found if p.group == group):
            yield f"  {plugin.name}  {plugin.target}  ({plugin.distribution} {plugin.version})"
            if plugin.kind is not None:
                default = f", {plugin.default} if left out" if plugin.default else ""
                guarantee = f": {plugin.guarantee}" if plugin.guarantee else ""
                yield f"    {plugin.kind}{default}{guarantee}"
            if plugin.summary:
                yield f"    {plugin.summary}"
            if plugin.error is not None:
                yield f"    error: {plugin.error}"


def _columns(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Rows with their columns aligned; empty columns take no room."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [c.ljust(w) for c, w in zip(row, widths, strict=True) if w]
        yield ("  " + "  ".join(cells)).rstrip()
