"""The columns of a run's streams, kept for the next run.

A spout may say its columns when it is opened; of others they are known once they have emitted
something. Both are written down before a batch that needed them can be committed, so that a restart
does not forget them. What is written down is used for idle streams only: as soon as the spout says
or emits other columns in a later run, those hold.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from txn.errors import ProgressUnreadableError, TopologyError

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
        self._known: dict[str, StructType] = {}
        self._recalled: frozenset[str] = frozenset()

    def recall(self, durable: Mapping[str, Mapping[str, Any]]) -> None:
        """Take what earlier runs have written down.

        Raises:
            ProgressUnreadableError: it describes no columns.
        """
        with self._lock:
            self._known = {stream: columns_of(stream, kept) for stream, kept in durable.items()}
            self._recalled = frozenset(self._known)

    def get(self, stream: str) -> StructType | None:
        """The columns of a stream; None if they are not known yet."""
        return self._known.get(stream)

    @property
    def assumed(self) -> frozenset[str]:
        """The streams of whose columns this run knows no more than what was written down."""
        return self._recalled

    def decided(self, stream: str) -> bool:
        """Whether this run has learned the columns of a stream, and did not only recall them."""
        return stream in self._known and stream not in self._recalled

    def learn(self, stream: str, found: StructType) -> None:
        """Record the columns that a spout declared or emitted. Returns when they are durable.

        Raises:
            TopologyError: they are not those that it had before in this run.
            TxnError: they could not be made durable.
        """
        with self._lock:
            known = self._known.get(stream)
            if known is not None and stream not in self._recalled:
                _refuse_changed(stream, known, found)
                return
            if known is None or not _same(known, found):
                if known is not None:
                    log.warning(
                        "Stream '%s' had the columns %s in earlier runs, and has %s now.",
                        stream,
                        known.simpleString(),
                        found.simpleString(),
                    )
                kept = found.jsonValue()
                if _may_be_kept(kept):
                    self._remember(stream, kept)
            self._known = {**self._known, stream: found}
            self._recalled -= {stream}


def columns_of(stream: str, kept: Mapping[str, Any]) -> StructType:
    """The columns that were written down.

    Raises:
        ProgressUnreadableError: they are not a schema.
    """
    from pyspark.sql.types import StructType

    try:
        if not _may_be_kept(kept):
            raise ValueError("it names a class of Python")
        return StructType.fromJson(dict(kept))
    except Exception as error:
        raise ProgressUnreadableError(
            f"The stored columns of stream '{stream}' cannot be read ({error}). Delete its node "
            "below 'columns' of the topology: the next run takes them from the spout.",
            number="TXN-416",
        ) from error


def _may_be_kept(kept: Any) -> bool:
    """Return whether a schema can be stored as data; a user-defined type names code to load."""
    if isinstance(kept, Mapping):
        return kept.get("type") != "udt" and all(map(_may_be_kept, kept.values()))
    return not isinstance(kept, list) or all(map(_may_be_kept, kept))


def _same(known: StructType, found: StructType) -> bool:
    """Return whether names and types agree; what may be NULL is of no account, at any depth."""
    return len(known) == len(found) and all(
        one.name == other.name
        and (
            one.dataType == other.dataType
            or one.dataType.simpleString() == other.dataType.simpleString()
        )
        for one, other in zip(known, found, strict=True)
    )


def _refuse_changed(stream: str, known: StructType, found: StructType) -> None:
    """Refuse a stream whose columns changed while the topology runs."""
    if not _same(known, found):
        raise TopologyError(
            f"Stream '{stream}' changed its columns from {known.simpleString()} to "
            f"{found.simpleString()}. Give the spout a fixed schema.",
            number="TXN-114",
        )
