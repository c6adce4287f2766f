"""`txn quarantine list`, `replay` and `drop`: txids that were committed empty."""

from __future__ import annotations

from collections.abc import Sequence

import click

from txn.cli.completion import names
from txn.cli.options import console, output_options, print_json, zookeeper_of, zookeeper_option
from txn.operations.loading import named_topology

__all__ = ["quarantine"]


@click.group()
def quarantine() -> None:
    """Show, replay or give up the txids that were committed empty."""


@quarantine.command("list")
@click.argument("name", metavar="NAME", shell_complete=names)
@zookeeper_option
@output_options
def list_command(name: str, zookeeper: str, as_json: bool) -> None:
    """Show the quarantined txids: what they were to read, and why they failed. Changes nothing.

    NAME is the topology's name, or FILE.py:TOPOLOGY, whose ZooKeeper credentials are then used.
    """
    from txn.backends import open_backend
    from txn.cli.tables import quarantine_table
    from txn.operations.quarantine import quarantined_in

    name, config, topology = named_topology(name)
    zookeeper = zookeeper_of(zookeeper, topology)
    with open_backend(zookeeper, config) as backend:
        entries = quarantined_in(backend.status(name))
    if as_json:
        print_json({"topology": name, "quarantine": [entry.to_json() for entry in entries]})
    elif entries:
        console().print(quarantine_table(entries), highlight=False)
    else:
        click.echo(f"Topology '{name}' has no quarantined txids.")


@quarantine.command("replay")
@click.argument("name", metavar="NAME", shell_complete=names)
@click.argument("txids", metavar="[TXID]...", nargs=-1, type=click.IntRange(min=1))
@click.option("--all", "everything", is_flag=True, help="Every quarantined txid.")
@zookeeper_option
@output_options
def replay_command(
    name: str, txids: Sequence[int], everything: bool, zookeeper: str, as_json: bool
) -> None:
    """Read again what quarantined txids were to read, each in a new txid.

    Works whether or not the topology runs: its present or next leader takes it up before it reads
    anything new. Asking twice is asking once.

    NAME is the topology's name, or FILE.py:TOPOLOGY, whose ZooKeeper credentials are then used.
    """
    from txn.backends import open_backend

    if everything == bool(txids):
        raise click.UsageError("Give the txids to replay, or --all.")
    name, config, topology = named_topology(name)
    zookeeper = zookeeper_of(zookeeper, topology)
    with open_backend(zookeeper, config) as backend:
        asked = backend.request_replays(name, None if everything else txids)
    if as_json:
        print_json({"topology": name, "replay": asked})
    else:
        click.echo(_promise(name, asked, "replay"))


@quarantine.command("drop")
@click.argument("name", metavar="NAME", shell_complete=names)
@click.argument("txids", metavar="TXID...", nargs=-1, required=True, type=click.IntRange(min=1))
@zookeeper_option
@output_options
def drop_command(name: str, txids: Sequence[int], zookeeper: str, as_json: bool) -> None:
    """Give up for good what quarantined txids were to read. Nothing brings it back.

    Works whether or not the topology runs: its present or next leader drops each in a txid of its
    own that reads nothing. `txn history` says there what was given up. A replay that is at work
    goes on; if it fails, drop the txid under its new number.
    """
    from txn.backends import open_backend

    name, config, topology = named_topology(name)
    zookeeper = zookeeper_of(zookeeper, topology)
    with open_backend(zookeeper, config) as backend:
        asked = backend.request_drops(name, txids)
    if as_json:
        print_json({"topology": name, "drop": asked})
    else:
        click.echo(_promise(name, asked, "give up"))


def _promise(name: str, asked: Sequence[int], act: str) -> str:
    several = len(asked) > 1
    return (
        f"Topology '{name}' is going to {act} what txid{'s' * several} "
        f"{', '.join(map(str, asked))} {'were' if several else 'was'} to read."
    )
