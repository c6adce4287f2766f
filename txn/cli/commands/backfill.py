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
from txn.storage.locations import identity

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
@zookeeper_option
@session_options
@settings_option
@output_options
def backfill(
    target: str,
    tables: tuple[str, ...],
    zookeeper: str,
    master: str | None,
    conf: Mapping[str, str],
    settings: Sequence[str],
    as_json: bool,
) -> None:
    """Give new tables the committed txids, read anew, beside the running topology.

    The running program does not know these tables. When this command ends, stop it and start the
    new one with the setting backfilled_tables: it reads the few txids since, and goes on. A command
    that was killed goes on where it was.
    """
    topology = load_topology(target, settings)
    chosen = tables or topology.settings.backfilled_tables
    if not chosen:
        raise UserError(
            f"No table to fill: name one with --table, or in the setting backfilled_tables of "
            f"topology '{topology.name}'.",
            number="TXN-119",
        )
    with session_for(topology, master, conf) as spark:
        filled = topology.backfill(spark, chosen, zookeeper=zookeeper)
    if as_json:
        print_json({"topology": topology.name, "tables": filled})
        return
    for table, txid in filled.items():
        click.echo(f"Table {table} holds every txid up to {txid}.")
    full = {identity(table) for table in filled}
    for table in chosen:
        if identity(table) not in full:
            click.echo(f"Table {table} lacked nothing.")
    names = ",".join(chosen)
    click.echo(f"Start the new program with --set backfilled_tables={names}.")
