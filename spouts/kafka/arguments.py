"""Check the arguments of a `KafkaSpout` and convert them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from txn.errors import TopologyError

__all__ = ["FirstPoll", "check_servers", "checked_choice", "subscription", "timestamp_ms"]

FirstPoll = Literal[
    "earliest",
    "latest",
    "timestamp",
    "uncommitted_earliest",
    "uncommitted_latest",
    "uncommitted_timestamp",
]
"""The start of reading. Source: Storm's `FirstPollOffsetStrategy`."""


def check_servers(servers: str) -> None:
    """Refuse addresses that no client can reach.

    Raises:
        TopologyError: it is not a list of brokers with their ports.
    """
    for server in [one.strip() for one in str(servers).split(",") if one.strip()] or [""]:
        host, _, port = server.rpartition(":")
        if host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536:
            continue
        raise TopologyError(
            f"KafkaSpout({servers!r}) names no broker and port in {server!r}. Write every broker "
            "as host:port, for example 'broker-1:9092,broker-2:9092'.",
            number="TXN-404",
        )


def subscription(
    spout: str, topics: Sequence[str] | None, pattern: str | None
) -> tuple[tuple[str, ...], str | None]:
    """Return the topics and the pattern, of which exactly one must be given."""
    if isinstance(topics, str) or bool(topics) == bool(pattern) or not all(topics or (True,)):
        raise TopologyError(
            f"{spout} needs either topics=['a', 'b'] or pattern='a|b.*', and not both.",
            number="TXN-404",
        )
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise TopologyError(
                f"{spout} has a pattern that is not a regular expression: {error}.",
                number="TXN-404",
            ) from error
    return tuple(dict.fromkeys(topics or ())), pattern


def timestamp_ms(spout: str, first_poll: str, start: int | datetime | None) -> int | None:
    """Return the start in milliseconds since 1970; None: the strategy needs none."""
    if first_poll.endswith("timestamp") != (start is not None):
        raise TopologyError(
            f"{spout} has first_poll={first_poll!r} and start_timestamp={start!r}: the timestamp "
            "strategies need a start_timestamp, and the others must not have one.",
            number="TXN-404",
        )
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise TopologyError(
                f"{spout} has a start_timestamp without a time zone: {start}. Add one, for example "
                "datetime(..., tzinfo=timezone.utc).",
                number="TXN-404",
            )
        return int(start.timestamp() * 1000)
    return start


def checked_choice(
    spout: str, setting: str, value: Any, allowed: Sequence[str], as_type: Any
) -> Any:
    """Return a value, if it is one of the allowed ones."""
    plain = getattr(value, "value", value)
    if plain not in allowed:
        raise TopologyError(
            f"{spout} has {setting}={plain!r}. Choose from: {', '.join(allowed)}.", number="TXN-404"
        )
    return as_type(plain)
