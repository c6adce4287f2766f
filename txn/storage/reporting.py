"""A store that reports its requests (`txn.requests`), for metrics and traces.

It sees only this process's own requests. Spark's tasks and delta-rs have their own clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from txn.requests import report_request
from txn.storage.store import Entry, Store, TooLargeError

__all__ = ["ReportingStore"]


class ReportingStore(Store):
    """Wraps `store` and reports each call as one request."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, path: str, limit: int | None = None) -> bytes | None:
        return report_request(
            "storage", "get", lambda: self._store.get(path, limit), (TooLargeError,)
        )

    def beginning(self, path: str, length: int) -> bytes | None:
        return report_request("storage", "beginning", lambda: self._store.beginning(path, length))

    def tail(self, path: str, length: int, size: int | None = None) -> bytes | None:
        return report_request("storage", "tail", lambda: self._store.tail(path, length, size))

    def head(self, paths: Sequence[str]) -> list[Entry | None]:
        return report_request("storage", "head", lambda: self._store.head(paths))

    def walk(self, folder: str = "", after: str = "") -> Iterator[Entry]:
        """See `Store`; reported at the first file. Later pages of a long listing are not."""
        entries: Iterator[Entry] = iter(())

        def begin() -> Entry | None:
            nonlocal entries
            entries = self._store.walk(folder, after)
            return next(entries, None)

        first = report_request("storage", "walk", begin)
        if first is not None:
            yield first
            yield from entries

    def children(self, folder: str = "") -> tuple[list[str], list[Entry]]:
        return report_request("storage", "children", lambda: self._store.children(folder))

    def put_if_absent(self, path: str, data: bytes) -> bool:
        return report_request(
            "storage", "put_if_absent", lambda: self._store.put_if_absent(path, data)
        )

    def put(self, path: str, data: bytes) -> None:
        report_request("storage", "put", lambda: self._store.put(path, data))

    def delete(self, paths: Iterable[str]) -> None:
        report_request("storage", "delete", lambda: self._store.delete(paths))

    def delete_folder(self, folder: str) -> None:
        report_request("storage", "delete_folder", lambda: self._store.delete_folder(folder))
