"""`txn recover`: a topology's state in ZooKeeper, rebuilt out of its tables' logs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from txn.cli.options import console, output_options, print_json, zookeeper_option
from txn.delta.locations import identity
from txn.errors import (
    LeaderExistsError,
    NewerFormatError,
    ProgressUnreadableError,
    RecoveryRefusedError,
    UserError,
)
from txn.operations.loading import load_topology

if TYPE_CHECKING:
    from txn.dataflow.graph import Sink
    from txn.delta.log import TableLog
    from txn.interfaces import Publication
    from txn.protocol.records import Progress
    from txn.topology import Topology

__all__ = ["recover"]


@dataclass(frozen=True)
class _Told:
    """What the tables tell."""

    progress: Progress
    epoch: int
    """The newest that any of them knows."""
    incarnations: frozenset[int]
    """Those that lead any of them."""


@click.command()
@click.argument("target", metavar="FILE.py:TOPOLOGY")
@click.option("--yes", is_flag=True, help="Write without asking.")
@click.option(
    "--new",
    multiple=True,
    metavar="TABLE",
    help="A table that holds nothing because it was never written to: the next run makes it, from "
    "the recovered txid on. Without this, a table without any txid is taken for one that was lost.",
)
@zookeeper_option
@output_options
def recover(target: str, yes: bool, new: tuple[str, ...], zookeeper: str, as_json: bool) -> None:
    """Rebuild a topology's state in ZooKeeper out of its tables' logs.

    For a ZooKeeper that was wiped, replaced or damaged, and for one that is to take over from
    another: from the next run on, the tables follow this one. Refuses while the topology runs
    here, and when ZooKeeper and tables agree or ZooKeeper is ahead.
    """
    from txn.cli.tables import progress_json, progress_table
    from txn.embedded.server import zookeeper_service

    topology = load_topology(target)
    topology.check_complete("caught_up")
    told = _from_tables(topology, new)
    progress, epoch = told.progress, told.epoch
    with zookeeper_service(zookeeper, share=True) as hosts:
        needed = _is_needed(hosts, topology, told)
        if needed and not as_json:
            console().print(progress_table(topology.name, progress, zookeeper), highlight=False)
        if needed:
            _confirm(yes, as_json)
            epoch = _write(hosts, topology, told)
    if as_json:
        print_json({"written": needed, "epoch": epoch, **progress_json(progress)})
    elif needed:
        click.echo(f"Written, in epoch {epoch}. `txn run {target}` goes on from there.")
    else:
        click.echo(
            f"ZooKeeper and the tables agree: txid {progress.committed.txid} is committed. "
            "Nothing was changed."
        )


def _log(sink: Sink) -> TableLog:
    """The log of one table; raises UserError where there is none."""
    from txn.operations.history import table_log

    return table_log(sink.name, sink.committer.storage_options)


def _from_tables(topology: Topology, new: Collection[str]) -> _Told:
    """The state that the tables tell of.

    Args:
        new: tables that hold nothing, and have no say.
    """
    from txn.interfaces import Semantics, SpoutKind
    from txn.operations.history import recent_publications
    from txn.protocol.rebuild import rebuild

    left_out = {identity(table): table for table in new}
    found: dict[str, list[tuple[int, Publication]]] = {}
    epoch, missing, incarnations = 0, [], set()
    for sink in topology.sinks:
        entries: list[tuple[int, Publication]] = []
        try:
            log = _log(sink)
        except UserError as error:
            missing.append(error)
        else:
            entries = recent_publications(log, topology.name)
            incarnations.add(log.incarnation(topology.name))
            epoch = max(epoch, log.epoch(topology.name), *(p.epoch for _, p in entries))
        if left_out.pop(identity(sink.name), None) is None:
            found[sink.name] = entries
        elif entries:
            raise RecoveryRefusedError(
                f"Table '{sink.name}' holds txid {entries[0][1].last_txid}: it is not new. Nothing "
                "was changed. Leave --new out for it."
            )
    for table in left_out.values():
        names = ", ".join(f"'{sink.name}'" for sink in topology.sinks)
        raise click.BadParameter(f"topology '{topology.name}' has no table {table!r}, but {names}.")
    if len(missing) == len(topology.sinks):
        raise missing[0]
    opaque = {
        source.name
        for source in topology.sources
        if source.spout.kind is not SpoutKind.TRANSACTIONAL
    }
    skipping = {
        sink.name for sink in topology.sinks if sink.committer.semantics is Semantics.TRANSACTIONAL
    }
    progress = rebuild(topology.name, opaque, found, skipping=skipping)
    return _Told(progress, epoch, frozenset(incarnations - {0}))


def _is_needed(hosts: str, topology: Topology, told: _Told) -> bool:
    """Whether ZooKeeper is behind the tables, is not theirs, or cannot be read.

    Raises:
        LeaderExistsError: the topology runs.
        RecoveryRefusedError: ZooKeeper is ahead of the tables.
    """
    from txn.cli.tables import is_alive
    from txn.zookeeper.status import list_topologies, read_status

    if topology.name not in list_topologies(hosts, topology.config):
        return True
    try:
        status = read_status(hosts, topology.name, topology.config)
    except NewerFormatError:
        raise
    except ProgressUnreadableError:
        return True
    if status.leader is not None and is_alive(status.leader):
        raise LeaderExistsError(
            f"Topology '{topology.name}' is led by {status.leader}. Its state is not rebuilt under "
            "a running leader: stop that process first."
        )
    known, held = status.progress.committed.txid, told.progress.committed.txid
    if known > held:
        raise RecoveryRefusedError(
            f"ZooKeeper says that txid {known} of topology '{topology.name}' is committed, and the "
            f"tables only tell of {held}: tables were replaced or restored to older versions. "
            "Nothing was changed. Restore the tables, or give the topology a new name and new "
            "tables."
        )
    own = status.incarnation
    foreign = told.incarnations - ({own.id} if own else set())
    if foreign - set(own.takes_over if own else ()):
        return True
    # An epoch below the tables' would be fenced by them: its node was wiped or reset. One in which
    # another incarnation has led them fences nobody.
    return known < held or status.epoch < told.epoch + bool(foreign)


def _confirm(yes: bool, as_json: bool) -> None:
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise click.UsageError("Nothing was written: add --yes to write this into ZooKeeper.")
    click.confirm("Write this into ZooKeeper?", abort=True)


def _write(hosts: str, topology: Topology, told: _Told) -> int:
    from txn.protocol.rebuild import quarantined, replayed
    from txn.zookeeper.progress import ZooKeeperProgress
    from txn.zookeeper.status import read_status

    progress = told.progress
    store = ZooKeeperProgress(hosts, topology.name, topology.config)
    try:
        epoch = store.rebuild(
            progress.committed, at_least=told.epoch + 1, takes_over=told.incarnations
        )
        store.load()
        aside = read_status(hosts, topology.name, topology.config).quarantine
        committed = progress.committed.model_copy(update={"epoch": epoch})
        said = tuple(_publications(topology))
        done = replayed(aside, said, committed.txid)
        for txid in [txid for txid, by in done.items() if by <= committed.txid]:
            store.persist_committed(committed, replay_of=txid)
        known = {record.txid for record in aside}
        for record in quarantined(said, committed.txid):
            if record.txid not in known:
                store.persist_committed(committed, quarantine=record)
        for batch in progress.batches:
            of = next((txid for txid, by in done.items() if by == batch.txid), batch.replay_of)
            store.persist_start(batch.model_copy(update={"epoch": epoch, "replay_of": of}))
    finally:
        store.close()
    return epoch


def _publications(topology: Topology) -> Iterator[Publication]:
    """Every publication in the tables' logs, as far back as commit files are kept."""
    for sink in topology.sinks:
        with contextlib.suppress(UserError):  # a table that is not there yet
            for entry in _log(sink).publications():
                yield entry.publication
