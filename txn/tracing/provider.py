"""The default provider of a run, which the variables `OTEL_*` configure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from txn.config.otlp import configured, exporters, protocol, sender
from txn.errors import SetupError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["missing", "of_program", "own_provider", "processors"]


def of_program() -> TracerProvider | None:
    """Return the provider that the program has set, if it can export."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import get_tracer_provider

    provider = get_tracer_provider()
    return provider if isinstance(provider, TracerProvider) else None


def own_provider(topology: str, makers: Sequence[Callable[[], SpanProcessor]]) -> TracerProvider:
    """Create a provider whose resource is `sender`."""
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider(resource=sender(topology), shutdown_on_exit=False)
    for make in makers:
        provider.add_span_processor(make())
    return provider


def processors(environment: Mapping[str, str]) -> list[Callable[[], SpanProcessor]]:
    """Return the makers of the processors that `OTEL_*` configure."""
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

    made: list[Callable[[], SpanProcessor]] = []
    for kind in exporters("TRACES", environment) or ["otlp"]:
        match kind:
            case "otlp":
                batched = partial(_batched, _otlp(environment))
                # Tried here: once the run has begun, it is too late to raise.
                configured(batched).shutdown()
                made.append(batched)
            case "console":
                made.append(lambda: SimpleSpanProcessor(ConsoleSpanExporter()))
            case "none":
                pass
            case unknown:
                raise SetupError(
                    f"OTEL_TRACES_EXPORTER is {unknown!r}, which Traces does not have. Use otlp, "
                    "console or none; for another exporter, give Traces(provider) a TracerProvider "
                    "with it.",
                    number="TXN-214",
                )
    return made


def _batched(exporter: Callable[[], SpanExporter]) -> SpanProcessor:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return BatchSpanProcessor(exporter())


def _otlp(environment: Mapping[str, str]) -> Callable[[], SpanExporter]:
    """Return the exporter by OTLP over the protocol that `OTEL_*` name."""
    try:
        if protocol("TRACES", environment) == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

            return OTLPSpanExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter as OverHttp,
        )
    except ImportError as error:
        raise missing(error) from error
    return OverHttp


def missing(error: ImportError) -> SetupError:
    """Return the error that names the package to install."""
    return SetupError(
        f"Traces need OpenTelemetry, and a part of it is missing ({error}). Install it: pip "
        "install 'txn-spark[otel]'.",
        number="TXN-211",
    )
