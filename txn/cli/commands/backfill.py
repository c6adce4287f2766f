"""`txn backfill`: give new tables their history, while the former program runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from txn.cli.completion import topologies
from txn.cli.options import (
    output_options,
    print_json,
    session_for,
    session_options,
    settings_option,
    zookeeper_option,
)
from txn.errors import UserError
from txn.operations.loading import load_topology

__all__ = ["backfill"]


@click.command()
@click.argument("target", metavar="FILE.py:TOPOLOGY", shell_complete=topologies)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="TABLE",
    help="A table to fill; repeatable. [default: the setting backfilled_tables]",
)
@click.option(
    "--from",
    "from_rows",
    multiple=True,
    metavar="TABLE",
    help="Take the rows of this table instead of reading the sources anew: TABLE itself, which is "
    "then rebuilt, or an append table that holds the stream of a state table; repeatable.",
)
@zookeeper_option
@session_options
@settings_option
@output_options
def backfill(
    target: str,
    tables: tuple[str, ...],
    from_rows: tuple[str, ...],
    zookeeper: str,
    master: str | None,
    conf: Mapping[str, str],
    settings: Sequence[str],
    as_json: bool,
) -> None:
    """Fill new tables, and next generations of others, beside the running topology.

    A new table gets the committed txids, read anew. So does the next generation of a table that the
    running program has, in the shape of this program; or it gets the table's own rows, with --from.
    No reader sees it yet. When this command ends, stop the running program and start this one with
    the setting backfilled_tables: it reads the few txids since, lets next generations take their
    tables' places, and goes on. A command that was killed goes on where it was.
    """
    topology = load_topology(target, settings)
    chosen = tables or from_rows or topology.settings.backfilled_tables
    if not chosen:
        raise UserError(
            f"No table to fill: name one with --table, or in the setting backfilled_tables of "
            f"topology '{topology.name}'.",
            number="TXN-119",
        )
    with session_for(topology, master, conf) as spark:
        filled = topology.backfill(spark, chosen, from_rows=from_rows, zookeeper=zookeeper)
    if as_json:
        print_json({"topology": topology.name, "tables": filled})
        return
    for table, txid in filled.items():
        click.echo(f"Table {table} is filled up to txid {txid}.")
    names = ",".join(chosen)
    click.echo(
        f"Stop the former program, then start the new one with --set backfilled_tables={names}. "
        f"`txn plan {target} --set backfilled_tables={names}` shows what else it needs."
    )
