"""Requests to ZooKeeper and storage, told to those who listen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from txn.requests import Request, listen, report_request
from txn.storage.opening import open_store
from txn.storage.store import TooLargeError


@pytest.fixture
def heard() -> Iterator[list[Request]]:
    """What a listener is told."""
    requests: list[Request] = []
    end = listen(requests.append)
    yield requests
    end()


def fail() -> None:
    raise FileNotFoundError("gone")


def test_answers_and_errors_are_told(heard: list[Request]) -> None:
    """With their time; an error that is an answer is none."""
    assert report_request("zookeeper", "get", lambda: 7) == 7
    with pytest.raises(FileNotFoundError):
        report_request("storage", "head", fail)
    with pytest.raises(FileNotFoundError):
        report_request("storage", "head", fail, (FileNotFoundError,))
    assert [(each.service, each.operation, each.error) for each in heard] == [
        ("zookeeper", "get", None),
        ("storage", "head", "FileNotFoundError"),
        ("storage", "head", None),
    ]
    assert all(0 <= each.seconds < 10 for each in heard)


def test_who_has_ended_hears_nothing(heard: list[Request]) -> None:
    """And ending it twice ends nobody else."""
    other: list[Request] = []
    end = listen(other.append)
    report_request("storage", "get", lambda: 1)
    end()
    end()
    report_request("storage", "put", lambda: 1)
    assert [each.operation for each in other] == ["get"]
    assert [each.operation for each in heard] == ["get", "put"]


def test_each_call_of_a_store_is_a_request(heard: list[Request], tmp_path: Path) -> None:
    """Of every kind, and a listing is asked for when its first file is."""
    store, _ = open_store(str(tmp_path))
    store.put("a/1", b"one")
    assert store.put_if_absent("a/2", b"two")
    assert store.get("a/1") == b"one"
    with pytest.raises(TooLargeError):
        store.get("a/1", limit=1)
    assert store.tail("a/2", 2) == b"wo"
    assert [each is None for each in store.head(["a/1", "b"])] == [False, True]
    listing = store.walk()
    assert heard[-1].operation == "head"
    assert [entry.path for entry in listing] == ["a/1", "a/2"]
    assert store.children()[0] == ["a"]
    store.delete(["a/1"])
    store.delete_folder("a")
    assert [*store.walk()] == []
    assert [each.operation for each in heard] == [
        *("put", "put_if_absent", "get", "get", "tail", "head", "walk", "children"),
        *("delete", "delete_folder", "walk"),
    ]
    assert [each.error for each in heard] == [None] * 11
