"""HDFS, through hdfs-native (the client inside delta-rs), without Java.

Name services, `viewfs` mounts and Kerberos are read from Hadoop's own configuration files
(`HADOOP_CONF_DIR`). `storage_options` may add settings by Hadoop's names (`dfs.client.…`).
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from txn.errors import TopologyError
from txn.storage.addresses import Address
from txn.storage.asking import if_there, in_parallel
from txn.storage.store import Entry, FileStore

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus

__all__ = ["HdfsStore"]

_SHORT = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.max.millis": "500",
}
"""By default the client retries for three minutes; `txn.storage.retrying` does so visibly."""


class HdfsStore(FileStore):
    """Files below a folder of HDFS; the client is made at the first call.

    Args:
        address: the name node or name service, and the folder.
        options: `storage_options`; those with a dot in their names are Hadoop's settings.
    """

    def __init__(self, address: Address, options: Mapping[str, str]) -> None:
        self._address = address
        self._options = {name: value for name, value in options.items() if "." in name}
        self._below = f"/{address.folder}/" if address.folder else "/"
        self._lock = threading.Lock()
        self._made: Client | None = None

    def _read(self, path: str, span: Callable[[int], tuple[int, int]]) -> bytes | None:
        def read() -> bytes:
            with self._client.read(self._place(path)) as file:
                start, end = span(len(file))
                return bytes(file.read_range(start, end - start))

        return if_there(read)

    def head(self, paths: Sequence[str]) -> list[Entry | None]:
        return in_parallel(self._file_entry, paths)

    def _file_entry(self, path: str) -> Entry | None:
        status = if_there(lambda: self._client.get_file_info(self._place(path)))
        return None if status is None or status.isdir else self._entry(status)

    def walk(self, folder: str = "", after: str = "") -> Iterator[Entry]:
        """See `Store`; lists everything before it yields the first file."""
        entries = [self._entry(one) for one in self._list(folder, recursive=True) if not one.isdir]
        entries.sort(key=lambda entry: entry.path.encode())
        start = after.encode()
        return iter([entry for entry in entries if not after or entry.path.encode() > start])

    def children(self, folder: str = "") -> tuple[list[str], list[Entry]]:
        listed = sorted(self._list(folder, recursive=False), key=lambda status: status.path)
        folders = [self._relative_path(status) for status in listed if status.isdir]
        return folders, [self._entry(status) for status in listed if not status.isdir]

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """See `Store`: the name node renames a whole file to a name that is free, or refuses."""
        return self._put(path, data, overwrite=False)

    def put(self, path: str, data: bytes) -> None:
        self._put(path, data, overwrite=True)

    def _put(self, path: str, data: bytes, *, overwrite: bool) -> bool:
        from hdfs_native import WriteOptions

        folder, _, name = self._place(path).rpartition("/")
        temporary = f"{folder}/.{name}.{uuid.uuid4().hex}.tmp"
        try:
            with self._client.create(temporary, WriteOptions(create_parent=True)) as file:
                file.write(data)
            self._client.rename(temporary, self._place(path), overwrite)
        except FileExistsError:
            self._client.delete(temporary)
            return False
        except BaseException:
            with contextlib.suppress(Exception):  # raise the first error
                self._client.delete(temporary)
            raise
        return True

    def delete(self, paths: Iterable[str]) -> None:
        """See `Store`; one request per file."""
        in_parallel(lambda path: self._client.delete(self._place(path)), [*paths])

    def delete_folder(self, folder: str) -> None:
        self._client.delete(self._place(folder), recursive=True)

    def _list(self, folder: str, *, recursive: bool) -> list[FileStatus]:
        place = self._place(folder)
        listed = if_there(lambda: [*self._client.list_status(place, recursive)])
        # For the path of a file, the client lists the file itself.
        return [status for status in listed or () if status.path != place]

    def _place(self, path: str) -> str:
        return (self._below + path).rstrip("/") or "/"

    def _relative_path(self, status: FileStatus) -> str:
        return status.path[len(self._below) :]

    def _entry(self, status: FileStatus) -> Entry:
        modified_ns = status.modification_time * 1_000_000
        return Entry(self._relative_path(status), status.length, None, modified_ns)

    @property
    def _client(self) -> Client:
        with self._lock:
            if self._made is None:
                self._made = _make_client(self._address, self._options)
            return self._made


def _make_client(address: Address, options: Mapping[str, str]) -> Client:
    """Make a client. Sends nothing over the network.

    Raises:
        TopologyError: hdfs-native is not installed, or does not know the name service.
    """
    url = f"{address.scheme}://{address.bucket}"
    try:
        from hdfs_native import Client
    except ImportError as error:
        raise TopologyError(
            f"Folder '{address.for_delta}' cannot be opened: HDFS needs the extra 'hdfs'. Install "
            "it: pip install 'txn-spark[hdfs]'.",
            number="TXN-121",
        ) from error
    try:
        return Client(url, {**_SHORT, **options})
    except (OSError, ValueError, RuntimeError) as error:
        raise TopologyError(
            f"Folder '{address.for_delta}' cannot be opened: {error}. Write "
            f"{address.scheme}://HOST:PORT/FOLDER, or let HADOOP_CONF_DIR name the folder with the "
            "cluster's core-site.xml and hdfs-site.xml.",
            number="TXN-121",
        ) from error
