"""Make the exporters of `txn run` that its options or the environment ask for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from txn.config.otlp import is_asked_for
from txn.errors import SetupError

if TYPE_CHECKING:
    from txn.observers import Observer

__all__ = ["make_lineage", "make_metrics", "make_traces"]

T = TypeVar("T")


def make_metrics(address: str | None, resources: ExitStack) -> list[Observer]:
    """Make an observer that serves metrics at `address`, and one that sends them if asked for.

    `resources` closes them, also if the run never begins. Only the environment can ask for sending:
    a missing package is reported and is not an error.

    Raises:
        SetupError: the address is in use, or a package or a setting is wrong.
    """
    from txn.metrics.opentelemetry import OpenTelemetryMetrics
    from txn.metrics.prometheus import PrometheusMetrics

    observers: list[Observer] = []
    if address is not None:
        server = PrometheusMetrics(address)
        resources.callback(server.close)
        observers.append(server)
    for sender in _make_if_asked(OpenTelemetryMetrics, None, partial(is_asked_for, "METRICS")):
        resources.callback(sender.close)
        observers.append(sender)
    return observers


def make_traces(asked: bool | None, detailed_per_sec: float | None = None) -> list[Observer]:
    """Make traces if asked for.

    The environment may be that of a whole cluster: if only it asks, a missing package is reported
    and is not an error.

    Args:
        asked: the command line's choice; None: the environment decides.
        detailed_per_sec: as for `Traces`; None: its default.

    Raises:
        SetupError: `detailed_per_sec` without traces; or as `Traces`.
    """
    from txn.tracing import Traces

    options: dict[str, Any] = {}
    if detailed_per_sec is not None:
        options["detailed_per_sec"] = detailed_per_sec
    make = partial(Traces, **options)
    traces: list[Observer] = _make_if_asked(make, asked, partial(is_asked_for, "TRACES"))
    if options and not traces:
        raise SetupError(
            "--detailed-traces says how many traces are detailed, but none are sent. Add --traces, "
            "or set OTEL_EXPORTER_OTLP_ENDPOINT.",
            number="TXN-119",
        )
    return traces


def make_lineage(asked: bool | None) -> list[Observer]:
    """Make the observer for lineage if asked for; `asked` as for `make_traces`."""
    from txn import lineage

    return _make_if_asked(lineage.Lineage, asked, lineage.is_asked_for)


def _make_if_asked(
    make: Callable[[], T], asked: bool | None, asks: Callable[[Mapping[str, str]], bool]
) -> list[T]:
    """Return [make()] if `asked`, or if that is None and the environment `asks`; else []."""
    if asked is False or (asked is None and not asks(os.environ)):
        return []
    try:
        return [make()]
    except SetupError as error:
        if asked or error.number != "TXN-211":  # TXN-211: a package is missing
            raise
        click.echo(f"{error} The run goes on without it.", err=True)
        return []
