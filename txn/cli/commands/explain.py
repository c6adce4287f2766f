"""`txn explain`: print cause and remedy of an error, by its number."""

from __future__ import annotations

import click

from txn.cli.options import console, output_options, print_json

__all__ = ["explain"]


@click.command()
@click.argument("number", required=False)
@output_options
def explain(number: str | None, as_json: bool) -> None:
    """Print cause and remedy of the error NUMBER, such as TXN-101; without one, list them all."""
    from txn.operations.explain import explanation, explanations

    entries = [explanation(number)] if number else list(explanations().values())
    if as_json:
        print_json([entry._asdict() for entry in entries])
    elif number is None:
        click.echo("\n".join(f"{entry.number}  {entry.title}" for entry in entries))
    else:
        (entry,) = entries
        text = f"{entry.number}: {entry.title}\n\n{entry.cause}\n\nRemedy: {entry.remedy}"
        console().print(text, highlight=False)
