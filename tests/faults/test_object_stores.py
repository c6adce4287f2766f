"""Crashes and bad weather on real storage servers: S3, a second S3, Azure's, Google's, HDFS; and
crashes of drivers whose executors YARN runs.

Each chain is one warehouse: each driver meets the weather of its life and is killed, by the proxy
at the very request that commits, or at a point of a batch's life; the next one takes over. `make
test` has a chain of each kind of spout on S3; every weather with every end is for `make
test-thorough`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import pytest

from tests.faults.chains import assert_consistent
from tests.faults.store_lives import TABLES, WEATHERS, Life, Lived, Place, live_on
from tests.stores import azure, gcs
from tests.stores.azure import ABFS_PACKAGES, ACCOUNT, AzureServer
from tests.stores.gcs import GCS_PACKAGES, GcsServer, JsonServer
from tests.stores.hdfs import HdfsServer
from tests.stores.proxy import Proxy
from tests.stores.s3 import S3Server, storage_options
from tests.stores.tls import TlsFront
from tests.stores.versity import VersityServer
from tests.stores.yarn import Yarn
from tests.thorough import THOROUGH
from txn.engine.base.killpoints import POINTS
from txn.machine.jars import S3A_PACKAGES

SUITE = {
    "transactional": (
        Life("lagging-lists", "later", "totals"),
        Life("reordered", "between-publications"),
    ),
    "opaque": (
        Life("answers-lost", "has"),
        Life("busy", "never", "totals"),
    ),
}
ENDS = (*(Life("", end, table) for end in ("never", "has", "later") for table in TABLES),)
FULL = tuple(
    Life(weather, *end)
    for number, weather in enumerate(WEATHERS)
    for end in (
        *((one.end, one.table) for one in ENDS),
        *((point,) for point in POINTS[number % 2 :: 2]),
    )
)
ON_HDFS = tuple(Life("fair", point) for point in POINTS)
ON_CLOUDS = tuple(
    Life(weather, one.end, one.table)
    # Its listings are spelled otherwise than those of which the proxy can hide parts.
    for weather, one in zip(cycle(w for w in WEATHERS if w != "lagging-lists"), ENDS, strict=False)
)
SOURCES = {"transactional": "files", "opaque": "log"}
CLOCKS = {"transactional": 86_400.0, "opaque": -86_400.0}
"""Seconds that the server's clock is ahead."""


@dataclass(frozen=True)
class Case:
    """One chain."""

    server: str
    kind: str

    @property
    def lives(self) -> tuple[Life, ...]:
        own = {"hdfs": ON_HDFS, "yarn": ON_HDFS, "azure": ON_CLOUDS, "gcs": ON_CLOUDS}
        if self.server in own:
            return own[self.server]
        return FULL if THOROUGH else SUITE[self.kind]


SERVERS: dict[str, Any] = {
    "s3": S3Server,
    "versity": VersityServer,
    "azure": AzureServer,
    "gcs": GcsServer,
    "hdfs": HdfsServer,
    "yarn": Yarn,
}
CASES = [Case(server, kind) for server in SERVERS for kind in SUITE]


class Chains:
    """The chains that were lived through, each once."""

    def __init__(self, folders: pytest.TempPathFactory, resources: ExitStack) -> None:
        self._folders = folders
        self._resources = resources
        self._found: dict[Case, Lived] = {}
        self._servers: dict[str, Any] = {}

    def of(self, case: Case) -> Lived:
        if case not in self._found:
            folder = self._folders.mktemp(f"{case.server}-{case.kind}")
            place = self._place(case)
            source, clock = SOURCES[case.kind], CLOCKS[case.kind]
            self._found[case] = live_on(place, folder, case.lives, case.kind, source, clock)
        return self._found[case]

    def _place(self, case: Case) -> Place:
        server = self._server(case.server)
        if case.server == "hdfs":
            return Place(f"{server.url}/{case.kind}", {}, {})
        if case.server == "yarn":
            return self._yarn(server, case)
        proxy = self._resources.enter_context(Proxy(server.url))
        if case.server == "azure":
            return self._azure(server, case, proxy)
        if case.server == "gcs":
            return self._gcs(server, case, proxy)
        direct, through = storage_options(server.url), storage_options(proxy.url)
        location = f"s3://{server.bucket(case.kind)}/warehouse"
        return Place(location, direct, through, S3A_PACKAGES, proxy)

    def _yarn(self, server: Yarn, case: Case) -> Place:
        patched = self._resources.enter_context(pytest.MonkeyPatch.context())
        for name, value in server.environ.items():
            patched.setenv(name, value)
        location = f"{server.file_system}/{case.kind}"
        return Place(location, {}, {}, conf=server.conf, master="yarn")

    def _azure(self, server: AzureServer, case: Case, proxy: Proxy) -> Place:
        folder = server.folder / "tls"
        folder.mkdir(exist_ok=True)
        front = self._resources.enter_context(TlsFront(folder, proxy.url))
        # For all JVMs that are started from now on: it is no setting of Spark's that can be late.
        patched = self._resources.enter_context(pytest.MonkeyPatch.context())
        patched.setenv("JDK_JAVA_OPTIONS", front.java_options)
        direct, through = azure.storage_options(server.straight), azure.storage_options(proxy.url)
        container = f"{server.bucket(case.kind)}@{ACCOUNT}.dfs.core.windows.net"
        conf = azure.spark_conf(front.host)
        return Place(f"abfss://{container}/warehouse", direct, through, ABFS_PACKAGES, proxy, conf)

    def _gcs(self, server: GcsServer, case: Case, proxy: Proxy) -> Place:
        folder = self._folders.mktemp("gcs-json")
        spark = self._resources.enter_context(JsonServer(folder, server.data))
        direct, through = gcs.storage_options(server.url), gcs.storage_options(proxy.url)
        location = f"gs://{server.bucket(case.kind)}/warehouse"
        return Place(location, direct, through, GCS_PACKAGES, proxy, gcs.spark_conf(spark.url))

    def _server(self, name: str) -> Any:
        if name not in self._servers:
            below = [self._server("hdfs").url] if name == "yarn" else []
            made = SERVERS[name](self._folders.mktemp(name), *below)
            self._servers[name] = self._resources.enter_context(made)
        return self._servers[name]


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chains]:
    with ExitStack() as resources:
        yield Chains(tmp_path_factory, resources)


@pytest.fixture(params=CASES, ids=lambda case: f"{case.server}-{case.kind}")
def chain(request: pytest.FixtureRequest, chains: Chains) -> Lived:
    return chains.of(request.param)


def test_a_killed_driver_leaves_tables_that_equal_the_oracle(chain: Lived) -> None:
    """After each kill, and after the next driver's life, each table equals the oracle, row for
    row.
    """
    for step, life in enumerate(chain.lives):
        left, continued = chain.after_kill[step], chain.after_restart(step)
        for table in TABLES:
            assert_consistent(chain.records, table, left[table])
            assert_consistent(chain.records, table, continued[table])
        before, after = (
            sum(len(image.publications) for image in one.values()) for one in (left, continued)
        )
        assert after > before, life.name


def test_in_the_end_every_record_is_there_once(chain: Lived) -> None:
    """Nothing is lost and nothing is doubled, whatever became of the requests."""
    assert chain.report["ended"] == "caught_up"
    for table in TABLES:
        image = chain.end[table]
        assert image.end == len(chain.records)
        assert_consistent(chain.records, table, image)
        assert image.is_in_order
    rows, *others = ([(p.txid, p.start, p.end) for p in chain.end[t].final] for t in TABLES)
    assert [rows, rows] == others


def test_no_file_of_a_dead_attempt_is_visible(chain: Lived) -> None:
    """No reader ever sees a file of an attempt that died.

    A transactional table keeps the rows of a publication that landed, when a replay comes.
    """
    for image in (one[table] for table in TABLES for one in (*chain.after_kill, chain.end)):
        stand = image.final if chain.kind == "opaque" else image.publications
        assert set(image.files) <= {(p.txid, p.attempt) for p in stand}


def test_the_weather_was_met(chain: Lived) -> None:
    """Each weather has struck. In a long chain one life of many may have been lucky."""
    met = {life.weather for life, times in zip(chain.lives, chain.struck, strict=True) if times}
    assert met >= {life.weather for life in chain.lives} - {"fair"}
