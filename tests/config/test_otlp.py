"""What metrics and traces have in common when they are sent."""

from __future__ import annotations

import pytest

from txn.config.otlp import sender


@pytest.mark.parametrize(
    ("name", "attributes", "service"),
    [
        (None, None, "flights"),
        ("", "", "flights"),
        (None, "deployment.environment=test,my.service.name=x", "flights"),
        ("ours", None, "ours"),
        ("ours", "service.name=theirs", "ours"),
        (None, "deployment.environment=test, service.name=theirs", "theirs"),
    ],
)
def test_a_topology_names_its_service_unless_the_environment_does(
    name: str | None, attributes: str | None, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`OTEL_SERVICE_NAME` wins, then `service.name` of `OTEL_RESOURCE_ATTRIBUTES`."""
    for variable, value in (
        ("OTEL_SERVICE_NAME", name),
        ("OTEL_RESOURCE_ATTRIBUTES", attributes),
    ):
        if value is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, value)
    assert sender("flights").attributes["service.name"] == service
