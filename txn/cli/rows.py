"""`txn rows list` and `txn rows show`: the rows that rules have set aside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from txn.cli.completion import names
from txn.cli.options import console, output_options, print_json, zookeeper_option

if TYPE_CHECKING:
    from txn.operations.bad_rows import BadRows

__all__ = ["rows"]


@click.group()
def rows() -> None:
    """Show the rows that rules have set aside."""


@rows.command("list")
@click.argument("name", metavar="NAME", shell_complete=names)
@zookeeper_option
@output_options
def list_command(name: str, zookeeper: str, as_json: bool) -> None:
    """Show how many rows each rule has set aside, and in which txids. Changes nothing.

    NAME is the topology's name, or FILE.py:TOPOLOGY, which needs no ZooKeeper.
    """
    from txn.cli.tables import rule_rows_table

    topology, found = _bad_rows(name, zookeeper)
    rules = found.by_rule() if found else []
    if as_json:
        listed = [rule.to_json() for rule in rules]
        print_json({"topology": topology, "table": found and found.table, "rules": listed})
    elif rules:
        console().print(rule_rows_table(rules), highlight=False)
    else:
        click.echo(_nothing(topology, found))


@rows.command("show")
@click.argument("name", metavar="NAME", shell_complete=names)
@click.option("--stream", help="Only rows of this stream.")
@click.option("--rule", help="Only rows that broke this rule.")
@click.option("--txid", type=click.IntRange(min=1), help="Only rows of this txid.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Rows to show, those of the newest txids first.",
)
@zookeeper_option
@output_options
def show_command(
    name: str,
    stream: str | None,
    rule: str | None,
    txid: int | None,
    limit: int,
    zookeeper: str,
    as_json: bool,
) -> None:
    """Show the rows themselves: where each came from, what it is, and why. Changes nothing.

    NAME is the topology's name, or FILE.py:TOPOLOGY, which needs no ZooKeeper.
    """
    from txn.cli.tables import bad_rows_table

    topology, found = _bad_rows(name, zookeeper)
    shown = found.newest(limit, stream=stream, rule=rule, txid=txid) if found else []
    if as_json:
        listed = [row.to_json() for row in shown]
        print_json({"topology": topology, "table": found and found.table, "rows": listed})
    elif shown:
        console().print(bad_rows_table(shown), highlight=False)
    else:
        click.echo(_nothing(topology, found))


def _bad_rows(name: str, zookeeper: str) -> tuple[str, BadRows | None]:
    from txn.operations.bad_rows import bad_rows_among
    from txn.operations.topology_tables import tables_of

    found = tables_of(name, zookeeper)
    return found.topology, bad_rows_among(found.tables, found.storage_options, found.committed)


def _nothing(topology: str, found: BadRows | None) -> str:
    if found is None:
        return (
            f"Topology '{topology}' has published to no table of bad rows. It needs one to set "
            f"rows aside: Topology('{topology}', bad_rows=AppendTable(PATH))."
        )
    return f"Topology '{topology}' has no such rows in table '{found.table}'."
