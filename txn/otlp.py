"""What metrics and traces have in common when they are sent by OTLP: the variables `OTEL_*`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from txn.errors import SetupError
from txn.text import first_line

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

__all__ = ["configured", "exporters", "is_asked_for", "protocol", "sender"]

T = TypeVar("T")
Signal: TypeAlias = Literal["METRICS", "TRACES"]


def exporters(signal: Signal, environment: Mapping[str, str]) -> list[str]:
    """The exporters that the environment names, such as "otlp" or "none"; empty: it names none."""
    named = environment.get(f"OTEL_{signal}_EXPORTER", "").split(",")
    return [name.strip() for name in named if name.strip()]


def is_asked_for(signal: Signal, environment: Mapping[str, str]) -> bool:
    """Whether the environment asks for metrics or traces.

    It does by naming an exporter, or, if it names none, a place to send to. Metrics are sent by
    OTLP only. An exporter of traces that is not ours is refused when they are made.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if named := exporters(signal, environment):
        return "otlp" in named if signal == "METRICS" else any(name != "none" for name in named)
    places = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return any(environment.get(place) for place in places)


def protocol(signal: Signal, environment: Mapping[str, str]) -> Literal["grpc", "http/protobuf"]:
    """The protocol that the environment names.

    Raises:
        SetupError: it names another one.
    """
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        match environment.get(name):
            case None | "":
                continue
            case "grpc":
                return "grpc"
            case "http/protobuf":
                break
            case unknown:
                raise SetupError(
                    f"{name} is {unknown!r}, which is not supported. Use http/protobuf or grpc.",
                    number="TXN-214",
                )
    return "http/protobuf"


def configured(make: Callable[[], T]) -> T:
    """What `make` makes of OpenTelemetry, which reads its variables then.

    Raises:
        SetupError: a variable has a value that it cannot have.
        ImportError: a package is missing.
    """
    try:
        return make()
    except (ImportError, SetupError):
        raise
    except Exception as error:
        raise SetupError(
            f"OpenTelemetry cannot send with its settings: {first_line(error)}. Correct the "
            "variables OTEL_* (OTEL_EXPORTER_OTLP_..., OTEL_METRIC_EXPORT_INTERVAL, OTEL_BSP_...), "
            "or set OTEL_SDK_DISABLED=true.",
            number="TXN-214",
        ) from error


def sender(topology: str) -> Resource:
    """Who sends: the service is named by `OTEL_*`, and after the topology if they do not name it.

    Raises:
        ImportError: a package is missing.
    """
    from opentelemetry.sdk.resources import Resource

    given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    names = [each.partition("=")[0].strip() for each in given]
    is_named = os.environ.get("OTEL_SERVICE_NAME") or "service.name" in names
    return Resource.create({} if is_named else {"service.name": topology})
