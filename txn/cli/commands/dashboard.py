"""`txn dashboard`: serve the page until Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import click

from txn.cli.completion import names
from txn.cli.options import output_options, zookeeper_option
from txn.machine.listening import Address

__all__ = ["dashboard"]

_NICE = 5
"""Priority (nice) of the page's process, so that a run on the same processor goes first."""


@click.command()
@click.argument("topologies", metavar="[NAME]...", nargs=-1, shell_complete=names)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8321,
    show_default=True,
    help="Where to listen; 0: any port that is free.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen. Anything but loopback needs a token, which is made and printed.",
)
@click.option(
    "--allow-host",
    "allowed",
    multiple=True,
    metavar="NAME",
    help="A further name under which a proxy asks for the page.",
)
@click.option(
    "--of-run",
    is_flag=True,
    hidden=True,
    help="Started by txn run, whose topology is a line of stdin; ends with stdin.",
)
@zookeeper_option
@output_options
def dashboard(
    topologies: Sequence[str],
    port: int,
    host: str,
    allowed: Sequence[str],
    of_run: bool,
    zookeeper: str,
    as_json: bool,
) -> None:
    """Show topologies in a browser. Changes nothing; works while they run and when they do not.

    NAME is a topology's name, or FILE.py:TOPOLOGY, whose graph, credentials for ZooKeeper and for
    the storage of its tables are then used. Without NAME: all that ZooKeeper knows.
    """
    from txn.config.location import at_home, home_at
    from txn.dashboard.server import serve
    from txn.dashboard.watching.topologies import Watch
    from txn.dashboard.watching.topology_facts import TopologyFacts
    from txn.machine.heap import settled

    def show_address(url: str) -> None:
        if as_json:
            click.echo(json.dumps({"url": url, "topologies": list(topologies)}))
        else:
            click.echo(f"The page is at {url} (Ctrl-C ends it).")
        sys.stdout.flush()

    over = threading.Event()
    if of_run:
        targets = [TopologyFacts.of_line(sys.stdin.buffer.readline())]
        threading.Thread(target=_wait_for_end, args=(over,), daemon=True).start()
    else:
        targets = [TopologyFacts.named(target) for target in topologies]
    where = None if of_run else home_at(zookeeper)
    if targets and targets[0].program:
        zookeeper = at_home(zookeeper, targets[0])
    unseen = [] if of_run else [one.name for one in targets]
    with Watch(targets, zookeeper, where=where, starts_server=not of_run) as watch:

        def is_over() -> bool:
            answer = watch.look
            if unseen and (answer.error or {*unseen} <= {*answer.statuses, *answer.errors}):
                unseen.clear()
                for why in [answer.error] if answer.error else answer.errors.values():
                    click.echo(f"{why} The page goes on looking.", err=True)
            return over.is_set()

        _step_back()
        with settled():
            serve(
                watch, Address(host.strip("[]"), port), show_address, names=allowed, is_over=is_over
            )


def _step_back() -> None:
    """Lower the priority, so that a run on this machine goes first."""
    with contextlib.suppress(OSError, AttributeError):  # not on Windows
        priority = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, max(priority, _NICE))
        if os.getsid(0) == os.getpid():
            # Linux may share the processor between sessions first, then by priority within each.
            Path("/proc/self/autogroup").write_text(str(_NICE), encoding="ascii")


def _wait_for_end(over: threading.Event) -> None:
    """Wait until the run closes the pipe or dies, which closes it too."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    over.set()
