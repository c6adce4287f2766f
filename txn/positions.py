"""Say what a txid read, in words and in numbers, from the metadata of its spouts. Pure.

Knows the shapes of the built-in spouts' metadata. Other metadata becomes JSON without its long
parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from txn.text import counted, first_items, printable, size

__all__ = ["amounts_read", "describe", "read_of"]

_LARGEST = 2**53
_LONG_STRING = 40
_SHOWN_ITEMS = 3
_SHOWN_LEVELS = 6


class _Read(NamedTuple):
    what: str = ""
    """The files, versions or partitions that were read."""
    records: int | None = None
    bytes: int | None = None
    end: str = ""
    """The last of them."""

    def __str__(self) -> str:
        records = counted(self.records, "record") if self.records else ""
        amounts = size(self.bytes) if self.bytes else ""
        return ", ".join(filter(None, (self.what, records, amounts))) + self.end


def describe(metadata: Any) -> str:
    """Return what a spout's metadata reads, such as `4 partitions, 20,000 records, up to ...`."""
    if metadata is None:
        return "nothing"
    read = _parsed(metadata)
    return printable(_shortened(read_of(metadata)) if read is None else str(read))


def amounts_read(metadata: Iterable[Any]) -> tuple[int | None, int | None]:
    """Return (records, bytes) that all streams read together; None: one of them does not say."""
    reads = [_parsed(one) or _Read() for one in metadata if one is not None]
    records, sizes = [read.records for read in reads], [read.bytes for read in reads]
    return _sum(records), _sum(sizes)


def read_of(metadata: Any) -> Any:
    """Return the part that was read, without a PartitionedSpout's other positions (`latest`)."""
    if isinstance(metadata, Mapping) and set(metadata) == {"read", "latest"}:
        return metadata["read"]
    return metadata


def _parsed(metadata: Any) -> _Read | None:
    """Return what was read; None: no built-in spout has such metadata."""
    match metadata:
        case {"read": {**positions}, "latest": _}:
            return _partitions(positions)
        case {"files": [*files]}:
            return _files(files)
        case {"versions": [*versions], "last_version": int(last)}:
            return _versions(versions, last, changes=metadata.get("changes") is True)
        case {"start": _, "end": _}:
            span = _span(metadata)
            return None if span is None else _Read("", len(span), None, f", up to {span.stop - 1}")
        case {"index": int(index), **others} if not others and index < _LARGEST:
            return _Read(f"batch {index + 1}")
        case {"feeder": _, "number": int(number)}:
            return _Read(f"batch {number}")
    return None


def _partitions(positions: Mapping[Any, Any]) -> _Read | None:
    spans = {name: span for name, at in positions.items() if (span := _span(at)) is not None}
    others = {name: _parsed(at) for name, at in positions.items() if name not in spans}
    if None in others.values():
        return None
    read = {name: span for name, span in spans.items() if span}
    beside = [f"{str(name).rstrip('/')} {other}" for name, other in others.items()]
    if not read:
        return _Read("; ".join(beside) or "nothing", None if beside else 0)
    ends = [f"{span.stop - 1} of {name}" for name, span in read.items()]
    end = "; ".join([f", up to {first_items(ends, _SHOWN_ITEMS)}", *beside])
    records = sum(map(len, read.values()))
    return _Read(counted(len(read), "partition"), None if beside else records, None, end)


def _span(position: Any) -> range | None:
    """Return the offsets from `start` up to `end`; None: it has none."""
    match position:
        case {"start": int(start), "end": int(end)} if 0 <= start <= end < _LARGEST:
            return range(start, end)
    return None


def _files(files: list[Any]) -> _Read | None:
    paths = [file.get("path") for file in files if isinstance(file, Mapping)]
    if len(paths) < len(files) or not all(isinstance(path, str) for path in paths):
        return None
    names = [str(path).rstrip("/").rpartition("/")[2] for path in paths]
    total = _sum([_count(file.get("size")) for file in files])
    if len(names) == 1:
        return _Read(names[0], None, total)
    few = 0 < len(names) <= _SHOWN_ITEMS
    end = f": {', '.join(names)}" if few else "".join(f", up to {name}" for name in names[-1:])
    return _Read(counted(len(names), "file"), None, total, end)


def _versions(versions: list[Any], last: int, *, changes: bool) -> _Read | None:
    if not all(isinstance(one, Mapping) for one in versions):
        return None
    rows = _sum([_count(one.get("rows")) for one in versions])
    total = None if changes else _sum([_count(one.get("size")) for one in versions])
    of = "changes of " * changes
    if len(versions) == 1:
        return _Read(f"{of}version {last}", rows, total)
    return _Read(f"{of}{counted(len(versions), 'version')}", rows, total, f", up to {last}")


def _count(number: Any) -> int | None:
    return number if isinstance(number, int) and 0 <= number < _LARGEST else None


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return min(sum(known), _LARGEST) if len(known) == len(counts) else None


def _shortened(value: Any, levels: int = _SHOWN_LEVELS) -> str:
    if isinstance(value, Mapping | list | tuple) and not levels:
        return "..."
    if isinstance(value, Mapping):
        pairs = [f"{k}: {_shortened(v, levels - 1)}" for k, v in value.items()]
        return "{" + first_items(pairs, _SHOWN_ITEMS) + "}"
    if isinstance(value, list | tuple):
        return "[" + first_items([_shortened(item, levels - 1) for item in value]) + "]"
    if isinstance(value, str):
        return value if len(value) <= _LONG_STRING else f"({len(value)} characters)"
    return json.dumps(value)
