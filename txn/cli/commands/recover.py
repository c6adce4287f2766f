"""`txn recover`: rebuild a topology's state in ZooKeeper from its tables' logs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from txn.cli.completion import topologies
from txn.cli.options import (
    confirm,
    console,
    output_options,
    print_json,
    settings_option,
    zookeeper_of,
    zookeeper_option,
)
from txn.operations.loading import TargetError, load_topology

__all__ = ["recover"]


@click.command()
@click.argument("target", metavar="FILE.py:TOPOLOGY", shell_complete=topologies)
@click.option("--yes", is_flag=True, help="Write without asking.")
@click.option(
    "--new",
    multiple=True,
    metavar="TABLE",
    help="A table that holds nothing because it was never written to: the next run makes it, from "
    "the recovered txid on. Without this option, a table without any txid counts as lost.",
)
@zookeeper_option
@settings_option
@output_options
def recover(
    target: str,
    yes: bool,
    new: tuple[str, ...],
    zookeeper: str,
    settings: Sequence[str],
    as_json: bool,
) -> None:
    """Rebuild a topology's state in ZooKeeper out of its tables' logs.

    For a ZooKeeper that was wiped, replaced or damaged, and for one that is to take over from
    another: from the next run on, the tables follow this one. Refuses while the topology runs
    here, and when ZooKeeper and tables agree or ZooKeeper is ahead.
    """
    from txn.backends import open_backend
    from txn.cli.tables import progress_table
    from txn.operations.recover import is_needed, read_tables, write

    topology = load_topology(target, settings)
    zookeeper = zookeeper_of(zookeeper, topology)
    try:
        recovered = read_tables(topology, new)
    except TargetError as error:
        raise click.BadParameter(str(error)) from error
    progress, epoch = recovered.progress, recovered.epoch
    with open_backend(zookeeper, topology.settings, must_exist=False) as backend:
        needed = is_needed(backend, topology, recovered)
        if needed and not as_json:
            console().print(progress_table(topology.name, progress, zookeeper), highlight=False)
        if needed:
            refused = "Nothing was written: add --yes to write this into ZooKeeper."
            confirm("Write this into ZooKeeper?", refused, yes=yes, as_json=as_json)
            epoch = write(backend, topology, recovered)
    if as_json:
        print_json({"written": needed, "epoch": epoch, **recovered.to_json()})
    elif needed:
        click.echo(f"Written, in epoch {epoch}. `txn run {target}` goes on from there.")
    else:
        click.echo(
            f"ZooKeeper and the tables agree: txid {progress.committed.txid} is committed. "
            "Nothing was changed."
        )
