"""Storage that fails for a moment, or for good: real clients against a server that says so."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import deltalake
import pytest
from pyarrow import fs

from txn.errors import StorageRefusedError, StorageUnavailableError
from txn.storage.opening import open_store
from txn.storage.retrying import RetryLimits, client_message, is_momentary, is_refusal, retried

Ask = Callable[[], object]


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    @property
    def patience(self) -> RetryLimits:
        """Ten seconds of it."""
        return RetryLimits(10, 0.5, 4, clock=lambda: self.now, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def failing(*errors: Exception) -> Ask:
    """An operation that raises these, one each time, and then succeeds."""
    left = list(errors)

    def operation() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return operation


def test_a_moment_is_waited_out_with_back_off() -> None:
    """An operation is asked again, after ever longer waits, until it succeeds."""
    time, disk = Time(), OSError(errno.EIO, "Input/output error")
    assert retried(failing(*[disk] * 4), "read x", time.patience) == "done"
    assert time.slept == [0.5, 1, 2, 4]


def test_after_the_deadline_the_batch_waits() -> None:
    """Storage that stays away is told with what was to be done, and what it said."""
    time = Time()
    with pytest.raises(StorageUnavailableError, match=r"could not read x within 10 s: .*stale"):
        retried(failing(*[OSError(errno.ESTALE, "stale")] * 99), "read x", time.patience)
    assert sum(time.slept) <= 10


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "gone"), KeyError("mine")])
def test_what_is_no_fault_of_storage_comes_as_it_is(error: Exception) -> None:
    """A file that is not there, and a mistake of ours, are neither waited for nor renamed."""
    time = Time()
    with pytest.raises(type(error)) as raised:
        retried(failing(error), "read x", time.patience)
    assert raised.value is error
    assert time.slept == []


@pytest.mark.parametrize("folder", ["AccessDenied", "a 403 Forbidden", "NoSuchBucket"])
def test_words_of_a_path_are_no_refusal(folder: str) -> None:
    """A server that is away for a moment is waited for, whatever the table's folder is called."""
    options = {
        "aws_access_key_id": "a",
        "aws_secret_access_key": "b",
        "aws_region": "us-east-1",
        "aws_endpoint_url": "http://127.0.0.1:9",  # nobody listens on "discard"
        "aws_allow_http": "true",
    }
    store, _ = open_store(f"s3://b/{folder}/t", options)
    for ask in (lambda: store.get("x"), lambda: [*store.walk()], lambda: store.delete(["x"])):
        with pytest.raises(Exception, match="error sending request") as raised:
            ask()
        assert (is_refusal(raised.value), is_momentary(raised.value)) == (False, True)


def test_a_message_is_one_line_without_a_user() -> None:
    """What clients write for terminals, and the credentials of a URL, are left out."""
    error = OSError("\x1b[31mGeneric S3 error\x1b[0m\n ↳ GET https://me:4@7@h:1/b/x?y=a@b failed.")
    assert client_message(error) == "Generic S3 error: GET https://h:1/b/x?y=a@b failed"


# --- what real clients say -----------------------------------------------------------------------

ANSWERS = {
    "busy": (503, "SlowDown"),
    "broken": (500, "InternalError"),
    "denied": (403, "AccessDenied"),
    "no-bucket": (404, "NoSuchBucket"),
}


class Refusing(BaseHTTPRequestHandler):
    """An S3 that answers every request to a bucket in one way, which the bucket's name says."""

    def answer(self) -> None:
        """One error of S3's."""
        status, code = ANSWERS[self.path.split("/")[1].split("?")[0]]
        body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_DELETE = do_PUT = do_POST = answer  # noqa: N815 - the library's names

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of a server that refuses."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def clients(endpoint: str, bucket: str) -> dict[str, Ask]:
    """How the product asks storage, by client and kind of question."""
    arrow = fs.S3FileSystem(
        access_key="a",
        secret_key="b",
        region="us-east-1",
        scheme="http",
        endpoint_override=endpoint,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
    )
    options = {
        "aws_access_key_id": "a",
        "aws_secret_access_key": "b",
        "aws_region": "us-east-1",
        "aws_endpoint_url": f"http://{endpoint}",
        "allow_http": "true",
        "max_retries": "0",
    }
    return {
        "arrow reads": lambda: arrow.open_input_stream(f"{bucket}/t/x").read(),
        "arrow lists": lambda: arrow.get_file_info(fs.FileSelector(f"{bucket}/t")),
        "arrow looks": lambda: arrow.get_file_info([f"{bucket}/t/x"]),
        "delta-rs loads": lambda: deltalake.DeltaTable(f"s3://{bucket}/t", storage_options=options),
    }


@pytest.mark.parametrize("bucket", ANSWERS)
def test_what_real_clients_say_is_understood(endpoint: str, bucket: str) -> None:
    """Throttling and faults of a server are waited out; a permission and a bucket that is not there
    are told at once.
    """
    refused = bucket in ("denied", "no-bucket")
    judged, waits = {}, {}
    for name, ask in clients(endpoint, bucket).items():
        time = Time()
        try:
            retried(ask, "ask", time.patience)
        except Exception as error:  # noqa: BLE001 - its kind is what is judged
            judged[name] = error
        waits[name] = bool(time.slept)
    expected = StorageRefusedError if refused else StorageUnavailableError
    wrong = {
        name: repr(error)[:300] for name, error in judged.items() if type(error) is not expected
    }
    # S3 answers HEAD without a body: that a bucket is not there looks like a file that is not.
    assert {k: v for k, v in wrong.items() if not (refused and "FileNotFound" in v)} == {}
    assert set(waits.values()) == {not refused}
    assert judged


def test_a_disk_that_fails_is_told_from_one_that_forbids(tmp_path: Path) -> None:
    """A folder that cannot be looked at for a moment is waited for; what is not there is not."""
    loop, local = tmp_path / "loop", fs.LocalFileSystem()
    loop.symlink_to(loop)  # every look into it fails, as with a mount that has gone away
    time = Time()
    with pytest.raises(StorageUnavailableError, match="symbolic links"):
        retried(lambda: local.open_input_stream(str(loop / "x")), "read x", time.patience)
    assert time.slept
    with pytest.raises(StorageRefusedError, match="Waiting does not help"):
        retried(failing(PermissionError(errno.EACCES, os.strerror(errno.EACCES))), "read x")
