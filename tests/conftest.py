"""Fixtures over the real things: one Spark session, one ZooKeeper server, folders of one test."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.thorough import (
    COMPILED_ONCE,
    SHARDS,
    SPARK,
    THOROUGH,
    is_left_out,
    not_there,
    shard,
    shard_of,
)

# The servers of most tests are open to everybody, which has to be asked for; child processes
# inherit it. Tests of credentials and ACLs take it away again.
os.environ.setdefault("TXN_ZOOKEEPER_ACL", "open")
if not THOROUGH:
    # Programs that tests start as users do live for seconds: Java's second compiler never pays.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", COMPILED_ONCE)

# No test is timed: a busy machine may take any time for an example.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

SERVERS = {"spark", "zookeeper", "kafka", "s3"}
"""Fixtures behind which a JVM stands."""
STARTERS = {
    "AzureServer",
    "Broker",
    "EmbeddedZooKeeper",
    "GcsServer",
    "HdfsServer",
    "PrometheusServer",
    "S3Server",
    "ServerProcess",
    "VersityServer",
    "delta_session",
    "drivers",
    "subprocess",
    "zookeeper_service",
}
"""Names with which a test module starts servers and processes of its own."""

SLOW = {
    "examples",
    "exhaustive",
    "faults",
    "security",
    "test_chaos.py",
    "test_distribution.py",
    "test_jars.py",
}
"""Folders and files of tests that start Java by other ways, or take their time."""

LONGEST = (
    "test_simulation.py",
    "test_chaos.py",
    "test_standby.py",
    "test_crash_groups.py",
    "test_crash_matrix.py",
    "test_object_stores.py",
    "test_browser.py",
    "test_notebooks.py",
    "test_staging_on_s3.py",
    "test_secrets.py",
    "test_endings.py",
    "test_processes.py",
    "test_app.py",
    "test_changed_program.py",
    "test_readers.py",
    "test_stores.py",
    "test_strangers.py",
    "test_row_replays.py",
    "test_state_table.py",
    "test_readme.py",
    "test_replays.py",
    "test_server.py",
    "test_committer_contract.py",
    "test_state_query.py",
    "test_differential.py",
    "test_state_table_removal.py",
    "test_mistakes.py",
    "test_kafka.py",
    "test_shared_folders.py",
    "test_unknown_columns.py",
    "test_aggregates.py",
    "test_arithmetic.py",
    "test_upkeep.py",
    "test_types.py",
    "test_settings.py",
    "test_preview.py",
)
"""Begun first, so that with several workers none of them is left to one worker in the end."""

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spouts.kafka_broker import Broker
    from tests.stores.s3 import S3Server
    from txn.embedded import EmbeddedZooKeeper


def pytest_configure(config: pytest.Config) -> None:
    """See to it that what is run as fast starts no JVM."""
    if config.getoption("markexpr") == "fast":
        sys.addaudithook(refuse_java)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no module of slow tests where only fast ones run: that alone takes seconds."""
    is_slow = collection_path.name in SLOW and config.getoption("markexpr") == "fast"
    return True if is_slow else None


def refuse_java(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: no Java of this machine's, by whatever name it is started."""
    if event == "subprocess.Popen":
        words = [Path(os.fsdecode(word)) for word in (arguments[0], *arguments[1]) if word]
        java = [word for word in words if word.name in ("java", "spark-submit")]
        mine = Path(tempfile.gettempdir())
        assert all(mine in word.parents for word in java), f"a fast test starts {java}"


def is_fast(item: pytest.Item) -> bool:
    """Whether a test needs no JVM, by its fixtures and by what its module has at hand."""
    assert isinstance(item, pytest.Function)
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return not (
        SERVERS & set(item.fixturenames)
        or any(isinstance(one, str) and one in SERVERS for one in parameters)
        or STARTERS & vars(item.module).keys()
        or SLOW & {item.path.parent.name, item.path.name}
    )


def leave_out(
    config: pytest.Config, items: list[pytest.Item], which: Callable[[pytest.Item], bool]
) -> None:
    """Take tests out of `items`, and tell pytest."""
    out = [item for item in items if which(item)]
    config.hook.pytest_deselected(items=out)
    left = set(items).difference(out)
    items[:] = [item for item in items if item in left]


def is_in_another_shard(item: pytest.Item) -> bool:
    """Whether another commit's run of the suite has this test (`tests.thorough.SHARDS`)."""
    assert isinstance(item, pytest.Function)
    return not item.get_closest_marker("fast") and shard_of(item) not in (None, shard())


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say which part of the slow tests runs, and how to run all."""
    if config.args != config.getini("testpaths") or shard() is None:
        return None
    return (
        f"slow tests: all that quote a guarantee, and part {shard()} of {SHARDS} of the others, "
        "which is this commit's; `make test SHARD=N` runs another part, SHARD=all all of them"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `make test-thorough` is for, mark what is fast, and begin with `LONGEST`.

    Of the slow tests that quote no guarantee, a run of the whole suite has one part. Every file
    stays in one piece.

    Raises:
        UsageError: `sample.json` names a test that is not there.
    """
    whole = not any("::" in argument for argument in config.args)
    suite = config.args == config.getini("testpaths")
    if whole and (missing := not_there(items)):
        raise pytest.UsageError(f"tests/sample.json names what is not there: {missing}")
    if not THOROUGH:
        leave_out(config, items, is_left_out)
    for item in items:
        if is_fast(item):
            item.add_marker("fast")
    if suite and shard() is not None:
        leave_out(config, items, is_in_another_shard)
    rank = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


def pytest_collection_finish() -> None:
    """Let Python's collector pass over what is loaded, so that its full collections are quick."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Free what a test has left in Java.

    Objects of py4j that have called a method are in a cycle. Until Python collects them, Java keeps
    their plans with all that was broadcast for them; thousands of tests filled its gigabyte.
    """
    assert isinstance(item, pytest.Function)
    if "spark" in item.fixturenames:
        gc.collect()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session of the whole test run: two threads, one gigabyte, Delta, Kafka, S3."""
    from spouts.kafka import KafkaSpout
    from txn.machine.jars import S3A_PACKAGES
    from txn.session import delta_session

    session = delta_session(
        "txn-tests",
        master="local[2]",
        conf={
            "spark.driver.memory": "1g",
            "spark.sql.ansi.enabled": "true",  # Spark 3.5 has another default
            "spark.sql.shuffle.partitions": "2",
            "spark.buffer.pageSize": "1m",  # of each broadcast table, however small: Spark's is 16m
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark-warehouse")),
            **SPARK,
        },
        packages=[*KafkaSpout.packages, *S3A_PACKAGES],
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """A real ZooKeeper server of the whole test run; connect to its `.hosts`."""
    from txn.embedded import EmbeddedZooKeeper

    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real Kafka broker of the whole test run; each test has topics of its own."""
    from tests.spouts.kafka_broker import Broker

    with Broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server of the whole test run; each test has a bucket of its own."""
    from tests.stores.s3 import S3Server

    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """An empty folder for the tables of one test."""
    folder = tmp_path / "warehouse"
    folder.mkdir()
    return folder
