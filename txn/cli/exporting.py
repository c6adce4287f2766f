"""Which exporters `txn run` has: those that its options or the environment ask for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from txn.errors import SetupError
from txn.otlp import is_asked_for

if TYPE_CHECKING:
    from txn.observers import Observer

__all__ = ["following", "metering", "tracing"]

T = TypeVar("T")


def metering(address: str | None, resources: ExitStack) -> list[Observer]:
    """Metrics: served at the address, if there is one, and sent if the environment asks for it.

    Made before anything starts, and closed whatever happens. A package that is missing for what
    only the environment asks is told, and no error.

    Raises:
        SetupError: the address is in use, or a package or a setting is not right.
    """
    from txn.metrics.opentelemetry import OpenTelemetryMetrics
    from txn.metrics.prometheus import PrometheusMetrics

    observers: list[Observer] = []
    if address is not None:
        served = PrometheusMetrics(address)
        resources.callback(served.close)
        observers.append(served)
    for sent in _made(OpenTelemetryMetrics, None, partial(is_asked_for, "METRICS")):
        resources.callback(sent.close)
        observers.append(sent)
    return observers


def tracing(wanted: bool | None, detailed_per_sec: float | None = None) -> list[Observer]:
    """Traces, if they are wanted; None: if the environment asks for them.

    An environment may be that of a whole cluster: then a missing package is told, and no error.

    Args:
        detailed_per_sec: as for `Traces`; None: its default.

    Raises:
        SetupError: `detailed_per_sec` without traces; or as `Traces`.
    """
    from txn.tracing import Traces

    more: dict[str, Any] = (
        {} if detailed_per_sec is None else {"detailed_per_sec": detailed_per_sec}
    )
    made: list[Observer] = _made(partial(Traces, **more), wanted, partial(is_asked_for, "TRACES"))
    if more and not made:
        raise SetupError(
            "--detailed-traces says how many traces are detailed, but none are sent. Add --traces, "
            "or set OTEL_EXPORTER_OTLP_ENDPOINT.",
            number="TXN-119",
        )
    return made


def following(wanted: bool | None) -> list[Observer]:
    """Lineage, as `tracing`."""
    from txn import lineage

    return _made(lineage.Lineage, wanted, lineage.is_asked_for)


def _made(
    make: Callable[[], T], wanted: bool | None, asks: Callable[[Mapping[str, str]], bool]
) -> list[T]:
    if wanted is False or (wanted is None and not asks(os.environ)):
        return []
    try:
        return [make()]
    except SetupError as error:
        _tell(error, asked=wanted is True)
        return []


def _tell(error: SetupError, *, asked: bool) -> None:
    """Raise it if the command line asked; else, if a package is missing, only say so."""
    if asked or error.number != "TXN-211":
        raise error
    click.echo(f"{error} The run goes on without.", err=True)
