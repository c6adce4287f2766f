"""`txn trial`: servers on this machine, to try things with, until Ctrl-C."""

from __future__ import annotations

import contextlib
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from txn.cli.options import announce
from txn.cli.signals import terminable

if TYPE_CHECKING:
    from txn.embedded.trial import Trial, TrialServer

__all__ = ["trial"]

F = TypeVar("F", bound=Callable[..., Any])

_POLL_SECS = 0.5
_FOLDER = Path(".txn-trial")


def _folder_option(name: str) -> Callable[[F], F]:
    """Return the option `--folder`, by default one of this name below `.txn-trial`."""
    return click.option(
        "--folder",
        type=click.Path(file_okay=False, path_type=Path),
        default=_FOLDER / name,
        show_default=True,
        help="Where the data is kept.",
    )


@click.group()
def trial() -> None:
    """Start ZooKeeper or Kafka on this machine, to try things with. Ctrl-C ends it.

    They listen on loopback only, and what they keep stays for the next time. For anything that must
    survive this machine, use servers of your own.
    """


@trial.command()
@click.option("--servers", type=click.Choice(["1", "3", "5"]), default="3", show_default=True)
@click.option(
    "--port",
    type=click.IntRange(1024, 63000),
    default=2181,
    show_default=True,
    help="Of the first server; the others have the next ones.",
)
@_folder_option("zookeeper")
def zookeeper(servers: str, port: int, folder: Path) -> None:
    """Start an ensemble of ZooKeeper servers, from the jars of pyspark.

    Several programs can use it at once, standbys too, and it goes on while one of three servers
    is killed.
    """
    from txn.embedded.ensemble import TrialEnsemble

    ensemble = TrialEnsemble(folder, port, int(servers))
    _serve(
        ensemble,
        f"export TXN_ZOOKEEPER_AUTH_FILE={shlex.quote(str(ensemble.credential_file))}",
        f"txn run FILE.py:TOPOLOGY --zookeeper {ensemble.hosts}",
    )


@trial.command()
@click.option(
    "--port",
    type=click.IntRange(1024, 65534),
    default=9092,
    show_default=True,
    help="For clients; the next one is its controller's.",
)
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Of a topic, which is made when somebody first asks for it.",
)
@_folder_option("kafka")
def kafka(port: int, partitions: int, folder: Path) -> None:
    """Start a Kafka broker; its jars are fetched once from Maven Central."""
    from txn.embedded.broker import TrialBroker

    broker = TrialBroker(folder, port, partitions)
    _serve(
        broker,
        f'KafkaSpout("{broker.hosts}", topics=["TOPIC"])',
        f"bootstrap.servers={broker.hosts}",
    )


def _serve(trial: Trial, *usage_lines: str) -> None:
    """Run servers until Ctrl-C or SIGTERM, or until none of them is left."""
    announce(f"Starting {trial.purpose} in {trial.folder} ...")
    with contextlib.suppress(KeyboardInterrupt), terminable(), contextlib.ExitStack() as ending:
        ending.callback(_stop, trial)
        trial.start()
        for server in trial.servers:
            click.echo(f"{server.name}, process {server.pid}")
        click.echo("\n".join(("Use it:", *(f"  {line}" for line in usage_lines))))
        announce("Press Ctrl-C to stop. The data is kept.")
        _watch(trial.servers)


def _stop(trial: Trial) -> None:
    """Stop all servers; a wrapper may send a second Ctrl-C meanwhile."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        trial.stop()
    finally:
        signal.signal(signal.SIGINT, before)


def _watch(servers: Sequence[TrialServer]) -> None:
    """Report each server that ends.

    Raises:
        ClickException: none is left.
    """
    running = list(servers)
    while running:
        time.sleep(_POLL_SECS)
        for server in [one for one in running if not one.is_alive]:
            running.remove(server)
            click.echo(f"The {server.name} has ended: {server.folder / 'server.log'}", err=True)
    raise click.ClickException("No server is left. Start it again: the data is still there.")
