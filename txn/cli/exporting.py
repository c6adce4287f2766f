"""Which exporters `txn run` has: those that its options or the environment ask for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from txn.errors import SetupError

if TYPE_CHECKING:
    from txn.observers import Observer

__all__ = ["following", "tracing"]


def tracing(wanted: bool | None) -> list[Observer]:
    """Traces, if they are wanted; None: if the environment asks for them.

    An environment may be that of a whole cluster: then a missing package is told, and no error.
    """
    from txn.tracing import Traces, traces_wanted

    if wanted is False or (wanted is None and not traces_wanted(os.environ)):
        return []
    try:
        return [Traces()]
    except SetupError as error:
        _tell(error, asked=wanted is True)
        return []


def following(wanted: bool | None) -> list[Observer]:
    """Lineage, as `tracing`."""
    from txn.lineage import Lineage, lineage_wanted

    if wanted is False or (wanted is None and not lineage_wanted(os.environ)):
        return []
    try:
        return [Lineage()]
    except SetupError as error:
        _tell(error, asked=wanted is True)
        return []


def _tell(error: SetupError, *, asked: bool) -> None:
    """Raise it if the command line asked; else, if a package is missing, only say so."""
    if asked or error.number != "TXN-211":
        raise error
    click.echo(f"{error} The run goes on without.", err=True)
