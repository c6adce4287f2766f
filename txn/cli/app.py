"""The command `txn`, made of its commands: each is a module.

Only the commands that need Spark, Java or ZooKeeper load them.
"""

from __future__ import annotations

import click
from click.shell_completion import add_completion_class

from txn import __version__
from txn.cli.commands.backfill import backfill
from txn.cli.commands.dashboard import dashboard
from txn.cli.commands.doctor import doctor
from txn.cli.commands.explain import explain
from txn.cli.commands.history import history
from txn.cli.commands.new import new
from txn.cli.commands.plan import plan
from txn.cli.commands.plugins import plugins
from txn.cli.commands.preview import preview
from txn.cli.commands.quarantine import quarantine
from txn.cli.commands.reading import open_command, publish_command, sql_command
from txn.cli.commands.recover import recover
from txn.cli.commands.rows import rows
from txn.cli.commands.run import run
from txn.cli.commands.status import status
from txn.cli.commands.transfer import export_command, import_command
from txn.cli.commands.upkeep import optimize, vacuum
from txn.cli.completion import Bash
from txn.cli.errors import ErrorsAsParagraphs

__all__ = ["cli", "main"]


@click.group(cls=ErrorsAsParagraphs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name="txn")
def cli() -> None:
    """Exactly-once micro-batch transactions on Spark, published to Delta tables."""


for command in (
    backfill,
    dashboard,
    doctor,
    explain,
    export_command,
    history,
    import_command,
    new,
    open_command,
    optimize,
    plan,
    plugins,
    preview,
    quarantine,
    recover,
    rows,
    run,
    publish_command,
    sql_command,
    status,
    vacuum,
):
    cli.add_command(command)


def main() -> None:
    """Entry point of the console script."""
    add_completion_class(Bash)
    cli(prog_name="txn")
