"""Read the variables `OTEL_*`, for metrics and traces that are sent by OTLP."""

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
    """Return the exporters that the environment names, such as "otlp" or "none"; may be empty."""
    named = environment.get(f"OTEL_{signal}_EXPORTER", "").split(",")
    return [name.strip() for name in named if name.strip()]


def is_asked_for(signal: Signal, environment: Mapping[str, str]) -> bool:
    """True if the environment configures metrics or traces.

    It does if it names an exporter, or, without an exporter, an endpoint. Metrics are sent by OTLP
    only. An unsupported exporter of traces is refused later, by `Traces`.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if named := exporters(signal, environment):
        return "otlp" in named if signal == "METRICS" else any(name != "none" for name in named)
    places = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return any(environment.get(place) for place in places)


def protocol(signal: Signal, environment: Mapping[str, str]) -> Literal["grpc", "http/protobuf"]:
    """Return the protocol that the environment names.

    Raises:
        SetupError: the protocol is not supported.
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
    """Return the result of `make`, in which OpenTelemetry reads its variables.

    Raises:
        SetupError: a variable has an invalid value.
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
    """Return the sending service, with the name from `OTEL_*` or else the topology's name.

    Raises:
        ImportError: a package is missing.
    """
    from opentelemetry.sdk.resources import Resource

    attributes = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    names = [attribute.partition("=")[0].strip() for attribute in attributes]
    is_named = os.environ.get("OTEL_SERVICE_NAME") or "service.name" in names
    return Resource.create({} if is_named else {"service.name": topology})
