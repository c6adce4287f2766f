"""`txn sql` and `txn open`: a topology's tables for DuckDB, without Spark and Java."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from txn.cli.completion import names
from txn.cli.options import zookeeper_option

if TYPE_CHECKING:
    from txn.operations.snapshot import Snapshot

__all__ = ["open_command", "sql_command"]


@click.command(name="sql")
@click.argument("name", metavar="NAME", shell_complete=names)
@click.option("--table", required=True, metavar="TABLE", help="Its path, or the last part of it.")
@click.option("--txid", type=click.IntRange(min=1), help="As of this txid. [default: the newest]")
@zookeeper_option
def sql_command(name: str, table: str, txid: int | None, zookeeper: str) -> None:
    """Print DuckDB's query for what readers see of a table. Changes nothing.

    The query reads the files of one version, so it gives the same rows until they are vacuumed.

    NAME is the topology's name, or FILE.py:TOPOLOGY, which needs no ZooKeeper.
    """
    from txn.operations.snapshot import query_of

    click.echo(query_of(name, table, txid, zookeeper=zookeeper))


@click.command(name="open")
@click.argument("name", metavar="NAME", shell_complete=names)
@click.argument("query", metavar="[SQL]", required=False)
@click.option("--txid", type=click.IntRange(min=1), help="As of this txid. [default: the newest]")
@zookeeper_option
def open_command(name: str, query: str | None, txid: int | None, zookeeper: str) -> None:
    """Ask all tables of a topology, as of one txid, in DuckDB's SQL. Changes nothing.

    With SQL, print its rows; without, take one statement after the other, each up to a semicolon.

    NAME is the topology's name, or FILE.py:TOPOLOGY, which needs no ZooKeeper.
    """
    from txn.operations.snapshot import snapshot

    tables = snapshot(None, name, "newest" if txid is None else txid, zookeeper=zookeeper)
    if query is not None:
        _show(tables, query)
        return
    click.echo(f"Topology '{tables.topology}' as of txid {tables.txid}:", err=True)
    for view, path in tables.paths.items():
        click.echo(f"  {view}    {path}", err=True)
    for path in tables.left_out:
        click.echo(f"  left out: {path} (nothing yet, or of another package)", err=True)
    click.echo("One statement after the other, each with a ';' at its end. Ctrl-D ends.", err=True)
    for statement in _statements():
        try:
            _show(tables, statement)
        except click.ClickException as error:
            error.show()


def _statements() -> Iterator[str]:
    """Yield what is typed, up to each semicolon at the end of a line."""
    lines: list[str] = []
    asks = sys.stdin.isatty()
    while True:
        try:
            lines.append(input(("   ...> " if lines else "txn> ") if asks else ""))
        except EOFError:
            break
        if lines[-1].rstrip().endswith(";"):
            yield "\n".join(lines)
            lines = []
    if any(line.strip() for line in lines):
        yield "\n".join(lines)


def _show(tables: Snapshot, query: str) -> None:
    import duckdb

    try:
        result = tables.sql(query)
        if result is not None:
            click.echo(str(result).rstrip())
    except duckdb.Error as error:
        raise click.ClickException(str(error)) from error
