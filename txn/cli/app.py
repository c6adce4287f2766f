"""The command `txn`, made of its commands: each is a module.

Only the commands that need Spark, Java or ZooKeeper load them.
"""

from __future__ import annotations

import click
from click.shell_completion import add_completion_class

from txn import __version__
from txn.cli.completion import Bash
from txn.cli.dashboard import dashboard
from txn.cli.doctor import doctor
from txn.cli.errors import ErrorsAsParagraphs
from txn.cli.explain import explain
from txn.cli.history import history
from txn.cli.new import new
from txn.cli.plan import plan
from txn.cli.plugins import plugins
from txn.cli.preview import preview
from txn.cli.quarantine import quarantine
from txn.cli.recover import recover
from txn.cli.rows import rows
from txn.cli.run import run
from txn.cli.status import status
from txn.cli.transfer import export_command, import_command
from txn.cli.upkeep import optimize, vacuum

__all__ = ["cli", "main"]


@click.group(cls=ErrorsAsParagraphs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name="txn")
def cli() -> None:
    """Exactly-once micro-batch transactions on Spark, published to Delta tables."""


for command in (
    dashboard,
    doctor,
    explain,
    export_command,
    history,
    import_command,
    new,
    optimize,
    plan,
    plugins,
    preview,
    quarantine,
    recover,
    rows,
    run,
    status,
    vacuum,
):
    cli.add_command(command)


def main() -> None:
    """Entry point of the console script."""
    add_completion_class(Bash)
    cli(prog_name="txn")
