"""`txn export` and `txn import`: a topology's progress as a file, for backups and moves."""

from __future__ import annotations

from pathlib import Path

import click

from txn.cli.completion import names
from txn.cli.options import output_options, print_json, zookeeper_of, zookeeper_option
from txn.operations.loading import TargetError, named_topology

__all__ = ["export_command", "import_command"]


@click.command("export")
@click.argument("name", metavar="NAME", shell_complete=names)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file, whole or not at all; without it, to stdout.",
)
@zookeeper_option
@output_options
def export_command(name: str, output: Path | None, zookeeper: str, as_json: bool) -> None:
    """Write a topology's progress, as ZooKeeper has it, to a file. Changes nothing.

    Works whether or not the topology runs.

    NAME is the topology's name, or FILE.py:TOPOLOGY, whose ZooKeeper credentials are then used.
    """
    from txn.backends import open_backend
    from txn.operations.progress_file import dump, write_file
    from txn.operations.transfer import export_progress

    name, config, topology = named_topology(name)
    zookeeper = zookeeper_of(zookeeper, topology)
    with open_backend(zookeeper, config) as backend:
        progress = export_progress(backend, name)
    if output is None:
        click.echo(dump(progress), nl=False)
        return
    write_file(progress, output)
    txid, epoch = progress.committed.txid, progress.epoch
    if as_json:
        print_json({"topology": name, "file": str(output), "committed_txid": txid, "epoch": epoch})
    else:
        click.echo(f"Topology '{name}' at txid {txid}, epoch {epoch}: written to {output}.")


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("name", required=False)
@click.option(
    "--replace", is_flag=True, help="Replace the topology's state if ZooKeeper has it already."
)
@zookeeper_option
@output_options
def import_command(
    file: Path, name: str | None, replace: bool, zookeeper: str, as_json: bool
) -> None:
    """Put the progress of a file that `txn export` wrote into ZooKeeper, under a new epoch.

    Refuses a damaged file, one of a newer release, and a topology that runs or is there already.

    NAME may be FILE.py:TOPOLOGY, whose ZooKeeper credentials are then used.
    """
    from txn.backends import open_backend
    from txn.operations.progress_file import read_file
    from txn.operations.transfer import import_progress

    progress = read_file(file)
    name, config, topology = named_topology(name or progress.topology)
    zookeeper = zookeeper_of(zookeeper, topology)
    if name != progress.topology:
        raise TargetError(
            f"File '{file}' holds the progress of topology '{progress.topology}', not of "
            f"'{name}'. A topology's tables know it by its name: nothing was written.",
            number="TXN-811",
        )
    with open_backend(zookeeper, config, must_exist=False) as backend:
        epoch = import_progress(backend, progress, replace=replace)
    txid = progress.committed.txid
    if as_json:
        print_json({"topology": progress.topology, "committed_txid": txid, "epoch": epoch})
    else:
        click.echo(
            f"Topology '{progress.topology}' is at txid {txid}, in epoch {epoch}. `txn run` goes "
            "on from there."
        )
