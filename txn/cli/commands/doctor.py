"""`txn doctor`: check what a topology depends on, and show what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import click

from txn.cli.completion import topologies
from txn.cli.options import console, output_options, print_json, zookeeper_of, zookeeper_option
from txn.operations.loading import load_topology

if TYPE_CHECKING:
    from rich.console import RenderableType

    from txn.doctor.findings import Finding

__all__ = ["doctor"]

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


@click.command()
@click.argument("target", metavar="[FILE.py:TOPOLOGY]", required=False, shell_complete=topologies)
@click.option(
    "--table", "tables", metavar="PATH", multiple=True, help="A further table to look at."
)
@zookeeper_option
@output_options
@click.pass_context
def doctor(
    ctx: click.Context,
    target: str | None,
    tables: Sequence[str],
    zookeeper: str,
    as_json: bool,
) -> None:
    """Check Java, versions, ZooKeeper, storage and tables; show what to do.

    Changes nothing that it does not clean up. Ends with 1 if anything is an error, else with 0.
    """
    from txn.doctor.checkup import diagnose

    topology = load_topology(target) if target is not None else None
    findings = list(diagnose(topology, zookeeper_of(zookeeper, topology), tables))
    errors = sum(finding.level == "error" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    if as_json:
        print_json({"errors": errors, "warnings": warnings, "findings": findings})
    else:
        for area, some in groupby(findings, key=lambda finding: finding.area):
            console().print(_area(area, list(some)), highlight=False)
        click.echo(_summary(errors, warnings))
    ctx.exit(1 if errors else 0)


def _area(area: str, findings: Sequence[Finding]) -> RenderableType:
    """Return a heading, and a line per finding with its meaning and the advice."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from txn.text import printable

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=9)
    grid.add_column(style="dim", no_wrap=True, min_width=15)
    grid.add_column(overflow="fold")
    for finding in findings:
        level = Text(f"  {finding.level}", style=_STYLES[finding.level])
        grid.add_row(level, printable(finding.check), printable(finding.found))
        if finding.means:
            grid.add_row("", "", Text(printable(finding.means), style="dim"))
        if finding.do:
            grid.add_row("", Text("what to do", style="dim"), printable(finding.do))
    return Group(Text(printable(area), style="bold"), grid, Text())


def _summary(errors: int, warnings: int) -> str:
    def count(number: int, what: str) -> str:
        return f"{number or 'no'} {what}{'' if number == 1 else 's'}"

    return f"{count(errors, 'error')}, {count(warnings, 'warning')}."
