"""The columns of a run's streams, stored for the next run.

A spout may declare its columns when it is opened; others are known once they have emitted
something. Both are recorded before a batch that needs them can be committed, so that a restart does
not forget them. Recorded columns are used for idle streams only: as soon as the spout declares or
emits other columns in a later run, those hold.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from txn.errors import ProgressUnreadableError, TopologyError
from txn.spark.lazy import st

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["StreamColumns", "columns_of"]

log = logging.getLogger("txn")


class StreamColumns:
    """The columns of a run's streams. Thread-safe.

    Args:
        remember: makes the columns of a stream durable; raises if it cannot.
    """

    def __init__(self, remember: Callable[[str, dict[str, Any]], None]) -> None:
        self._remember = remember
        self._lock = threading.Lock()
        self._schemas: dict[str, StructType] = {}
        self._recalled: frozenset[str] = frozenset()

    def recall(self, durable: Mapping[str, Mapping[str, Any]]) -> None:
        """Take the columns that earlier runs have recorded."""
        with self._lock:
            self._schemas = {stream: columns_of(stream, data) for stream, data in durable.items()}
            self._recalled = frozenset(self._schemas)

    def get(self, stream: str) -> StructType | None:
        """The columns of a stream; None if they are not known yet."""
        return self._schemas.get(stream)

    @property
    def assumed(self) -> frozenset[str]:
        """The streams whose columns are those of earlier runs, not seen in this one."""
        return self._recalled

    def decided(self, stream: str) -> bool:
        """Return whether this run itself has learned the columns of a stream."""
        return stream in self._schemas and stream not in self._recalled

    def learn(self, stream: str, schema: StructType) -> None:
        """Record the columns that a spout declared or emitted. Returns when they are durable.

        Raises:
            TopologyError: the stream had other columns before in this run.
            TxnError: they could not be made durable.
        """
        with self._lock:
            former = self._schemas.get(stream)
            if former is not None and stream not in self._recalled:
                _refuse_changed(stream, former, schema)
                return
            if former is None or not _same_columns(former, schema):
                if former is not None:
                    log.warning(
                        "Stream '%s' had the columns %s in earlier runs, and has %s now.",
                        stream,
                        former.simpleString(),
                        schema.simpleString(),
                    )
                data = schema.jsonValue()
                if _is_storable(data):
                    self._remember(stream, data)
            self._schemas = {**self._schemas, stream: schema}
            self._recalled -= {stream}


def columns_of(stream: str, data: Mapping[str, Any]) -> st.StructType:
    """The columns that an earlier run recorded.

    Raises:
        ProgressUnreadableError: they are not a schema.
    """
    try:
        if not _is_storable(data):
            raise ValueError("it names a class of Python")
        return st.StructType.fromJson(dict(data))
    except Exception as error:
        raise ProgressUnreadableError(
            f"The stored columns of stream '{stream}' cannot be read ({error}). Delete its node "
            "below 'columns' of the topology: the next run takes them from the spout.",
            number="TXN-416",
        ) from error


def _is_storable(data: Any) -> bool:
    """Return whether a schema can be stored as data; a user-defined type names code to load."""
    if isinstance(data, Mapping):
        return data.get("type") != "udt" and all(map(_is_storable, data.values()))
    return not isinstance(data, list) or all(map(_is_storable, data))


def _same_columns(former: StructType, new: StructType) -> bool:
    """Return whether names and types agree; nullability does not matter, at any depth."""
    return len(former) == len(new) and all(
        one.name == other.name
        and (
            one.dataType == other.dataType
            or one.dataType.simpleString() == other.dataType.simpleString()
        )
        for one, other in zip(former, new, strict=True)
    )


def _refuse_changed(stream: str, former: StructType, new: StructType) -> None:
    if not _same_columns(former, new):
        raise TopologyError(
            f"Stream '{stream}' changed its columns from {former.simpleString()} to "
            f"{new.simpleString()}. Give the spout a fixed schema.",
            number="TXN-114",
        )
