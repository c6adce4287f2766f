"""`txn new`: make a first project."""

from __future__ import annotations

from pathlib import Path

import click

from txn.cli.options import output_options, print_json
from txn.operations.new_project import make_project

__all__ = ["new"]


@click.command()
@click.argument("name")
@output_options
def new(name: str, as_json: bool) -> None:
    """Make a project in a folder NAME: a topology, sample data and a test."""
    project = make_project(name, Path())
    steps = {
        f"cd {name}": "",
        f"txn preview {name}.py:topology": "what the first batch would write",
        f"python {name}.py": "run it, and show the totals",
        "pytest": "its test (pip install pytest)",
    }
    if as_json:
        print_json({"folder": str(project), "next": list(steps)})
        return
    click.echo(f"Made {project}: a topology, sample data and a test. Next:")
    width = max(map(len, steps))
    for command, what in steps.items():
        click.echo(f"  {command.ljust(width)}  {f'# {what}' if what else ''}".rstrip())
