"""Which exporters `txn run` has."""

from __future__ import annotations

import builtins
import os
from contextlib import ExitStack
from typing import Any

import pytest

from txn.cli.exporting import make_lineage, make_metrics, make_traces
from txn.errors import SetupError


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("OTEL_", "OPENLINEAGE_")):
            monkeypatch.delenv(name)


def without(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, the package is not installed."""
    real = builtins.__import__

    def imported(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith(package):
            raise ImportError(f"No module named '{name}'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", imported)


def kinds(observers: list[Any]) -> list[str]:
    return [type(observer).__name__ for observer in observers]


def test_options_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an option, what OTEL_* and OPENLINEAGE_* ask for; nothing if they are silent."""
    assert make_traces(None) == make_lineage(None) == []
    assert kinds(make_traces(True)) == ["Traces"]
    assert kinds(make_lineage(True)) == ["Lineage"]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")
    assert kinds(make_traces(None)) == ["Traces"]
    assert kinds(make_lineage(None)) == ["Lineage"]
    assert make_traces(False) == make_lineage(False) == []


def test_a_missing_package_is_told_or_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An environment may be a whole cluster's: the run goes on. The option is refused."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")
    without("opentelemetry.sdk", monkeypatch)
    assert make_traces(None) == []
    with pytest.raises(SetupError, match="none are sent. Add --traces"):
        make_traces(None, 5.0)
    assert "pip install 'txn-spark[otel]'. The run goes on without it." in capsys.readouterr().err
    with pytest.raises(SetupError, match=r"txn-spark\[otel\]"):
        make_traces(True)
    without("openlineage", monkeypatch)
    assert make_lineage(None) == []
    assert "txn-spark[openlineage]" in capsys.readouterr().err
    with pytest.raises(SetupError) as refused:
        make_lineage(True)
    assert refused.value.number == "TXN-211"


def test_metrics_that_only_the_environment_asks_for_may_lack_their_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As traces: one variable asks for both, and the run goes on without."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with ExitStack() as resources:
        assert kinds(make_metrics(None, resources)) == ["OpenTelemetryMetrics"]
    without("opentelemetry.sdk", monkeypatch)
    with ExitStack() as resources:
        assert make_metrics(None, resources) == []
    assert "pip install 'txn-spark[otel]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "udp"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
    ],
)
def test_a_setting_of_metrics_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """In words and with a number, before anything starts."""
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")  # HTTP takes any time-out
    monkeypatch.setenv(name, value)
    with ExitStack() as resources, pytest.raises(SetupError, match="OTEL_") as refused:
        make_metrics(None, resources)
    assert refused.value.number == "TXN-214"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
    ],
)
def test_a_setting_of_traces_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Also one that OpenTelemetry reads only when it begins to send."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")  # HTTP takes any time-out
    monkeypatch.setenv(name, value)
    with pytest.raises(SetupError, match="OTEL_") as refused:
        make_traces(True)
    assert refused.value.number == "TXN-214"


def test_a_setting_that_cannot_be_is_refused_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody meant a run without traces by an exporter that does not exist."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(SetupError, match="OTEL_TRACES_EXPORTER"):
        make_traces(None)
