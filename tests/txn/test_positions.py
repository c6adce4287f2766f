"""What a txid read, in words and in numbers."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from spouts.delta.batch import DeltaBatch, DeltaVersion
from spouts.feeder import Feeding
from spouts.files.batch import FileBatch, PlannedFile
from spouts.kafka.plan import Position
from spouts.memory import MemoryPosition
from spouts.rate import RateSpan
from txn.interfaces import PartitionPositions
from txn.positions import amounts_read, describe

FILES = [{"path": f"in/{number}.csv", "size": 1_000_000} for number in range(5)]
OFFSETS = {
    f"orders-{number}": {"start": 100, "end": 5_100 + number, "topic_id": "id"}
    for number in range(4)
}
ENDS = "up to 5099 of orders-0, 5100 of orders-1, 5101 of orders-2 and 1 more"
VERSIONS = [{"version": v, "files": 1, "size": 2_000, "rows": 10} for v in (7, 8)]


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        (None, "nothing"),
        ({"files": FILES[:1], "seen": "x" * 99}, "0.csv, 1.0 MB"),
        ({"files": FILES[:2]}, "2 files, 2.0 MB: 0.csv, 1.csv"),
        ({"files": FILES}, "5 files, 5.0 MB, up to 4.csv"),
        ({"files": [{"path": "x/a.csv"}]}, "a.csv"),
        ({"files": []}, "0 files"),
        (
            {"read": OFFSETS, "latest": {}},
            f"4 partitions, 20,006 records, {ENDS}",
        ),
        (
            {"read": {"p-0": {"start": 3, "end": 3}, "p-1": {"start": 0, "end": 1}}, "latest": {}},
            "1 partition, 1 record, up to 0 of p-1",
        ),
        ({"read": {"p-0": {"start": 3, "end": 3}}, "latest": {}}, "nothing"),
        (
            {"read": {"p-0": {"start": 0, "end": 2}, "corrections/": {"files": FILES[:1]}}}
            | {"latest": {}},
            "1 partition, up to 1 of p-0; corrections 0.csv, 1.0 MB",
        ),
        (
            {"last_version": 8, "versions": VERSIONS, "changes": False},
            "2 versions, 20 records, 4.0 kB, up to 8",
        ),
        (
            {"last_version": 8, "versions": [{**VERSIONS[1], "rows": None}], "changes": True},
            "changes of version 8",
        ),
        ({"start": 10, "end": 1010, "interval_us": 1}, "1,000 records, up to 1009"),
        ({"index": 0}, "batch 1"),
        ({"feeder": "a1", "number": 3}, "batch 3"),
        ({"read": {"p0": 7}, "latest": {"p0": 7, "p1": 3}}, "{p0: 7}"),
        (
            {"offset": 3, "blob": "x" * 41, "list": [1, 2]},
            "{offset: 3, blob: (41 characters), list: [1, 2]}",
        ),
        (12, "12"),
    ],
)
def test_metadata_is_described_in_words(metadata: Any, text: str) -> None:
    """Built-in spouts' metadata becomes amounts and an end, other metadata shortened JSON."""
    assert describe(metadata) == text


@pytest.mark.parametrize(
    ("streams", "amounts"),
    [
        ([None], (0, 0)),
        ([{"files": FILES}, None], (None, 5_000_000)),
        ([{"read": OFFSETS, "latest": {}}, {"start": 0, "end": 4}], (20_010, None)),
        ([{"last_version": 8, "versions": VERSIONS}], (20, 4_000)),
        ([{"last_version": 8, "versions": VERSIONS}, 12], (None, None)),
    ],
)
def test_amounts_are_summed_or_unknown(
    streams: list[Any], amounts: tuple[int | None, int | None]
) -> None:
    """A stream whose metadata has no number makes the sum unknown."""
    assert amounts_read(streams) == amounts


@pytest.mark.parametrize(
    "metadata",
    [
        {"files": [{"path": 1}]},
        {"files": ["a"]},
        {"start": 9, "end": 3},
        {"start": 0, "end": 10**30},
        {"index": 10**30},
        {"versions": [1], "last_version": 2},
        {"read": {"p": {"start": 5, "end": "x"}}, "latest": {}},
    ],
)
def test_strange_metadata_is_shortened(metadata: Any) -> None:
    """Metadata that only resembles a built-in spout's is shown as JSON."""
    assert describe(metadata)[0] in "{["


@pytest.mark.parametrize(
    "metadata",
    [
        FileBatch.model_construct(files=(PlannedFile(path="a.csv", size=1, mtime_ns=1),), seen=""),
        DeltaBatch.model_construct(
            versions=(DeltaVersion(version=1, files=1, size=1, rows=1),), last_version=1
        ),
        PartitionPositions(read={"t-0": Position(start=0, end=1, topic_id="id").to_json()}),
        RateSpan(start=0, end=1, interval_us=1),
        MemoryPosition(index=0),
        Feeding(feeder="a", number=1),
    ],
    ids=lambda metadata: type(metadata).__name__,
)
def test_the_metadata_of_built_in_spouts_is_known(metadata: BaseModel) -> None:
    """Their models dump what `describe` puts into words."""
    assert describe(metadata.model_dump(mode="json"))[0] not in "{["
