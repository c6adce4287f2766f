"""Translate Kafka's client settings, given once, for the two clients.

Records are read by Spark with Kafka's Java client; topics and offsets are looked up with librdkafka
(confluent-kafka). The two spell some settings differently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from txn.errors import TopologyError

__all__ = ["ClientSettings", "client_settings"]

ISOLATION = "isolation.level"
_LEVELS = ("read_committed", "read_uncommitted")

# The spout or Spark's source decides these. Spark refuses most of them too, but one job later.
_RESERVED = {
    "auto.offset.reset": "use first_poll=...",
    "bootstrap.servers": "it is the first argument",
    "enable.auto.commit": "positions are kept by the coordinator",
    "group.id": "positions are kept by the coordinator, not by a consumer group",
    "interceptor.classes": "Spark's source allows none",
    "key.deserializer": "keys come as binary; cast the column",
    "value.deserializer": "values come as binary; cast the column",
}

# Java's name -> librdkafka's name, for settings whose values mean the same.
_SAME = {
    "client.dns.lookup": "client.dns.lookup",
    "client.id": "client.id",
    "client.rack": "client.rack",
    "sasl.kerberos.service.name": "sasl.kerberos.service.name",
    "sasl.mechanism": "sasl.mechanisms",
    "security.protocol": "security.protocol",
    "ssl.endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
    "ssl.key.password": "ssl.key.password",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}

_QUIET: Mapping[str, int] = {
    "log_level": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1000,
}

# Shorter than Kafka's minutes: the batch must fail and wait, not hang.
_SPARK_DEFAULTS = {
    "kafkaConsumer.pollTimeoutMs": "20000",
    "kafka.default.api.timeout.ms": "20000",
    "kafka.request.timeout.ms": "15000",
}

_CREDENTIAL = re.compile(r"\b(username|password)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|(\S+))")


@dataclass(frozen=True, repr=False)
class ClientSettings:
    """Settings for both clients; never print them, because they may hold secrets."""

    spark: Mapping[str, str]
    """Options of Spark's source."""
    librdkafka: Mapping[str, str | int]
    """Configuration of confluent-kafka's clients."""
    read_committed: bool


def client_settings(
    servers: str, options: Mapping[str, str], overrides: Mapping[str, str], spout: str
) -> ClientSettings:
    """Make settings for Spark's reader and for librdkafka from Kafka's own (Java) names.

    Args:
        options: Kafka's names without `kafka.`.
        overrides: librdkafka's names, for settings that cannot be translated.

    Raises:
        TopologyError: a setting that the user must not set, or that has no translation.
    """
    for name in options:
        if name.startswith("kafka."):
            raise TopologyError(
                f"{spout} has an option {name!r}. Write {name.removeprefix('kafka.')!r}: options "
                "are Kafka's own names.",
                number="TXN-404",
            )
        if name in _RESERVED:
            raise TopologyError(
                f"{spout} has an option {name!r}, which you must not set: {_RESERVED[name]}.",
                number="TXN-404",
            )
    level = options.get(ISOLATION, _LEVELS[0])
    if level not in _LEVELS:
        raise TopologyError(
            f"{spout} has {ISOLATION} {level!r}. Levels are: {', '.join(_LEVELS)}.",
            number="TXN-404",
        )
    spark = dict(_SPARK_DEFAULTS) | {f"kafka.{name}": str(v) for name, v in options.items()}
    spark |= {"kafka.bootstrap.servers": servers, f"kafka.{ISOLATION}": level}
    librdkafka: dict[str, str | int] = {"bootstrap.servers": servers, **_QUIET}
    librdkafka |= _translated(options, overrides, spout)
    return ClientSettings(spark, librdkafka, level == _LEVELS[0])


def _translated(
    options: Mapping[str, str], overrides: Mapping[str, str], spout: str
) -> dict[str, str]:
    settings = {_SAME[name]: str(value) for name, value in options.items() if name in _SAME}
    if "sasl.jaas.config" in options:
        settings |= _credentials(options["sasl.jaas.config"])
        _require(settings, "sasl.password", "sasl.jaas.config", overrides, spout)
    for store, targets in (
        ("truststore", ("ssl.ca.location",)),
        ("keystore", ("ssl.certificate.location", "ssl.key.location")),
    ):
        if f"ssl.{store}.location" in options:
            if options.get(f"ssl.{store}.type", "JKS").upper() == "PEM":
                settings |= dict.fromkeys(targets, options[f"ssl.{store}.location"])
            _require(settings, targets[0], f"ssl.{store}.location", overrides, spout)
    return settings | dict(overrides)


def _credentials(jaas: str) -> dict[str, str]:
    """Parse user and password from the JAAS line of Kafka's PLAIN and SCRAM modules."""
    if not re.match(r"\s*\S*\.(Plain|Scram)LoginModule\s", jaas):
        return {}
    credentials = {}
    for name, double, single, bare in _CREDENTIAL.findall(jaas):
        value = re.sub(r"\\(.)", r"\1", double) if double else single or bare.rstrip(";")
        credentials[f"sasl.{name}"] = value
    return credentials


def _require(
    settings: Mapping[str, str], name: str, source: str, overrides: Mapping[str, str], spout: str
) -> None:
    # Any of librdkafka's settings of that kind will do (a token, a PKCS#12 store).
    kind = name.partition(".")[0] + "."
    if name not in settings and not any(option.startswith(kind) for option in overrides):
        raise TopologyError(
            f"{spout} has an option {source!r}, which librdkafka, the client for topics and "
            "offsets, does not have. Set librdkafka's own option in client_options, for example "
            f"{name!r} (librdkafka's CONFIGURATION.md has the names).",
            number="TXN-404",
        )
