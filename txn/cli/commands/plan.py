"""`txn plan`: show what would run, the guarantee of each table, and what a run would change."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from txn.cli.completion import topologies
from txn.cli.options import (
    announce,
    output_options,
    print_json,
    session_for,
    session_options,
    settings_option,
)
from txn.errors import TopologyError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from txn.operations.plan import TablePlan, TopologyPlan
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
@click.option(
    "--zookeeper",
    metavar="SPEC",
    help="The ZooKeeper whose progress is compared, as for txn run; an embedded one is started. "
    "Default: the embedded server of this folder, if it runs.",
)
@session_options
@settings_option
@output_options
@click.pass_context
def plan(
    context: click.Context,
    target: str,
    with_columns: bool,
    zookeeper: str | None,
    master: str | None,
    conf: Mapping[str, str],
    settings: Sequence[str],
    as_json: bool,
) -> None:
    """Show streams, stages and tables, what each table guarantees, and what a run would change.

    Runs and writes nothing. The exit code is 1 if `txn run` would refuse to start. Needs neither
    Spark nor ZooKeeper; with --columns it needs Spark, and the sources if they declare no schema.
    """
    if sys.stderr.isatty():  # the whole answer takes a second
        announce(f"{target}: loading the program")
    from txn.cli.change_lines import change_lines
    from txn.config.location import resolve
    from txn.operations.changes.at_rest import sizes_at_rest
    from txn.operations.changes.topology import compare_topology
    from txn.operations.loading import load_topology
    from txn.operations.plan import plan_topology

    if zookeeper is not None:
        resolve(zookeeper)
    topology = load_topology(target, settings)
    if not with_columns:
        _refuse_names(topology)
    schemas = _schemas(topology, master, conf) if with_columns else {}
    topology_plan = plan_topology(topology)
    changes = compare_topology(topology, zookeeper, {t: _types(s) for t, s in schemas.items()})
    sizes = sizes_at_rest(topology.definition)
    if as_json:
        at_rest = {"at_rest": {one.table: one.to_json() for one in sizes}}
        columns = {"columns": {t: _shown(s) for t, s in schemas.items()}} if with_columns else {}
        print_json(asdict(topology_plan) | at_rest | columns | changes.to_json())
    else:
        shown = {table: _shown(schema) for table, schema in schemas.items()}
        lines = _plan_lines(topology_plan, shown, {one.table: one.text for one in sizes})
        click.echo("\n".join([*lines, "", *change_lines(changes)]))
    if changes.is_refused:
        context.exit(1)


def _refuse_names(topology: Topology) -> None:
    """Refuse tables that only Spark can find: what becomes of them would be unknown."""
    from txn.storage.catalog_names import is_table_name

    named = [sink.name for sink in topology.sinks if is_table_name(sink.name)]
    if named:
        raise TopologyError(
            f"{', '.join(named)} of topology '{topology.name}' is a name in Spark's catalog, and "
            "`txn plan` has no Spark to find its folder. Add --columns, which starts Spark.",
            number="TXN-127",
        )


def _schemas(
    topology: Topology, master: str | None, conf: Mapping[str, str]
) -> dict[str, StructType | None]:
    """Return table -> its columns; None: unknown until something is read."""
    from txn.engine.preview import columns

    with session_for(topology, master, conf) as spark:
        topology.find_tables(spark)
        return columns(topology.definition, spark)


def _shown(schema: StructType | None) -> dict[str, str] | None:
    """Return column -> type, as Spark shows it."""
    if schema is None:
        return None
    return {field.name: field.dataType.simpleString() for field in schema}


def _types(schema: StructType | None) -> dict[str, Any] | None:
    """Return column -> type, as a table's log has it."""
    if schema is None:
        return None
    return {field.name: field.dataType.jsonValue() for field in schema}


def _plan_lines(
    topology_plan: TopologyPlan,
    columns: Mapping[str, Mapping[str, str] | None],
    sizes: Mapping[str, str],
) -> Iterator[str]:
    from txn.cli.words import aligned

    yield f"topology {topology_plan.topology}"
    yield from ("", "streams")
    yield from aligned(
        (s.id, s.spout, s.kind, s.batch, f"after {', '.join(s.after)}" if s.after else "")
        for s in topology_plan.streams
    )
    # The table of bad rows reads a stage of its own. Without a rule that stage reads nothing.
    stages = [s for s in topology_plan.stages if s.reads]
    if stages:
        yield from ("", "stages")
        yield from aligned(
            (s.id, f"<- {', '.join(s.reads)}", _phase(s.phase), s.detail) for s in stages
        )
    feeders = {s.id for s in stages} | {s.id for s in topology_plan.streams}
    yield from ("", "tables")
    for table in topology_plan.tables:
        yield from _table_lines(table, columns, is_fed=table.reads in feeders)
        if table.name in sizes:
            yield f"    {sizes[table.name]}"
    if topology_plan.notes:
        yield from ("", "notes", *(f"  {note}" for note in topology_plan.notes))
    if topology_plan.settings:
        yield from ("", "settings")
        yield from aligned((s.name, s.value, f"from {s.place}") for s in topology_plan.settings)


def _table_lines(
    table: TablePlan, columns: Mapping[str, Mapping[str, str] | None], *, is_fed: bool
) -> Iterator[str]:
    from txn.cli.words import NOTHING_SET_ASIDE

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
