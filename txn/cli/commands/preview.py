"""`txn preview`: show the rows that the first batch would put into each table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from txn.cli.completion import topologies
from txn.cli.options import (
    announce,
    console,
    output_options,
    print_json,
    session_for,
    session_options,
    settings_option,
)
from txn.errors import UserError
from txn.spark.lazy import sf
from txn.text import counted, printable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from rich.console import RenderableType

    from txn.engine.preview import Preview
    from txn.topology import Topology

__all__ = ["preview", "show_preview"]


@click.command()
@click.argument("target", metavar="FILE.py:TOPOLOGY", shell_complete=topologies)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Most rows to show of each table.",
)
@click.option("--table", help="Only this table, as the program names it, or the end of its path.")
@session_options
@settings_option
@output_options
def preview(
    target: str,
    rows: int,
    table: str | None,
    master: str | None,
    conf: Mapping[str, str],
    settings: Sequence[str],
    as_json: bool,
) -> None:
    """Show what the first batch would put into each table. Writes nothing anywhere.

    One batch is read from the beginning of every source, whatever was committed already, and
    states are empty. Needs Spark, and no ZooKeeper.
    """
    announce(f"{target}: loading the program")
    from txn.operations.loading import load_topology

    topology = load_topology(target, settings)
    _table_number(topology, table)
    with session_for(topology, master, conf) as spark:
        show_preview(topology, spark, rows, table, as_json=as_json)


def show_preview(
    topology: Topology, spark: SparkSession, rows: int, table: str | None, *, as_json: bool = False
) -> None:
    """Compute and print a preview.

    Args:
        rows: most rows of each table.
        table: as on the command line; None: all tables.

    Raises:
        TxnError: as `Topology.preview`; or there is no such table.
    """
    from txn.engine.preview import preview as previewed

    number = _table_number(topology, table)
    topology.find_tables(spark)
    names = [sink.name for sink in topology.sinks]
    chosen = names if number is None else [names[number]]
    announce(f"{topology.name}: reading a batch, computing {counted(len(names), 'table')}")
    result = previewed(topology.definition, spark, rows)
    if as_json:
        print_json(_json(topology.name, result, chosen))
    else:
        for part in _parts(result, chosen):
            console().print(part, highlight=False)


def _table_number(topology: Topology, table: str | None) -> int | None:
    """Return the place of the table that the command line names; None: it names none.

    Raises:
        UserError: no table, or more than one, has this name.
    """
    names = [sink.name for sink in topology.sinks]
    return None if table is None else names.index(_named(table, names, topology.name))


def _named(table: str, names: Sequence[str], topology: str) -> str:
    fitting = [n for n in names if n == table] or [n for n in names if n.endswith(f"/{table}")]
    if len(fitting) != 1:
        raise UserError(
            f"Topology '{topology}' has {'several tables' if fitting else 'no table'} '{table}'. "
            f"Its tables are {', '.join(names)}."
        )
    return fitting[0]


def _json(topology: str, result: Preview, tables: Sequence[str]) -> dict[str, Any]:
    return {
        "topology": topology,
        "read": dict(result.read),
        "violations": result.violations,
        "tables": {name: _objects(result.tables[name]) for name in tables if name in result.tables},
        "waiting": {name: list(result.waiting[name]) for name in tables if name in result.waiting},
    }


def _objects(frame: DataFrame) -> list[Any]:
    """Return the rows as Spark's JSON, NULLs included."""
    whole = sf.to_json(sf.struct("*"), {"ignoreNullFields": "false"})
    return [json.loads(row[0]) for row in frame.select(whole).collect()]


def _parts(result: Preview, tables: Sequence[str]) -> Iterator[RenderableType]:
    from rich.text import Text

    from txn.cli.words import NOTHING_SET_ASIDE
    from txn.positions import describe

    for stream, position in result.read.items():
        what = "has nothing to read" if position is None else f"reads {describe(position)}"
        yield Text(f"stream {printable(stream)} {what}")
    for stream, rules in result.violations.items():
        for rule, broken in rules.items():
            what = f"{_counted(broken)} broke the rule '{printable(rule)}'"
            yield Text(f"stream {printable(stream)}: {what}")
    for name in tables:
        yield Text()
        if name in result.tables:
            yield from _table(name, result.tables[name])
        else:
            waits = " and of ".join(result.waiting[name])
            why = f"the columns of {waits} are not known yet" if waits else NOTHING_SET_ASIDE
            yield Text(f"table {printable(name)}: {why}")


def _table(name: str, frame: DataFrame) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    rows = frame.select(
        *(sf.col(f"`{c.replace('`', '``')}`").cast("string") for c in frame.columns)
    )
    shown = rows.collect()
    yield Text(f"table {printable(name)}: {_counted(len(shown))}", style="bold")
    if shown:
        grid = Table(box=None, pad_edge=False, header_style="dim")
        for field in frame.schema:
            grid.add_column(printable(f"{field.name} {field.dataType.simpleString()}"))
        for row in shown:
            grid.add_row(*(Text("NULL", style="dim") if v is None else printable(v) for v in row))
        yield grid


def _counted(rows: int) -> str:
    return "no rows" if not rows else f"{rows} row{'s' if rows > 1 else ''}"
