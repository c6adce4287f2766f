"""The command `txn`, made of its commands: each is a module, loaded when it is called.

Only the commands that need Spark, Java or ZooKeeper load them.
"""

from __future__ import annotations

from importlib import import_module

import click
from click.shell_completion import add_completion_class

from txn import __version__
from txn.cli.completion import Bash
from txn.cli.errors import ErrorsAsParagraphs

__all__ = ["cli", "main"]

_COMMANDS = {
    "backfill": "backfill:backfill",
    "dashboard": "dashboard:dashboard",
    "dev": "dev:dev",
    "doctor": "doctor:doctor",
    "explain": "explain:explain",
    "export": "transfer:export_command",
    "history": "history:history",
    "import": "transfer:import_command",
    "new": "new:new",
    "open": "reading:open_command",
    "optimize": "upkeep:optimize",
    "plan": "plan:plan",
    "plugins": "plugins:plugins",
    "preview": "preview:preview",
    "publish": "reading:publish_command",
    "quarantine": "quarantine:quarantine",
    "recover": "recover:recover",
    "rows": "rows:rows",
    "run": "run:run",
    "sql": "reading:sql_command",
    "status": "status:status",
    "trial": "trial:trial",
    "vacuum": "upkeep:vacuum",
}
"""Command -> its module in `txn.cli.commands`, and the name there."""


class _Commands(ErrorsAsParagraphs):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(f"txn.cli.commands.{module}"), name)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name="txn")
def cli() -> None:
    """Exactly-once micro-batch transactions on Spark, published to Delta tables."""


def main() -> None:
    """Entry point of the console script."""
    add_completion_class(Bash)
    cli(prog_name="txn")
