"""`txn status`: what ZooKeeper knows of a topology."""

from __future__ import annotations

import click

from txn.cli.completion import names
from txn.cli.options import console, output_options, print_json, zookeeper_option
from txn.operations.loading import named_topology

__all__ = ["status"]


@click.command()
@click.argument("name", metavar="NAME", shell_complete=names)
@zookeeper_option
@output_options
def status(name: str, zookeeper: str, as_json: bool) -> None:
    """Show what ZooKeeper knows of a topology. Changes nothing.

    NAME is the topology's name, or FILE.py:TOPOLOGY, whose ZooKeeper credentials are then used.
    """
    from txn.cli.tables import status_table
    from txn.embedded.service import zookeeper_service
    from txn.operations.status import gather

    name, config, _ = named_topology(name)
    with zookeeper_service(zookeeper, share=True, must_exist=True) as hosts:
        found = gather(hosts, name, config)
    if as_json:
        print_json(found.to_json())
    else:
        console().print(status_table(found, zookeeper), highlight=False)
