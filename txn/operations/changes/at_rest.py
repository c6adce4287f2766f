"""The size that a table in event time comes to, by how it has grown. Reads its log, no rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txn.dataflow.definition import Definition
from txn.dataflow.graph import Sink
from txn.dataflow.kept import Kept
from txn.errors import TxnError
from txn.interfaces import Committer
from txn.interfaces.committer_capabilities import ChangesShape
from txn.operations.changes.tables import RebuildCost
from txn.storage.asking import in_parallel
from txn.text import duration, size

if TYPE_CHECKING:
    from txn.storage.storage import Storage

__all__ = ["AtRest", "sizes_at_rest"]

_VERSIONS, _SHARES = 1_000, (1.0, 0.75, 0.5, 0.25, 0.125)
"""How many versions back the growth is measured from, and shares of it that are tried, in turn: a
log may not go back so far, and the first txids have no watermark.
"""


@dataclass(frozen=True)
class AtRest:
    """How much a table holds, and how fast it grows in event time."""

    table: str
    after: int
    """Microseconds of event time for which a row stays."""
    bytes: int
    """Of the files that are active now."""
    grown: int = 0
    """Bytes by which these have become more while the watermark went on by `span`."""
    span: int = 0
    """Microseconds of event time; 0: not known."""

    @property
    def estimate(self) -> int | None:
        """The bytes that it has once as much ends as comes; None: not known yet.

        That of a table that grows evenly until its first rows end; one that is at rest grows no
        more.
        """
        if not self.span:
            return None
        return max(self.bytes, round(self.grown * self.after / self.span))

    def to_json(self) -> dict[str, Any]:
        """Return its figures as a JSON object."""
        return {"bytes": self.bytes, "at_rest_bytes": self.estimate, "after_secs": self.after / 1e6}

    @property
    def text(self) -> str:
        """The sentence of `txn plan`."""
        stays = f"its rows stay for {duration(self.after / 1_000_000)} of event time"
        if self.estimate is None:
            return f"{stays}: {size(self.bytes)} now"
        grown = duration(self.span / 1_000_000)
        return (
            f"{stays}: {size(self.bytes)} now, roughly {size(self.estimate)} at rest, as it has "
            f"grown in the last {grown}"
        )


def sizes_at_rest(definition: Definition) -> tuple[AtRest, ...]:
    """Return the tables of a topology whose rows end, and that are there; unreadable ones not."""
    ends = [(sink, after) for sink in definition.sinks if (after := _stays(sink)) is not None]
    found = in_parallel(lambda one: _measured(one[0].committer, one[1]), ends)
    return tuple(one for one in found if one is not None)


def _stays(sink: Sink) -> int | None:
    """For how long rows of a table stay; None: for ever, or it does not say."""
    if isinstance(sink.parent, Kept):
        return sink.parent.after or None
    committer = sink.committer
    expiry = committer.shape().expiry if isinstance(committer, ChangesShape) else None
    return None if expiry is None else expiry.after


def _measured(committer: Committer, after: int) -> AtRest | None:
    from txn.delta.delta_rs import DeltaError
    from txn.delta.loading import is_there, load, load_own
    from txn.storage.storage import Storage

    storage = Storage(committer.name, committer.storage_options)
    try:
        if not is_there(storage):
            return None
        table = load_own(storage)
        version, now = table.version(), RebuildCost.of(table).bytes
        watermark, former = _watermark(storage, version), _former(storage, version)
        span = watermark - former[1] if watermark is not None and former else 0
        grown = now - RebuildCost.of(load(storage, former[0])).bytes if span and former else 0
    except (TxnError, DeltaError, OSError):
        return None  # `compare_tables` tells it
    return AtRest(committer.name, after, now, grown, span)


def _former(storage: Storage, version: int) -> tuple[int, int] | None:
    """(version, watermark) of an earlier version to measure the growth from; None: there is none.

    A few requests, however long the log is.
    """
    for share in _SHARES:
        earlier = version - int(min(version, _VERSIONS) * share)
        if (watermark := _watermark(storage, earlier)) is not None:
            return earlier, watermark
    return None


def _watermark(storage: Storage, version: int) -> int | None:
    """The watermark of the newest txid as of a version, if the version has it."""
    from txn.delta.log import TableLog

    commit = TableLog(storage).commit(version)
    newest = None if commit is None else commit.last_publication
    return None if newest is None else newest[1].watermark
