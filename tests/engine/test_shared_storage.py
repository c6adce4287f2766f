"""Before the first txid: executors and this process read what the other has written."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.stores.proxy import Fail, Proxy, Request
from tests.stores.s3 import S3Server, storage_options
from txn.engine.base import shared_folders
from txn.engine.base.shared_folders import try_folder
from txn.errors import TopologyError
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession


def reads(client: str, part: str) -> Callable[[Request], bool]:
    """Whether a client reads an object with that in its key."""
    return lambda request: (
        request.client == client and request.operation == "GET" and part in request.key
    )


def test_one_storage_is_one_for_both(spark: SparkSession, s3: S3Server) -> None:
    """Nothing is refused and nothing stays there, where both see the same bucket."""
    bucket = s3.bucket("shared")
    with Proxy(s3.url) as proxy:
        try_folder(spark, Storage(f"s3://{bucket}/t", storage_options(proxy.url)))
        asked = {entry.operation for entry in proxy.log if "/answered" in entry.request.key}
    assert s3.keys(bucket) == []
    assert asked == {"PUT", "HEAD", "GET"}, "what executors wrote is not looked for in a listing"


@pytest.mark.parametrize(
    ("client", "part", "why"),
    [
        ("obstore", "/answered", "this process sees 0 of 4 lines"),
        ("s3a", "/asked", "an executor could not read there"),
    ],
)
def test_two_storages_of_one_name_are_refused(
    spark: SparkSession, s3: S3Server, client: str, part: str, why: str
) -> None:
    """What only one side sees is told before anything is planned."""
    bucket = s3.bucket("shared")
    with Proxy(s3.url) as proxy:
        proxy.inject(Fail(404, "NoSuchKey"), reads(client, part))
        with pytest.raises(TopologyError, match=f"do not see the same files.*{why}"):
            try_folder(spark, Storage(f"s3://{bucket}/t", storage_options(proxy.url)))
    assert s3.keys(bucket) == []


def test_a_local_folder_is_left_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """No folder is made for a table that is only tried."""
    try_folder(spark, Storage(str(tmp_path / "no" / "t")))
    assert [*(tmp_path / "no").iterdir()] == []


class Lost(PySparkException):
    """Spark's error, by its condition."""

    __module__ = PySparkException.__module__

    def __init__(self, condition: str) -> None:
        super().__init__(f"[{condition}] words of Spark")
        self._condition = condition

    def getCondition(self) -> str:  # noqa: N802 - Spark's name
        return self._condition

    getErrorClass = getCondition  # noqa: N815 - the name of 3.5


@pytest.mark.parametrize(
    ("errors", "tries"),
    [
        (["INTERNAL_ERROR_EXECUTOR"], 2),
        (["INTERNAL_ERROR_EXECUTOR"] * 3, 3),
        (["FAILED_READ_FILE.FILE_NOT_EXIST"], 1),
        (["DIVIDE_BY_ZERO"], 1),
    ],
)
def test_an_executor_that_is_lost_proves_nothing(
    errors: list[str], tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again, twice; a file that it does not see is told at once, with Spark's words."""
    asked = []

    def read(*arguments: object) -> set[str]:
        asked.append(arguments)
        if len(asked) <= len(errors):
            raise Lost(errors[len(asked) - 1])
        return {"seen"}

    monkeypatch.setattr(shared_folders, "_read_answers", read)
    answer = partial(shared_folders._answers, None, Storage(str(tmp_path)), "f")
    if len(errors) < tries:
        assert answer() == {"seen"}
    else:
        with pytest.raises(TopologyError, match="could not read there .*words of Spark"):
            answer()
    assert len(asked) == tries
