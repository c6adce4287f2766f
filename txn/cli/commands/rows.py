"""`txn rows`: list, export and replay the rows that rules have set aside."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from txn.cli.completion import names, topologies
from txn.cli.options import console, output_options, print_json, zookeeper_of, zookeeper_option
from txn.operations.loading import load_topology

if TYPE_CHECKING:
    from txn.operations.rows.bad_rows import BadRows
    from txn.operations.tables.topology_tables import TopologyTables

__all__ = ["rows"]


@click.group()
def rows() -> None:
    """Show the rows that rules have set aside, and let corrected ones go in again."""


@rows.command("list")
@click.argument("name", metavar="NAME", shell_complete=names)
@zookeeper_option
@output_options
def list_command(name: str, zookeeper: str, as_json: bool) -> None:
    """Show how many rows each rule has set aside, in which txids, and which are still open.

    Changes nothing.

    NAME is the topology's name, or FILE.py:TOPOLOGY, which needs no ZooKeeper.
    """
    from txn.cli.tables import rule_rows_table
    from txn.operations.tables.topology_tables import tables_of

    tables = tables_of(name, zookeeper, with_replays=True)
    topology, bad_rows = tables.topology, _bad_rows(tables)
    rules = bad_rows.by_rule(tables.replays) if bad_rows else []
    if as_json:
        print_json({"topology": topology, "table": bad_rows and bad_rows.table, "rules": rules})
    elif rules:
        console().print(rule_rows_table(rules), highlight=False)
    else:
        click.echo(_nothing(topology, bad_rows))


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
    from txn.operations.tables.topology_tables import tables_of

    tables = tables_of(name, zookeeper)
    topology, bad_rows = tables.topology, _bad_rows(tables)
    shown = bad_rows.newest(limit + 1, stream=stream, rule=rule, txid=txid) if bad_rows else []
    more, shown = len(shown) > limit, shown[:limit]
    if as_json:
        print_json({"topology": topology, "table": bad_rows and bad_rows.table, "rows": shown})
    elif shown:
        console().print(bad_rows_table(shown), highlight=False)
        if more:
            click.echo(f"There are more than these {limit}: `txn rows list` counts, --limit shows.")
    else:
        click.echo(_nothing(topology, bad_rows))


_target = click.argument("target", metavar="FILE.py:TOPOLOGY", shell_complete=topologies)
_stream = click.option("--stream", required=True, help="The stream that the rows came from.")
_rule = click.option("--rule", help="Only rows that broke this rule.")
_file = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))


@rows.command("export")
@_target
@_file
@_stream
@_rule
@click.option("--up-to", type=click.IntRange(min=1), help="Only rows of txids up to this one.")
@zookeeper_option
@output_options
def export_command(
    target: str,
    file: Path,
    stream: str,
    rule: str | None,
    up_to: int | None,
    zookeeper: str,
    as_json: bool,
) -> None:
    """Write the rows that are set aside and not yet replayed into a new file, to be corrected.

    The file has the format that the stream's spout reads: records that do not parse as they stood,
    and rows that broke a rule.
    """
    from txn.backends import open_backend
    from txn.operations.rows.row_replays import export_rows

    topology = load_topology(target)
    with open_backend(zookeeper_of(zookeeper, topology), topology.settings) as backend:
        done = export_rows(topology, backend, stream, file, rule=rule, up_to=up_to)
    if as_json:
        print_json(done)
        return
    counted = ", ".join(f"{count:,} of rule '{name}'" for name, count in done.rules.items())
    click.echo(
        f"'{file}' has the open rows of stream '{stream}' up to txid {done.up_to}: {counted}."
    )
    if done.foreign:
        click.echo(
            "Their columns are not those of the source: they are as they stood at the rule, as "
            "JSON. The file to replay must have the source's columns, in the format of its spout."
        )
    if done.unread:
        click.echo(
            f"Not in it are the records of files that cannot be read: {', '.join(done.unread)}. "
            "Put a whole file in the place of each, under a new name; the spout reads it."
        )
    words = ["txn", "rows", "replay", target, "--stream", stream]
    words += ["--rule", rule] if rule else []
    words += ["--number", str(done.number), "--up-to", str(done.up_to)]
    words += ["--zookeeper", zookeeper] if zookeeper != "embedded" else []
    click.echo(f"Correct the file, then run:\n  {shlex.join([*words, str(file)])}")


@rows.command("replay")
@_target
@_file
@_stream
@_rule
@click.option(
    "--number", type=click.IntRange(min=1), required=True, help="As `txn rows export` printed it."
)
@click.option(
    "--up-to",
    type=click.IntRange(min=1),
    required=True,
    help="The file stands for the rows of txids up to this one, as `txn rows export` printed it.",
)
@zookeeper_option
@output_options
def replay_command(
    target: str,
    file: Path,
    stream: str,
    rule: str | None,
    number: int,
    up_to: int,
    zookeeper: str,
    as_json: bool,
) -> None:
    """Put a corrected file where its stream's spout reads it, exactly once.

    Works whether or not the topology runs. Running it twice is running it once.
    """
    from txn.backends import open_backend
    from txn.operations.rows.row_replays import replay_rows

    topology = load_topology(target)
    with open_backend(zookeeper_of(zookeeper, topology), topology.settings) as backend:
        done = replay_rows(topology, backend, stream, file, number=number, up_to=up_to, rule=rule)
    if as_json:
        print_json(done)
        return
    rules = ", ".join(f"rule '{name}' up to txid {txid}" for name, txid in done.rules.items())
    rows_ = "the row that was" if done.rows == 1 else f"{done.rows:,} rows that were"
    click.echo(f"Replay {number} of stream '{stream}' stands for {rows_} set aside: {rules}.")
    if done.again:
        click.echo(f"It was made before, as '{done.file}'. Nothing was changed.")
    else:
        click.echo(
            f"The corrected file is '{done.file}'. A running topology reads it with one of its "
            "next batches, a stopped one when it runs again."
        )


def _bad_rows(tables: TopologyTables) -> BadRows | None:
    from txn.operations.rows.bad_rows import bad_rows_among

    return bad_rows_among(tables.delta_tables, tables.storage_options, tables.committed)


def _nothing(topology: str, bad_rows: BadRows | None) -> str:
    if bad_rows is None:
        return (
            f"Topology '{topology}' has published to no table of bad rows. It needs one to set "
            f"rows aside: Topology('{topology}', bad_rows=AppendTable(PATH))."
        )
    return f"Topology '{topology}' has no such rows in table '{bad_rows.table}'."
