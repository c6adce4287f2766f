"""The command line: `run`, `status`, `history`; the others are in modules of their own.

Exit codes: 0 ended well, 1 an error, 2 a mistake on the command line, 3 fenced or another process
leads, 4 a thread hangs and was left behind, 130 interrupted before anything ran. An error is one
paragraph on stderr; `--traceback` shows where it came from. Spark, Java and ZooKeeper are loaded
only by the commands that need them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from txn import __version__
from txn.cli.doctor import doctor
from txn.cli.options import TRACEBACK, console, output_options, print_json, zookeeper_option
from txn.cli.plan import plan, plugins
from txn.cli.quarantine import quarantine
from txn.cli.recover import recover
from txn.cli.transfer import export_command, import_command
from txn.config import TopologyConfig
from txn.errors import (
    AbandonedError,
    FencedError,
    LeaderExistsError,
    SetupError,
    TopologyError,
    TxnError,
)
from txn.operations.loading import TargetError, load_topology, named_topology
from txn.text import printable

if TYPE_CHECKING:
    from txn.cli.live_view import Observer
    from txn.topology import Topology, Until
    from txn.zookeeper.status import TopologyStatus

__all__ = ["cli", "main"]

F = TypeVar("F", bound=Callable[..., Any])

ERROR, USAGE, FENCED, INTERRUPTED = 1, 2, 3, 130


class _Errors(click.Group):
    """Turns what a command raises into one paragraph and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
            raise
        except TxnError as error:
            message, code = str(error), _exit_code(error)
            cause: BaseException = error
        except KeyboardInterrupt as error:
            message, code, cause = "interrupted.", INTERRUPTED, error
        except Exception as error:  # noqa: BLE001 - the last line of defence of a program
            message = f"{type(error).__name__}: {error} (--traceback shows where)"
            code, cause = ERROR, error
        if ctx.meta.get(TRACEBACK):
            traceback.print_exception(cause)
        click.echo(_paragraph(message), err=True)
        if isinstance(cause, AbandonedError):
            _leave(code)
        return ctx.exit(code)


def _exit_code(error: TxnError) -> int:
    if isinstance(error, FencedError | LeaderExistsError):
        return FENCED
    if isinstance(error, AbandonedError):
        return error.exit_code
    return USAGE if isinstance(error, TargetError) else ERROR


def _leave(code: int) -> None:
    """End the process at once: threads that hang, whoever's they are, are not waited for."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _paragraph(message: str) -> str:
    """The message, wrapped to the terminal; what follows its first line (a log) is left alone."""
    first, newline, rest = printable(f"error: {message}").partition("\n")
    if sys.stderr.isatty():
        first = textwrap.fill(first, shutil.get_terminal_size().columns, break_on_hyphens=False)
    return first + newline + rest


def _common(command: F) -> F:
    """The options of the commands that deal with ZooKeeper."""
    return zookeeper_option(output_options(command))


@click.group(cls=_Errors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name="txn")
def cli() -> None:
    """Exactly-once micro-batch transactions on Spark, published to Delta tables."""


# --- run -------------------------------------------------------------------------------------


def _parse_until(_: click.Context, __: click.Parameter, value: str) -> Until:
    if value in ("forever", "caught_up"):
        return cast("Until", value)
    if value.isascii() and value.isdecimal() and int(value) >= 1:
        return int(value)
    raise click.BadParameter(f"{value!r} is neither forever, caught_up nor a txid from 1.")


def _parse_conf(_: click.Context, __: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    for value in values:
        if "=" not in value.strip("="):
            raise click.BadParameter(f"{value!r} is not KEY=VALUE.")
    return dict(value.split("=", 1) for value in values)


@cli.command()
@click.argument("target", metavar="FILE.py:TOPOLOGY")
@click.option(
    "--master",
    help="Spark's master. [default: what spark-submit or spark-defaults.conf says, else local[*]]",
)
@click.option(
    "--until",
    default="forever",
    show_default=True,
    metavar="forever|caught_up|TXID",
    callback=_parse_until,
    help="When to end.",
)
@click.option(
    "--conf", multiple=True, metavar="KEY=VALUE", callback=_parse_conf, help="A Spark setting."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
    help="Of the log in .txn/logs.",
)
@click.option(
    "--standby",
    is_flag=True,
    help="While another process leads, wait with all made ready, and take over when it ends.",
)
@_common
def run(
    target: str,
    master: str | None,
    until: Until,
    conf: dict[str, str],
    log_level: str,
    standby: bool,
    zookeeper: str,
    as_json: bool,
) -> None:
    """Run a topology. Ctrl-C or SIGTERM stops it cleanly."""
    from txn.cli.driver import drive, logging_to_file
    from txn.zookeeper.location import resolve, resolve_shared

    (resolve_shared if standby else resolve)(zookeeper)
    topology = load_topology(target)
    topology.check_complete(until)
    with logging_to_file(topology.name, log_level) as path:
        try:
            drive(
                topology,
                _observer(as_json),
                zookeeper=zookeeper,
                master=master,
                until=until,
                conf=conf,
                standby=standby,
            )
        except (FencedError, LeaderExistsError):
            raise
        except TxnError:
            if path is not None and path.stat().st_size and not as_json:
                click.echo(f"The log is in {path}.", err=True)
            raise


def _observer(as_json: bool) -> Observer:
    from txn.cli.live_view import JsonLines, LiveView, PlainLines

    if as_json:
        return JsonLines(sys.stdout)
    terminal = console()
    return LiveView(terminal) if terminal.is_terminal else PlainLines(sys.stdout)


# --- status ----------------------------------------------------------------------------------


@cli.command()
@click.argument("name")
@_common
def status(name: str, zookeeper: str, as_json: bool) -> None:
    """Show what ZooKeeper knows of a topology. Changes nothing.

    NAME is the topology's name, or FILE.py:TOPOLOGY, whose ZooKeeper credentials are then used.
    """
    from txn.cli.tables import status_json, status_table

    name, config, _ = named_topology(name)
    found = _read_status(name, config, zookeeper)
    if as_json:
        print_json(status_json(found))
    else:
        console().print(status_table(found, zookeeper), highlight=False)


def _read_status(name: str, config: TopologyConfig, zookeeper: str) -> TopologyStatus:
    from txn.embedded.service import zookeeper_service
    from txn.zookeeper.status import read_status

    with zookeeper_service(zookeeper, share=True, must_exist=True) as hosts:
        return read_status(hosts, name, config)


# --- history ---------------------------------------------------------------------------------


@cli.command()
@click.argument("name")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Newest txids to show.",
)
@_common
def history(name: str, limit: int, zookeeper: str, as_json: bool) -> None:
    """Show the newest txids, out of the tables' own logs. Changes nothing.

    NAME is the topology's name, or FILE.py:TOPOLOGY, which needs no ZooKeeper.
    """
    from txn.cli.tables import history_table
    from txn.operations.history import history as read_history

    name, config, topology = named_topology(name)
    if topology is not None:
        tables = [sink.name for sink in topology.sinks]
        options = {sink.name: sink.committer.storage_options for sink in topology.sinks}
        committed = _committed_or_none(topology, zookeeper)
    else:
        record = _read_status(name, config, zookeeper).progress.committed
        tables, committed, options = list(record.tables), record.txid, {}
    entries = read_history(name, tables, committed, limit, options)
    if as_json:
        print_json({"topology": name, "txids": [entry.to_json() for entry in entries]})
    elif entries:
        console().print(history_table(entries), highlight=False)
    else:
        click.echo(f"Topology '{name}' has committed nothing yet.")


def _committed_or_none(topology: Topology, zookeeper: str) -> int | None:
    try:
        return _read_status(topology.name, topology.config, zookeeper).progress.committed.txid
    except (SetupError, TopologyError):
        return None


# --- the others, in modules of their own -----------------------------------------------------

cli.add_command(doctor)
cli.add_command(plan)
cli.add_command(plugins)
cli.add_command(quarantine)
cli.add_command(recover)
cli.add_command(export_command)
cli.add_command(import_command)


def main() -> None:
    """Entry point of the console script."""
    cli(prog_name="txn")
