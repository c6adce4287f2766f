"""`txn history`: the newest txids, out of the tables' own logs."""

from __future__ import annotations

from collections.abc import Mapping

import click

from txn.cli.options import console, output_options, print_json, zookeeper_option
from txn.config import TopologyConfig
from txn.errors import SetupError, TopologyError
from txn.operations.loading import named_topology
from txn.protocol.records import CommittedRecord

__all__ = ["history", "tables_of"]


@click.command()
@click.argument("name")
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
    from txn.operations.history import history as read_history

    name, tables, committed, options = tables_of(name, zookeeper)
    entries = read_history(name, tables, committed, limit, options)
    if as_json:
        print_json({"topology": name, "txids": [entry.to_json() for entry in entries]})
    elif entries:
        console().print(history_table(entries), highlight=False)
    else:
        click.echo(f"Topology '{name}' has committed nothing yet.")


def tables_of(
    name: str, zookeeper: str
) -> tuple[str, list[str], int | None, dict[str, Mapping[str, str]]]:
    """A topology's name, its tables, its committed txid, and the tables' `storage_options`.

    Args:
        name: as on the command line; of FILE.py:TOPOLOGY the txid may be unknown (None).
    """
    name, config, topology = named_topology(name)
    if topology is None:
        record = _committed(name, config, zookeeper)
        return name, list(record.tables), record.txid, {}
    options = {sink.name: sink.committer.storage_options for sink in topology.sinks}
    return name, list(options), _txid_or_none(name, config, zookeeper), options


def _txid_or_none(name: str, config: TopologyConfig, zookeeper: str) -> int | None:
    try:
        return _committed(name, config, zookeeper).txid
    except (SetupError, TopologyError):
        return None


def _committed(name: str, config: TopologyConfig, zookeeper: str) -> CommittedRecord:
    from txn.embedded.service import zookeeper_service
    from txn.operations.status import gather

    with zookeeper_service(zookeeper, share=True, must_exist=True) as hosts:
        return gather(hosts, name, config).progress.committed
