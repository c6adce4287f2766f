"""`txn history`: show the newest txids from the tables' logs."""

from __future__ import annotations

import click

from txn.cli.completion import names
from txn.cli.options import console, output_options, print_json, zookeeper_option

__all__ = ["history"]


@click.command()
@click.argument("name", metavar="NAME", shell_complete=names)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Newest txids to show.",
)
@zookeeper_option
@output_options
def history(name: str, limit: int, zookeeper: str, as_json: bool) -> None:
    """Show the newest txids, out of the tables' own logs. Changes nothing.

    NAME is the topology's name, or FILE.py:TOPOLOGY, which needs no ZooKeeper.
    """
    from txn.cli.tables import history_table
    from txn.operations.txids import history as read_history

    entries = read_history(name, zookeeper=zookeeper, limit=limit)
    if as_json:
        print_json({"topology": entries.topology, "txids": [entry.to_json() for entry in entries]})
    elif entries:
        console().print(history_table(entries), highlight=False)
    else:
        click.echo(f"Topology '{entries.topology}' has committed nothing yet.")
