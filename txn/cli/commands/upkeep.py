"""`txn optimize` and `txn vacuum`: merge and delete files, also while the topology runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from txn.cli.completion import names
from txn.cli.options import confirm, console, output_options, print_json, zookeeper_option

if TYPE_CHECKING:
    from txn.operations.tables.upkeep import Upkeep

__all__ = ["optimize", "vacuum"]

F = TypeVar("F", bound=Callable[..., Any])


def _common(command: F) -> F:
    argument = click.argument("name", metavar="NAME", shell_complete=names)
    table = click.option(
        "--table", "tables", multiple=True, metavar="TABLE", help="Only this table; repeatable."
    )
    yes = click.option("--yes", is_flag=True, help="Do it without asking.")
    dry = click.option("--dry-run", is_flag=True, help="Only show what would be done.")
    return argument(table(yes(dry(zookeeper_option(output_options(command))))))


@click.command()
@_common
def optimize(
    name: str, tables: tuple[str, ...], yes: bool, dry_run: bool, zookeeper: str, as_json: bool
) -> None:
    """Put the small files of append tables together, whether or not the topology runs.

    State tables are left alone: their layouts see to it themselves. The commit is conditional, so
    it can overwrite no version of the topology, also on S3.

    NAME is the topology's name, or FILE.py:TOPOLOGY, whose credentials for ZooKeeper and for the
    storage of its tables are then used.
    """
    from txn.operations.tables.upkeep import Upkeep

    _run(Upkeep("optimize", name, zookeeper, tables), yes, dry_run, as_json)


@click.command()
@_common
@click.option(
    "--retain-hours",
    type=click.IntRange(min=0),
    metavar="N",
    help="How long files are kept after they were replaced. "
    "[default: delta.deletedFileRetentionDuration of the table, or a week]",
)
def vacuum(
    name: str,
    tables: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    zookeeper: str,
    as_json: bool,
    retain_hours: int | None,
) -> None:
    """Delete files that no version has needed for a while, whether or not the topology runs.

    What a batch has staged and not committed yet is never deleted. Older versions of the tables
    can no longer be read afterwards.

    NAME is the topology's name, or FILE.py:TOPOLOGY, whose credentials for ZooKeeper and for the
    storage of its tables are then used.
    """
    from txn.operations.tables.upkeep import Upkeep

    _run(Upkeep("vacuum", name, zookeeper, tables, retain_hours), yes, dry_run, as_json)


def _run(upkeep: Upkeep, yes: bool, dry_run: bool, as_json: bool) -> None:
    from txn.cli.tables import upkeep_table

    plans = upkeep.plan()
    work = any(plan.chosen for plan in plans) and not dry_run
    if not as_json:
        console().print(upkeep_table(plans), highlight=False)
    if work:
        refused = "Nothing was changed: add --yes to do this, or --dry-run."
        confirm("Do this?", refused, yes=yes, as_json=as_json)
        plans = [*upkeep.carry_out(plans)]
        if not as_json:
            console().print(upkeep_table(plans, done=True), highlight=False)
    elif not (as_json or dry_run):
        click.echo("There is nothing to do.")
    if as_json:
        tables = [plan.to_json() for plan in plans]
        print_json({"topology": upkeep.topology, "done": work, "tables": tables})
    if any(plan.error for plan in plans):
        sys.exit(1)
