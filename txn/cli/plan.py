"""`txn plan`: what would run, and what each table guarantees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import click

from txn.cli.options import output_options, print_json, settings_option
from txn.operations.loading import load_topology
from txn.operations.plan import TopologyPlan, plan_topology

__all__ = ["plan"]


@click.command()
@click.argument("target", metavar="FILE.py:TOPOLOGY")
@settings_option
@output_options
def plan(target: str, settings: Sequence[str], as_json: bool) -> None:
    """Show streams, stages and tables, and what each table guarantees. Runs nothing.

    Refuses what `txn run` would refuse at once. Needs neither Spark nor ZooKeeper.
    """
    found = plan_topology(load_topology(target, settings))
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
    if found.settings:
        yield from ("", "settings")
        yield from _columns((s.name, s.value, f"from {s.place}") for s in found.settings)


def _phase(phase: str) -> str:
    return "in the commit turn" if phase == "commit" else ""


def _columns(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Rows with their columns aligned; empty columns take no room."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [c.ljust(w) for c, w in zip(row, widths, strict=True) if w]
        yield ("  " + "  ".join(cells)).rstrip()
