"""Common options and printing for the commands of `txn`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from txn.cli.signals import quiet_interrupts
from txn.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from txn.topology import Topology

__all__ = [
    "TRACEBACK",
    "announce",
    "confirm",
    "console",
    "output_options",
    "print_json",
    "session_for",
    "session_options",
    "settings_option",
    "zookeeper_of",
    "zookeeper_option",
]

F = TypeVar("F", bound=Callable[..., Any])

TRACEBACK = "txn.traceback"
"""Key in `click.Context.meta`: True if an error shows its traceback."""
_PIPE_WIDTH = 120


def announce(step: str) -> None:
    """Show on stderr what a command does next, before it takes long."""
    click.echo(step, err=True)


def zookeeper_option(command: F) -> F:
    """Add `--zookeeper`, as the argument `zookeeper`."""
    return click.option(
        "--zookeeper",
        default="embedded",
        show_default=True,
        metavar="SPEC",
        help='"embedded" (a server in .txn beside the program), "embedded:FOLDER", or '
        '"host:2181,host:2181/chroot".',
    )(command)


def zookeeper_of(zookeeper: str, topology: Topology | None) -> str:
    """Return `--zookeeper` with the folder that "embedded" alone means for a program."""
    from txn.config.location import at_home

    return at_home(zookeeper, topology)


def session_options(command: F) -> F:
    """Add `--master` and `--conf`, as the arguments `master` and `conf`."""
    master = click.option(
        "--master",
        help="Spark's master. [default: from spark-submit or spark-defaults.conf, else local[*]]",
    )
    conf = click.option(
        "--conf", multiple=True, metavar="KEY=VALUE", callback=_parse_conf, help="A Spark setting."
    )
    return master(conf(command))


@contextlib.contextmanager
def session_for(
    topology: Topology, master: str | None, conf: Mapping[str, str]
) -> Iterator[SparkSession]:
    """Start a Spark session with the packages that a topology needs; stops it in the end."""
    from txn.operations.packages import packages_of
    from txn.session import delta_session

    announce(f"{topology.name}: starting Spark (Java takes some seconds)")
    packages = packages_of(topology, conf)
    with quiet_interrupts():
        spark = delta_session(topology.name, master, conf, packages=packages)
        try:
            yield spark
        finally:
            spark.stop()


def _parse_conf(_: click.Context, __: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    for value in values:
        if "=" not in value.strip("="):
            raise click.BadParameter(f"{value!r} is not KEY=VALUE.")
    return dict(value.split("=", 1) for value in values)


def settings_option(command: F) -> F:
    """Add `--set`, as the argument `settings`."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting of the topology, whatever the program says (docs/configuration.md).",
    )(command)


def output_options(command: F) -> F:
    """Add `--json`, as the argument `as_json`, and `--traceback`."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
    traceback = click.option(
        "--traceback",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_set_traceback,
        help="Show where an error came from.",
    )
    return as_json(traceback(command))


def _set_traceback(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta[TRACEBACK] = value


def console() -> Console:
    """Return the console for tables; in a pipe it is wide enough for them."""
    from rich.console import Console

    # Output may contain other people's text: treat brackets as text, not as markup.
    result = Console(markup=False, emoji=False)
    if not result.is_terminal:
        result.width = max(result.width, _PIPE_WIDTH)
    return result


def confirm(question: str, refused: str, *, yes: bool, as_json: bool) -> None:
    """Ask before a change unless `yes`; ends the command with `refused` if nobody can answer."""
    if yes:
        return
    if as_json or not _can_ask():
        raise click.UsageError(refused)
    click.confirm(question, abort=True)


def _can_ask() -> bool:
    return sys.stdin.isatty()


def print_json(value: Any) -> None:
    """Print JSON on stdout; a dataclass as an object with all its fields.

    Raises:
        UserError: the value is nested too deeply.
    """
    try:
        text = json.dumps(value, indent=2, default=asdict)
    except RecursionError as error:
        raise UserError(
            "The result is nested too deeply to be printed: no spout of this project writes such "
            "metadata. Look at the node or the table's log by other means."
        ) from error
    click.echo(text)
