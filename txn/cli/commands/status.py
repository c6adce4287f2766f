"""`txn status`: show the state of a topology in ZooKeeper and its tables."""

from __future__ import annotations

import click

from txn.cli.completion import names
from txn.cli.options import console, output_options, print_json, zookeeper_of, zookeeper_option
from txn.operations.loading import named_topology

__all__ = ["status"]


@click.command()
@click.argument("name", metavar="NAME", shell_complete=names)
@zookeeper_option
@output_options
def status(name: str, zookeeper: str, as_json: bool) -> None:
    """Show what ZooKeeper and the tables know of a topology. Changes nothing.

    NAME is the topology's name, or FILE.py:TOPOLOGY, whose credentials for ZooKeeper and for the
    storage of its tables are then used.
    """
    from txn.backends import open_backend
    from txn.cli.tables import status_table
    from txn.embedded.service import is_served
    from txn.operations.status import status_of
    from txn.operations.tables.table_status import read_tables
    from txn.operations.tables.topology_tables import TopologyTables
    from txn.protocol.stream_names import rename_in_status

    name, config, topology = named_topology(name)
    zookeeper = zookeeper_of(zookeeper, topology)
    known = TopologyTables.of_program(topology) if topology else TopologyTables(name, (), None)
    served = is_served(zookeeper)
    with open_backend(zookeeper, config) as backend:
        stored = rename_in_status(known.renamed, backend.status(name))
    status = status_of(stored, served=served)
    committed = status.found.progress.committed
    tables = read_tables(name, committed.tables, committed.txid, known.committers, known.published)
    if as_json:
        print_json({**status.to_json(), **tables.to_json()})
    else:
        console().print(status_table(status, tables, zookeeper), highlight=False)
