"""`txn run`: run a topology until it ends or is stopped."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import click

from txn.cli.completion import topologies
from txn.cli.options import (
    console,
    output_options,
    session_options,
    settings_option,
    zookeeper_of,
    zookeeper_option,
)
from txn.cli.signals import terminable
from txn.errors import FencedError, LeaderExistsError, TxnError
from txn.machine.listening import parse_address

if TYPE_CHECKING:
    from txn.cli.running.observers import CliObserver
    from txn.topology import Topology, Until

__all__ = ["run"]


def _parse_until(_: click.Context, __: click.Parameter, value: str) -> Until:
    if value in ("forever", "caught_up"):
        return cast("Until", value)
    if value.isascii() and value.isdecimal() and int(value) >= 1:
        return int(value)
    raise click.BadParameter(f"{value!r} is neither forever, caught_up nor a txid from 1.")


@click.command()
@click.argument("target", metavar="FILE.py:TOPOLOGY", shell_complete=topologies)
@click.option(
    "--until",
    default="forever",
    show_default=True,
    metavar="forever|caught_up|TXID",
    callback=_parse_until,
    help="When to end.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
    help="Level of the log in .txn/logs.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of each line of that log; json: an object with the ids of its batch.",
)
@click.option(
    "--standby",
    is_flag=True,
    help="While another process leads, start everything, wait, and take over when it ends.",
)
@click.option(
    "--dashboard",
    metavar="HOST:PORT",
    help="Show the run in a browser, for as long as it goes on (docs/dashboard.md).",
)
@click.option(
    "--traces/--no-traces",
    default=None,
    help="Send OpenTelemetry traces. Default: if OTEL_* name an exporter or an endpoint.",
)
@click.option(
    "--detailed-traces",
    metavar="N",
    type=float,
    help="Successful attempts a second whose trace has a span for each station; the others have "
    "one span in all. inf: all. Default: 2.",
)
@click.option(
    "--lineage/--no-lineage",
    default=None,
    help="Send OpenLineage events. Default: if OPENLINEAGE_* say where to.",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Serve metrics to Prometheus there, on loopback without HOST, as long as this runs.",
)
@session_options
@settings_option
@zookeeper_option
@output_options
def run(
    target: str,
    master: str | None,
    until: Until,
    conf: dict[str, str],
    log_level: str,
    log_format: str,
    standby: bool,
    dashboard: str | None,
    traces: bool | None,
    detailed_traces: float | None,
    lineage: bool | None,
    metrics: str | None,
    settings: Sequence[str],
    zookeeper: str,
    as_json: bool,
) -> None:
    """Run a topology. Ctrl-C or SIGTERM stops it cleanly."""
    with contextlib.ExitStack() as resources:
        resources.enter_context(terminable())
        display = _make_display(target, as_json=as_json)
        try:
            topology = _checked(target, settings, zookeeper, until, standby=standby)
            zookeeper = zookeeper_of(zookeeper, topology)
            # Loaded only for a program that was not refused.
            from txn.cli.exporting import make_lineage, make_metrics, make_traces
            from txn.cli.running.driver import drive
            from txn.cli.running.run_log import logging_to_file
            from txn.cli.running.run_notes import RunNotes, page_of_run
            from txn.dashboard.watching.run_files import RUNS_FOLDER
            from txn.dashboard.watching.topology_facts import TopologyFacts

            facts = TopologyFacts.of(topology, target)
            observers = [*make_metrics(metrics, resources), *make_traces(traces, detailed_traces)]
            observers += make_lineage(lineage)
            log_file = logging_to_file(topology.name, log_level, log_format, facts.home)
            log_path = resources.enter_context(log_file)
            if dashboard is not None:
                address = parse_address(dashboard)
                resources.enter_context(page_of_run(facts, zookeeper, address, display))
        except (TxnError, KeyboardInterrupt) as error:
            display.refused(target, error)
            raise
        try:
            drive(
                topology,
                display,
                RunNotes(facts.name, facts.plan, facts.home / RUNS_FOLDER, facts.program),
                zookeeper=zookeeper,
                master=master,
                until=until,
                conf=conf,
                standby=standby,
                observers=observers,
            )
        except (FencedError, LeaderExistsError):
            raise  # another process leads: the log adds nothing
        except TxnError:
            if log_path is not None and log_path.stat().st_size and not as_json:
                click.echo(f"The log is in {log_path}.", err=True)
            raise


def _checked(
    target: str, settings: Sequence[str], zookeeper: str, until: Until, *, standby: bool
) -> Topology:
    """Load the program; refuse what needs neither Spark nor ZooKeeper to be refused."""
    from txn.changes import Verdict
    from txn.config.location import resolve, resolve_shared
    from txn.operations.changes.progress import unknown_names
    from txn.operations.changes.tables import compare_tables, refuse_tables
    from txn.operations.homes import notes_on_homes
    from txn.operations.loading import load_topology

    # Refuse a wrong --zookeeper before the program is loaded.
    check_zookeeper = resolve_shared if standby else resolve
    check_zookeeper(zookeeper)
    topology = load_topology(target, settings)
    topology.check_complete(until)
    for change in unknown_names(topology.definition):
        click.echo(f"Note: {change.what}", err=True)
    for note in notes_on_homes(topology) if zookeeper == "embedded" else ():
        click.echo(f"Note: {note}", err=True)
    tables = compare_tables(topology.definition)
    refuse_tables(tables)
    for table in tables:
        for change in table.changes:
            if change.verdict is Verdict.CARRIES_ON:  # a next generation that waits
                click.echo(f"Table {table.name}: {change.what}.", err=True)
    return topology


def _make_display(target: str, *, as_json: bool) -> CliObserver:
    """Make the observer; the first word on the screen comes before what makes it."""
    step = "loading the program"
    if not as_json:
        click.echo(f"{target}: {step}")
    from txn.cli.running.live_view import LiveView
    from txn.cli.running.observers import JsonLines, PlainLines

    if as_json:
        lines = JsonLines(sys.stdout)
        lines.starting(target, step)
        return lines
    terminal = console()
    return LiveView(terminal) if terminal.is_terminal else PlainLines(sys.stdout)
