"""Staging in an object store: how many requests, and what tasks that fail or linger may do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stores.proxy import Fail, Late, LoseAnswer, Proxy, Request, puts
from tests.stores.s3 import S3Server
from txn.spark.versions import running_spark

ROOT = Path(__file__).parent.parent.parent
HERE = "local[2,3]"
"""Tasks are tried again, which they are not with plain `local[2]`."""
CLUSTER = "local-cluster[1,2,512]"
"""One executor, a process of its own, with two cores."""


class Stager:
    """The process of `tests.faults.staging_driver`, behind a proxy."""

    def __init__(self, url: str, bucket: str, master: str) -> None:
        command = [sys.executable, "-m", "tests.faults.staging_driver", url, bucket, master]
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
        assert self._answer() == {"ready": True}

    def do(self, step: str) -> dict[str, Any]:
        """Take one step; its answer."""
        assert self._child.stdin is not None
        print(step, file=self._child.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        found: dict[str, Any] = json.loads(self._child.stdout.readline())
        return found

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(60)
        assert self._child.stdout is not None
        self._child.stdout.close()


def placed(s3: S3Server, name: str, master: str) -> Iterator[tuple[Stager, Proxy, str]]:
    bucket = s3.bucket(name)
    with Proxy(s3.url) as proxy:
        stager = Stager(proxy.url, bucket, master)
        stager.do("lead")
        yield stager, proxy, bucket
        stager.close()


@pytest.fixture(scope="module")
def place(s3: S3Server) -> Iterator[tuple[Stager, Proxy, str]]:
    """A process that stages, the proxy before it, and its bucket."""
    yield from placed(s3, "staging", HERE)


@pytest.fixture(scope="module")
def far_place(s3: S3Server) -> Iterator[tuple[Stager, Proxy, str]]:
    """One with executors of its own."""
    yield from placed(s3, "staging-far", CLUSTER)


class FirstFile:
    """Whether a request puts the first file that is put into a staging folder of table `t`.

    S3's client repeats it under the same name, until its task attempt gives up.
    """

    def __init__(self) -> None:
        self.key = ""

    def __call__(self, request: Request) -> bool:
        if not puts("t/data/")(request):
            return False
        self.key = self.key or request.key
        return request.key == self.key


def asked(proxy: Proxy, part: str) -> Counter[str]:
    """The requests so far to keys with a part in their name, by operation."""
    return Counter(entry.operation for entry in proxy.log if part in f"/{entry.request.key}")


def looks_before(files: int) -> Counter[str]:
    """Requests with which Hadoop 3.3, the one of Spark 3.5, asks whether a new file is there."""
    return Counter(HEAD=files, LIST=files) if running_spark().minor == "3.5" else Counter()


def staged(s3: S3Server, bucket: str) -> dict[str, bytes]:
    """Key -> content of all that lies in the staging folders of table `t`."""
    root = s3.folder / "data" / bucket
    return {key: (root / key).read_bytes() for key in s3.keys(bucket) if key.startswith("t/data/")}


def test_a_file_is_staged_with_three_requests(place: Any, s3: S3Server) -> None:
    """A staged file is put once and looked at twice: nothing is listed, copied or deleted."""
    stager, proxy, bucket = place
    stager.do("stage")  # Delta looks once for a log that is not there
    stager.do("discard")
    proxy.forget()
    (path,) = stager.do("stage")["files"]
    found = Counter(entry.operation for entry in proxy.log)
    assert found == Counter(PUT=1, HEAD=1, GET=1) + looks_before(1)
    assert [*staged(s3, bucket)] == [f"t/{path}"]
    stager.do("discard")
    assert staged(s3, bucket) == {}


def test_a_task_that_is_tried_again_leaves_a_file_that_nobody_publishes(
    place: Any, s3: S3Server
) -> None:
    """A file of a failed task attempt is not staged; it stays in the batch's folder and is deleted
    with it.
    """
    stager, proxy, bucket = place
    first = FirstFile()
    proxy.inject(LoseAnswer(403), first)
    answer = stager.do("stage")
    assert answer["rows"] == 1000
    (path,) = answer["files"]
    written = staged(s3, bucket)
    assert written.keys() == {first.key, f"t/{path}"}
    assert {key.rpartition("/")[0] for key in written} == {f"t/{path}".rpartition("/")[0]}
    stager.do("discard")
    assert staged(s3, bucket) == {}


def test_a_task_that_lives_too_long_overwrites_nothing(place: Any, s3: S3Server) -> None:
    """The file of a task attempt that was given up lands later, under a name of its own."""
    stager, proxy, bucket = place
    first = FirstFile()
    proxy.inject(Late(20.0, 403), first)
    (path,) = stager.do("stage")["files"]
    published = staged(s3, bucket)
    assert [*published] == [f"t/{path}"]
    proxy.settle()
    landed = staged(s3, bucket)
    assert landed.keys() - published == {first.key}
    assert landed[f"t/{path}"] == published[f"t/{path}"]
    stager.do("discard")


def test_a_store_that_is_busy_is_asked_again(place: Any, s3: S3Server) -> None:
    """503s while a file is written: the rows are staged once."""
    stager, proxy, bucket = place
    busy = proxy.inject(Fail(503, "SlowDown"), puts("t/data/"), nth=(1, 2))
    answer = stager.do("stage")
    assert len(busy.met) == 2
    assert (answer["rows"], len(answer["files"])) == (1000, 1)
    assert [*staged(s3, bucket)] == [f"t/{path}" for path in answer["files"]]
    stager.do("discard")


@pytest.fixture
def counted(place: Any) -> Callable[[int], dict[str, int]]:
    """A state of a thousand keys in sixteen buckets, and what it is after so many transactions."""
    stager, proxy, _ = place
    stager.do("prepare")
    stager.do("publish")
    begun = stager.do("read")["n"] // 1000
    proxy.forget()

    def after(more: int) -> dict[str, int]:
        times = begun + more
        return {"c": 1000, "n": times * 1000, "v": times * 999_000}

    return after


def test_sixteen_buckets_are_written_again_with_few_requests(place: Any, counted: Any) -> None:
    """A bucket takes one PUT, side by side; what this process has written it does not fetch, and
    partials do not travel at all.
    """
    stager, proxy, _ = place
    answer = stager.do("prepare")
    assert answer == {"adds": 16, "removes": 16}
    assert asked(proxy, "/txn_bucket=") == {"PUT": 16}
    assert {entry.client for entry in proxy.log} == {"obstore"}
    assert not asked(proxy, "/_txn/")
    assert len(proxy.log) == 2 + 16
    # Nobody looks at what this process itself has put there a moment ago.
    stager.do("publish")
    assert asked(proxy, "/_delta_log/") == {"GET": 2 + 3, "PUT IF ABSENT": 1}
    assert len(proxy.log) == 18 + 4
    assert stager.do("read") == counted(1)


def test_a_leader_fetches_once_what_another_has_written(place: Any, counted: Any) -> None:
    """Its first transaction takes one GET for each of sixteen buckets, and the next ones none."""
    stager, proxy, _ = place
    stager.do("lead")
    proxy.forget()
    for gets in (16, 0):
        stager.do("prepare")
        assert asked(proxy, "/txn_bucket=") == Counter(GET=gets, PUT=16)
        stager.do("publish")
        proxy.forget()
    assert stager.do("read") == counted(2)


def test_executors_look_once_at_a_file_that_the_log_tells_of(far_place: Any) -> None:
    """On a cluster a file is read with two requests, and nobody asks what lies where: for sixteen
    buckets 48 requests of staging, 114 of `prepare`, 20 of `publish` and 2 of clean-up.
    """
    stager, proxy, _ = far_place
    # Nobody reads the state before: S3A keeps small files that its process has read.
    stager.do("prepare")
    stager.do("publish")
    proxy.forget()
    assert stager.do("prepare") == {"adds": 16, "removes": 16}
    # Spark 4.1 and older open a Parquet file twice; 4.0 and older look at it before each time.
    looks = 4 * 16 if running_spark().minor in ("3.5", "4.0") else 16
    reads = 16 if running_spark().minor == "4.2" else 3 * 16
    # Put, looked at by its task; its footer and its size for the driver; read.
    staging = Counter(PUT=16, HEAD=16 + 16 + looks, GET=16 + reads) + looks_before(16)
    assert asked(proxy, "/_txn/") == staging
    # Read; put, looked at by its task.
    data = Counter(HEAD=looks + 16, GET=reads, PUT=16) + looks_before(16)
    assert asked(proxy, "/data/") == data
    total = 48 + 114 + 2 * (looks - 16 + reads - 16) + 2 * looks_before(16).total()
    assert len(proxy.log) == total
    stager.do("publish")
    assert len(proxy.log) == total + 20 + 2
    assert stager.do("read") == {"c": 1000, "n": 2 * 1000, "v": 2 * 999_000}


def test_a_bucket_that_cannot_be_written_is_not_published(
    place: Any, s3: S3Server, counted: Any
) -> None:
    """A store that refuses one of sixteen files fails the attempt, and its files go with it."""
    stager, proxy, bucket = place
    before = {key for key in s3.keys(bucket) if key.startswith("u/")}
    refused = proxy.inject(Fail(403, "AccessDenied"), puts("/txn_bucket=7/"), nth=1)
    answer = stager.do("prepare")
    assert len(refused.met) == 1
    assert "StorageRefusedError" in answer["error"]
    stager.do("give up")
    assert {key for key in s3.keys(bucket) if key.startswith("u/")} == before
    assert stager.do("prepare") == {"adds": 16, "removes": 16}
    stager.do("publish")
    assert stager.do("read") == counted(1)


def test_a_bucket_is_written_although_the_store_is_busy(place: Any, counted: Any) -> None:
    """503s and a lost answer while buckets are written: each is asked for again, and lands once."""
    stager, proxy, _ = place
    busy = proxy.inject(Fail(503, "SlowDown"), puts("/txn_bucket=3/"), nth=1)
    lost = proxy.inject(LoseAnswer(), puts("/txn_bucket=4/"), nth=1)
    assert stager.do("prepare") == {"adds": 16, "removes": 16}
    stager.do("publish")
    assert (len(busy.met), len(lost.met)) == (1, 1)
    assert stager.do("read") == counted(1)
