"""`txn sql`, `txn open`, `txn publish`: tables for other engines, without Spark and Java."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import click

from txn.cli.completion import names
from txn.cli.options import zookeeper_option

if TYPE_CHECKING:
    from txn.operations.snapshot import Snapshot

__all__ = ["open_command", "publish_command", "sql_command"]

_DIALECTS = click.Choice(["duckdb", "spark", "trino"])


@click.command(name="sql")
@click.argument("name", metavar="NAME", shell_complete=names)
@click.option("--table", required=True, metavar="TABLE", help="Its path, or the last part of it.")
@click.option("--txid", type=click.IntRange(min=1), help="As of this txid. [default: the newest]")
@click.option("--column", "columns", multiple=True, metavar="NAME", help="Only this; repeat it.")
@click.option("--dialect", type=_DIALECTS, default="duckdb", show_default=True)
@click.option("--as", "named", metavar="CATALOG.SCHEMA.TABLE", help="Its name in Spark or Trino.")
@zookeeper_option
def sql_command(
    name: str,
    table: str,
    txid: int | None,
    columns: tuple[str, ...],
    dialect: Literal["duckdb", "spark", "trino"],
    named: str | None,
    zookeeper: str,
) -> None:
    """Print one query for what readers see of a table. Changes nothing.

    The query reads one version, so it gives the same rows until its files are vacuumed.

    NAME is the topology's name, or FILE.py:TOPOLOGY, which needs no ZooKeeper.
    """
    from txn.operations.snapshot import query_of

    if named is not None and dialect == "duckdb":
        raise click.UsageError("--as goes with --dialect spark or trino: DuckDB reads files.")
    text = query_of(
        name, table, txid, columns=columns, dialect=dialect, named=named, zookeeper=zookeeper
    )
    click.echo(text)


@click.command(name="open")
@click.argument("name", metavar="NAME", shell_complete=names)
@click.argument("query", metavar="[SQL]", required=False)
@click.option("--txid", type=click.IntRange(min=1), help="As of this txid. [default: the newest]")
@zookeeper_option
def open_command(name: str, query: str | None, txid: int | None, zookeeper: str) -> None:
    """Ask all tables of a topology, as of one txid, in DuckDB's SQL. Changes none of them.

    With SQL, print its rows; without, take one statement after the other, each up to a semicolon.

    NAME is the topology's name, or FILE.py:TOPOLOGY, which needs no ZooKeeper.
    """
    from txn.operations.snapshot import snapshot

    tables = snapshot(None, name, "newest" if txid is None else txid, zookeeper=zookeeper)
    for path, why in tables.left_out.items():
        click.echo(f"left out: {path}: {why}", err=True)
    if query is not None:
        _show(tables, query)
        return
    click.echo(f"Topology '{tables.topology}' as of txid {tables.txid}:", err=True)
    for view, path in tables.paths.items():
        click.echo(f"  {view}    {path}", err=True)
    click.echo("One statement after the other, each with a ';' at its end. Ctrl-D ends.", err=True)
    for statement in _statements():
        try:
            _show(tables, statement)
        except click.ClickException as error:
            error.show()


@click.command(name="publish")
@click.argument("name", metavar="NAME", shell_complete=names)
@click.option("--table", required=True, metavar="TABLE", help="Its path, or the last part of it.")
@click.option("--to", "path", required=True, metavar="FOLDER", help="A new or empty folder.")
@click.option("--txid", type=click.IntRange(min=1), help="As of this txid. [default: the newest]")
@click.option("--column", "columns", multiple=True, metavar="NAME", help="Only this; repeat it.")
@click.option("--top", type=click.IntRange(min=1), help="Only so many rows, with --by.")
@click.option("--by", metavar="SQL", help="The order of a ranking, such as 'spent DESC'.")
@zookeeper_option
def publish_command(
    name: str,
    table: str,
    path: str,
    txid: int | None,
    columns: tuple[str, ...],
    top: int | None,
    by: str | None,
    zookeeper: str,
) -> None:
    """Write what readers see of a table, once, to a new Delta table with nothing else.

    A program keeps such a table up: persistent_aggregate(...).publish(FOLDER).

    NAME is the topology's name, or FILE.py:TOPOLOGY, which needs no ZooKeeper.
    """
    from txn.operations.snapshot import publish_once

    shows = publish_once(
        name,
        table,
        path,
        "newest" if txid is None else txid,
        columns=columns,
        top=top,
        by=by,
        zookeeper=zookeeper,
    )
    click.echo(f"{path} shows {table} as of txid {shows}")


def _statements() -> Iterator[str]:
    """Yield what is typed, up to each semicolon at the end of a line that is not in a string."""
    lines: list[str] = []
    asks = sys.stdin.isatty()
    while True:
        try:
            lines.append(input(("   ...> " if lines else "txn> ") if asks else ""))
        except EOFError:
            break
        if lines[-1].rstrip().endswith(";") and _is_whole("\n".join(lines)):
            yield "\n".join(lines)
            lines = []
    if any(line.strip() for line in lines):
        yield "\n".join(lines)


def _is_whole(text: str) -> bool:
    import duckdb

    try:
        duckdb.extract_statements(text)
    except duckdb.Error as error:
        return "unterminated" not in str(error)
    return True


def _show(tables: Snapshot, query: str) -> None:
    import duckdb

    try:
        for statement in duckdb.extract_statements(query):
            result = tables.sql(statement.query)
            if result is not None:
                click.echo(str(result).rstrip())
    except duckdb.Error as error:
        raise click.ClickException(str(error)) from error
