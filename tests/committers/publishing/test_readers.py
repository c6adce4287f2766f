"""Spark's Delta and delta-rs read a log that we write, and write to it between our commits."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import dataset, parquet

from committers.publishing.append import commit_actions, commit_text, file_actions
from committers.publishing.checkpoints import Checkpoints
from committers.publishing.files import ActiveFile
from committers.publishing.log import DeltaLog
from committers.publishing.spec import TableSpec
from committers.staging.parquet_stats import delta_stats
from txn.delta.commits import commit_path, parse_commit
from txn.delta.log import TableLog
from txn.delta.upkeep import carry_out, plan_optimize
from txn.errors import RecoveryRefusedError, TableRefusedError
from txn.interfaces import Semantics, StagedFile
from txn.storage.storage import Storage

COLUMNS = (("name", "string"), ("txid", "long"))
SPEC = TableSpec("tests", "append", Semantics.OPAQUE, COLUMNS)
NAMES = (
    "plain",
    "with space",
    "p%20c",
    "ü€😀",
    "a+b&c=d;e,f@h!i'j(k)l*m~n$",
    'q"<>^`{|}[]#?',
    "back\\slash",
)
"""Of files: every character that is encoded in some log. Hadoop takes no colon."""


def open_log(path: Path, epoch: int = 1) -> DeltaLog:
    log = DeltaLog(Storage(str(path)))
    log.open(SPEC, epoch)
    log.fence(epoch)
    return log


def put(path: Path, txid: int, name: str) -> StagedFile:
    """A staged file with one row: its own name."""
    place = path / "data" / f"{name}-{txid}.parquet"
    place.parent.mkdir(exist_ok=True)
    parquet.write_table(pa.table({"name": [name], "txid": pa.array([txid], pa.int64())}), place)
    stats = delta_stats(parquet.read_metadata(place))
    return StagedFile(str(place.relative_to(path)), place.stat().st_size, 1, {}, stats)


def seen_by(spark: Any, path: Path, version: int | None = None) -> list[tuple[str, int]]:
    """The rows; both readers see the same."""
    by_rust = DeltaTable(str(path), version=version).to_pyarrow_table().to_pylist()
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    by_spark = [(row["name"], row["txid"]) for row in reader.load(str(path)).collect()]
    assert sorted(by_spark) == sorted((row["name"], row["txid"]) for row in by_rust)
    return sorted(by_spark)


def test_files_of_any_name_come_and_go_for_every_reader(
    driver: Any, warehouse: Path, make_publication: Any
) -> None:
    """Paths are encoded as both readers decode them, in what is added and in what is removed; out
    of commit files and out of checkpoints, now and as of a version.
    """
    log = open_log(warehouse)
    for txid in (1, 2):
        files = [put(warehouse, txid, name) for name in NAMES]
        log.publish(files, [], make_publication(txid, rows=len(NAMES)), log.version)
    both = sorted((name, txid) for name in NAMES for txid in (1, 2))
    assert seen_by(driver.spark, warehouse) == both
    removes = [file for file in log.files.values() if file.txid_min == 2]
    log.publish([], removes, make_publication(2, attempt=1), log.version)
    first = sorted((name, 1) for name in NAMES)
    assert seen_by(driver.spark, warehouse) == first
    DeltaTable(str(warehouse)).create_checkpoint()
    assert seen_by(driver.spark, warehouse) == first
    assert seen_by(driver.spark, warehouse, version=2) == both


STRANGERS: dict[str, Callable[[Any, Path], object]] = {
    "spark optimize": lambda spark, path: spark.sql(f"OPTIMIZE delta.`{path}`"),
    "delta-rs optimize": lambda _, path: DeltaTable(str(path)).optimize.compact(),
    "spark vacuum": lambda spark, path: spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS"),
    "delta-rs vacuum": lambda _, path: DeltaTable(str(path)).vacuum(
        0, dry_run=False, enforce_retention_duration=False
    ),
    "spark comment": lambda spark, path: spark.sql(
        f"COMMENT ON TABLE delta.`{path}` IS 'totals of the month'"
    ),
    "delta-rs checkpoint": lambda _, path: DeltaTable(str(path)).create_checkpoint(),
}


def test_others_maintain_the_table_between_our_commits(
    driver: Any, warehouse: Path, make_publication: Any
) -> None:
    """Each of them reads our commits, and we take in theirs; no row is lost or doubled."""
    check = "spark.databricks.delta.retentionDurationCheck.enabled"
    driver.spark.conf.set(check, "false")
    log, txid = open_log(warehouse), 0
    care = Checkpoints(Storage(str(warehouse)), log.verify)
    for _ in range(2):
        for stranger in STRANGERS.values():
            for _ in range(2):
                txid += 1
                log.publish(
                    [put(warehouse, txid, "a")], [], make_publication(txid, rows=1), log.version
                )
                care.run(log.version, log.properties)
            stranger(driver.spark, warehouse)
            assert seen_by(driver.spark, warehouse) == [("a", n) for n in range(1, txid + 1)]
    driver.spark.conf.unset(check)
    log.refresh()
    found = open_log(warehouse, epoch=2)
    assert log.files == found.files
    history = DeltaTable(str(warehouse)).history()
    ours = [entry for entry in history if "txn" in entry]
    assert [entry["txn"]["last_txid"] for entry in ours] == list(range(txid, 0, -1))
    assert {(entry["operation"], entry["engineInfo"]) for entry in ours} == {("WRITE", "txn")}
    said = driver.spark.sql(f"DESCRIBE HISTORY delta.`{warehouse}`").collect()
    assert [row["version"] for row in said] == list(range(found.version, -1, -1))
    assert all(row["timestamp"].year > 2020 for row in said)


VALUES: dict[str, tuple[Any, pa.DataType, list[Any]]] = {
    "double": ("double", pa.float64(), [1.5, float("nan")]),
    "decimal": ("decimal(38,18)", pa.decimal128(38, 18), [Decimal("12345678901234567890.5")]),
    "timestamp": ("timestamp", pa.timestamp("us", "UTC"), [datetime(2024, 1, 1, 1, 1, 1, 123456)]),
    "boolean": ("boolean", pa.bool_(), [True]),
    "binary": ("binary", pa.binary(), [b"a"]),
    "long string": ("string", pa.string(), ["z" * 40, "\U0010ffff" * 32 + "y"]),
    "rare characters": ("string", pa.string(), ["\U00020000", "\U0002a6d6" * 33]),
    "odd name": ("long", pa.int64(), [7]),
}


@pytest.mark.parametrize("what", VALUES)
def test_filters_of_delta_rs_find_every_row(
    warehouse: Path, make_publication: Any, what: str
) -> None:
    """It skips each file without a bound, in columns that the table says have bounds; so it says
    so only of those that have them: in what was published, out of a checkpoint, after OPTIMIZE.
    """
    kind, arrow, values = VALUES[what]
    name = "ö-1.x" if what == "odd name" else "value"
    log = DeltaLog(Storage(str(warehouse)))
    spec = TableSpec("tests", "append", Semantics.OPAQUE, ((name, kind), ("txid", "long")))
    log.open(spec, 1)
    rows = [*values, None]
    for txid, value in enumerate(rows, start=1):
        place = warehouse / f"data/{txid}-0-ab/part.parquet"
        place.parent.mkdir(parents=True)
        columns = {name: pa.array([value], arrow), "txid": pa.array([txid], pa.int64())}
        parquet.write_table(pa.table(columns), place)
        stats = delta_stats(parquet.read_metadata(place))
        staged = StagedFile(str(place.relative_to(warehouse)), place.stat().st_size, 1, {}, stats)
        log.publish([staged], [], make_publication(txid, rows=1), log.version)

    def missed() -> list[Any]:
        table = DeltaTable(str(warehouse))
        whole, found = table.to_pyarrow_table(), table.to_pyarrow_dataset()
        field = dataset.field(name)
        first = pa.scalar(values[0], arrow)
        asked = [field == first, field >= first, field <= first, field.is_null(), ~field.is_null()]
        asked += [dataset.field("txid") == 1, field == pa.scalar(values[-1], arrow)]
        lengths = [
            (whole.filter(one).num_rows, found.to_table(filter=one).num_rows) for one in asked
        ]
        assert sum(wanted for wanted, _ in lengths) > len(values)
        return [(one, *pair) for one, pair in zip(asked, lengths, strict=True) if len({*pair}) > 1]

    assert missed() == []
    DeltaTable(str(warehouse)).create_checkpoint()
    assert missed() == []
    log.refresh()
    assert log.files == open_other(warehouse, spec).files
    storage = Storage(str(warehouse))
    assert carry_out(storage, plan_optimize(storage, "tests")).written == 1
    assert missed() == []
    log.refresh()
    assert [(file.txid_min, file.txid_max) for file in log.files.values()] == [(1, len(rows))]


def open_other(path: Path, spec: TableSpec) -> DeltaLog:
    log = DeltaLog(Storage(str(path)))
    log.open(spec, 1)
    return log


def test_a_change_data_feed_follows_from_our_commits(
    driver: Any, warehouse: Path, make_publication: Any
) -> None:
    """Spark and delta-rs derive what came from the files that a version added."""
    log = open_log(warehouse)
    DeltaTable(str(warehouse)).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    log.publish([put(warehouse, 1, "a")], [], make_publication(1, rows=1), log.version)
    feed = driver.spark.read.option("readChangeFeed", "true").option("startingVersion", log.version)
    rows = feed.format("delta").load(str(warehouse)).collect()
    assert [(row["name"], row["_change_type"], row["_commit_version"]) for row in rows] == [
        ("a", "insert", 2)
    ]
    loaded = pa.table(DeltaTable(str(warehouse)).load_cdf(starting_version=2).read_all())
    assert loaded["_change_type"].to_pylist() == ["insert"]


def test_a_commit_file_says_what_the_protocol_asks_for() -> None:
    """Every field of the actions, a partition without a value, and text in any language."""
    add = StagedFile("p=1/ü.parquet", 10, 3, {"p": None}, '{"numRecords":3}')
    gone = ActiveFile("old file.parquet", 7, {"p": "1"})
    written = commit_actions(
        file_actions([add], [gone], 5, data_change=False),
        {"app": 2**62},
        now_ms=6,
        partition_columns=["p"],
        info={"said": "é\u2028", "more": [1.5]},
    )
    text = commit_text(written)
    assert [json.loads(line) for line in text.decode().removesuffix("\n").split("\n")] == [
        {
            "commitInfo": {
                "timestamp": 6,
                "operation": "WRITE",
                "operationParameters": {"mode": "Append", "partitionBy": '["p"]'},
                "engineInfo": "txn",
                "said": "é\u2028",
                "more": [1.5],
            }
        },
        {"txn": {"appId": "app", "version": 2**62}},
        {
            "add": {
                "path": "p=1/%C3%BC.parquet",
                "partitionValues": {"p": None},
                "size": 10,
                "modificationTime": 5,
                "dataChange": False,
                "stats": '{"numRecords":3}',
            }
        },
        {
            "remove": {
                "path": "old%20file.parquet",
                "dataChange": False,
                "deletionTimestamp": 5,
                "extendedFileMetadata": True,
                "partitionValues": {"p": "1"},
                "size": 7,
            }
        },
    ]
    parsed = parse_commit(1, text, "t")
    assert (parsed.adds, parsed.removes, parsed.apps) == ((add,), {gone.path}, {"app": 2**62})
    assert parse_commit(1, text, "t", written) == parsed
    with pytest.raises(ValueError, match="JSON compliant"):
        commit_text([{"commitInfo": {"x": float("nan")}}])
    assert commit_text([{"commitInfo": {"x": "NaN"}}]) == b'{"commitInfo":{"x":"NaN"}}\n'


# --- what others may ask of a writer ---------------------------------------------------------


def append_raw(path: Path, *actions: dict[str, Any]) -> int:
    """A stranger's commit, as the next version."""
    version = DeltaTable(str(path)).version() + 1
    lines = [{"commitInfo": {"timestamp": 0, "operation": "UPGRADE"}}, *actions]
    (path / commit_path(version)).write_text("\n".join(map(json.dumps, lines)))
    return version


@pytest.mark.parametrize(
    ("protocol", "feature"),
    [
        ({"minReaderVersion": 1, "minWriterVersion": 8}, "writer version 8"),
        ({"minReaderVersion": 4, "minWriterVersion": 7}, "reader version 4"),
        *(
            (
                {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [name]},
                f"'{name}'",
            )
            for name in (
                "rowTracking",
                "inCommitTimestamp",
                "clustering",
                "icebergCompatV2",
                "allowColumnDefaults",
                "aFeatureOfTheFuture",
            )
        ),
    ],
)
def test_what_a_stranger_demands_of_writers_is_refused_by_name(
    warehouse: Path, make_publication: Any, protocol: dict[str, Any], feature: str
) -> None:
    """Delta-rs is not asked any more, so every demand is looked at when its commit is taken in,
    and again by whoever publishes after that.
    """
    log = open_log(warehouse)
    version = append_raw(warehouse, {"protocol": protocol})
    for _ in range(2):
        with pytest.raises(TableRefusedError, match=f"Delta feature {feature}") as raised:
            log.publish([put(warehouse, 1, "a")], [], make_publication(1), 0)
        assert f"changed in version {version} (UPGRADE" in str(raised.value)
    assert not (warehouse / commit_path(version + 1)).exists()


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"id": "x", "schemaString": "{", "partitionColumns": [], "configuration": {}},
        {"id": "x", "schemaString": '{"fields":[{}]}', "partitionColumns": [], "configuration": {}},
        {"id": "x", "schemaString": '{"fields":[]}', "partitionColumns": [], "configuration": 3},
    ],
)
def test_a_description_that_is_none_is_refused(
    warehouse: Path, make_publication: Any, metadata: dict[str, Any]
) -> None:
    """A version that says nothing usable of the table names its file, and nothing is appended."""
    log = open_log(warehouse)
    version = append_raw(warehouse, {"metaData": metadata})
    with pytest.raises(RecoveryRefusedError, match=f"Version {version} .* not in Delta.s format"):
        log.publish([put(warehouse, 1, "a")], [], make_publication(1), 0)
    assert TableLog(Storage(str(warehouse))).commit(version + 1) is None
