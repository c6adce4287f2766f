"""`txn plan`: show what would run, and the guarantee of each table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from txn.cli.completion import topologies
from txn.cli.options import (
    output_options,
    print_json,
    session_for,
    session_options,
    settings_option,
)
from txn.cli.words import NOTHING_SET_ASIDE
from txn.operations.loading import load_topology
from txn.operations.plan import TablePlan, TopologyPlan, plan_topology

if TYPE_CHECKING:
    from txn.topology import Topology

__all__ = ["plan"]


@click.command()
@click.argument("target", metavar="FILE.py:TOPOLOGY", shell_complete=topologies)
@click.option(
    "--columns",
    "with_columns",
    is_flag=True,
    help="Start Spark, check every column and expression, and show the columns of each table.",
)
@session_options
@settings_option
@output_options
def plan(
    target: str,
    with_columns: bool,
    master: str | None,
    conf: Mapping[str, str],
    settings: Sequence[str],
    as_json: bool,
) -> None:
    """Show streams, stages and tables, and what each table guarantees. Runs nothing.

    Refuses what `txn run` would refuse at once. Needs neither Spark nor ZooKeeper; with --columns
    it needs Spark, and the sources if they declare no schema.
    """
    topology = load_topology(target, settings)
    topology_plan = plan_topology(topology)
    columns = _columns_of(topology, master, conf) if with_columns else None
    if as_json:
        print_json(asdict(topology_plan) | ({} if columns is None else {"columns": columns}))
    else:
        click.echo("\n".join(_plan_lines(topology_plan, columns or {})))


def _columns_of(
    topology: Topology, master: str | None, conf: Mapping[str, str]
) -> dict[str, dict[str, str] | None]:
    """Return table -> column -> type; None: unknown until something is read."""
    from txn.engine.preview import columns

    with session_for(topology, master, conf) as spark:
        return {
            table: schema
            if schema is None
            else {field.name: field.dataType.simpleString() for field in schema}
            for table, schema in columns(topology.definition, spark).items()
        }


def _plan_lines(
    topology_plan: TopologyPlan, columns: Mapping[str, Mapping[str, str] | None]
) -> Iterator[str]:
    yield f"topology {topology_plan.topology}"
    yield from ("", "streams")
    yield from _aligned(
        (s.id, s.spout, s.kind, f"after {', '.join(s.after)}" if s.after else "")
        for s in topology_plan.streams
    )
    # The table of bad rows reads a stage of its own. Without a rule that stage reads nothing.
    stages = [s for s in topology_plan.stages if s.reads]
    if stages:
        yield from ("", "stages")
        yield from _aligned(
            (s.id, f"<- {', '.join(s.reads)}", _phase(s.phase), s.detail) for s in stages
        )
    feeders = {s.id for s in stages} | {s.id for s in topology_plan.streams}
    yield from ("", "tables")
    for table in topology_plan.tables:
        yield from _table_lines(table, columns, is_fed=table.reads in feeders)
    if topology_plan.notes:
        yield from ("", "notes", *(f"  {note}" for note in topology_plan.notes))
    if topology_plan.settings:
        yield from ("", "settings")
        yield from _aligned((s.name, s.value, f"from {s.place}") for s in topology_plan.settings)


def _table_lines(
    table: TablePlan, columns: Mapping[str, Mapping[str, str] | None], *, is_fed: bool
) -> Iterator[str]:
    reads = f"<- {table.reads}" if is_fed else NOTHING_SET_ASIDE
    committer = filter(None, (table.committer, table.layout, table.semantics))
    needs = f"; needs {', '.join(table.columns)}" if table.columns else ""
    yield f"  {table.name}  {reads}  {', '.join(committer)}{needs}"
    yield f"    {table.guarantee}: {table.why}"
    if is_fed and table.name in columns:
        types = (columns[table.name] or {}).items()
        listed = ", ".join(f"{name} {type_name}" for name, type_name in types)
        yield f"    columns: {listed or 'not known before something is read'}"


def _phase(phase: str) -> str:
    return "in the commit turn" if phase == "commit" else ""


def _aligned(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield rows with aligned columns; empty columns take no room."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [c.ljust(w) for c, w in zip(row, widths, strict=True) if w]
        yield ("  " + "  ".join(cells)).rstrip()
