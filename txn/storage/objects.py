"""Object stores: S3, Google Cloud Storage and Azure, through object_store, as delta-rs.

`storage_options` have object_store's names, in upper or lower case, and are the same for delta-rs.
Missing options come from the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`), and credentials that
are not there either from the platform: a web identity, a container or an instance role. botocore,
if it is installed, reads a profile of AWS's configuration files.

The client never retries (`max_retries` is for delta-rs alone): `txn.storage.retrying` retries what
may be repeated; the writer of a conditional PUT, which can check whether it has landed, retries it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from txn.errors import StorageRefusedError, TopologyError
from txn.storage.addresses import AZURE_ACCOUNT_OPTIONS, AZURE_DOMAIN, Address, option
from txn.storage.asking import if_there, in_parallel
from txn.storage.profiles import profile_for
from txn.storage.retrying import client_message, names_no_bucket
from txn.storage.store import Entry, Store, TooLargeError

if TYPE_CHECKING:
    from obstore import ObjectMeta, SuffixRange
    from obstore.store import AzureConfig, AzureStore, GCSConfig, GCSStore, S3Config, S3Store

__all__ = ["ObjectStore"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_WITH_CREDENTIALS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)?//[^/]*@")
_ENVIRONMENT = {"s3": "AWS", "gs": "GOOGLE", "azure": "AZURE"}
_PAGE = 1000
"""Objects in one page of a listing and in one bulk deletion: the limit of S3."""
_DELTA_ONLY = re.compile(
    r"max_retries|retry_timeout|backoff_config\..*|max_concurrency"
    r"|(aws_)?s3_(locking_provider|allow_unsafe_rename|pool_idle_timeout_seconds"
    r"|sts_pool_idle_timeout_seconds|get_internal_server_error_retries|assume_role_arn"
    r"|role_session_name)|(aws_)?iam_role_(arn|session_name)|aws_force_credential_load"
    r"|(aws_)?dynamo_.*|delta_dynamo_.*|aws_(access_key_id|secret_access_key|session_token|region"
    r"|endpoint_url)_dynamodb|allow_unsafe_rename"
)
"""Options of delta-rs that object_store does not have."""


class ObjectStore(Store):
    """Objects below a prefix of one bucket; the client is made at the first call.

    Args:
        address: bucket and prefix.
        options: `storage_options`.
    """

    def __init__(self, address: Address, options: Mapping[str, str]) -> None:
        self._address = address
        self._options = options
        self._lock = threading.Lock()
        self._made: S3Store | GCSStore | AzureStore | None = None

    def get(self, path: str, limit: int | None = None) -> bytes | None:
        def whole() -> bytes:
            response = self._client.get(path)
            if limit is not None and (size := response.meta["size"]) > limit:
                raise TooLargeError(f"'{path}' has {size:,} bytes")
            return bytes(response.bytes())

        return if_there(whole)

    def beginning(self, path: str, length: int) -> bytes | None:
        return if_there(lambda: self._ranged(path, (0, length)))

    def tail(self, path: str, length: int, size: int | None = None) -> bytes | None:
        if self._address.kind == "azure":
            return if_there(lambda: self._range(path, length, size))
        return if_there(lambda: self._ranged(path, {"suffix": length}))

    def _ranged(self, path: str, span: tuple[int, int] | SuffixRange) -> bytes:
        from obstore.exceptions import GenericError

        try:
            return bytes(self._client.get(path, options={"range": span}).bytes())
        except GenericError as error:
            if "416 " in str(error):  # an empty object has no bytes to begin with
                return b""
            raise

    def _range(self, path: str, length: int, size: int | None) -> bytes:
        size = self._client.head(path)["size"] if size is None else size
        if size == 0:
            return b""
        return bytes(self._client.get_range(path, start=max(0, size - length), end=size))

    def head(self, paths: Sequence[str]) -> list[Entry | None]:
        return in_parallel(self._file_entry, paths)

    def _file_entry(self, path: str) -> Entry | None:
        # obstore 0.11, the last one for Python 3.10, returns the path in the bucket.
        return if_there(lambda: _entry(self._client.head(path))._replace(path=path))

    def walk(self, folder: str = "", after: str = "") -> Iterator[Entry]:
        with self._refusing_odd_keys():
            pages = self._client.list(folder or None, offset=after or None, chunk_size=_PAGE)
            entries = (_entry(one) for page in pages for one in page)
            yield from _without_markers(entries, folder)

    def children(self, folder: str = "") -> tuple[list[str], list[Entry]]:
        with self._refusing_odd_keys():
            listing = self._client.list_with_delimiter(folder or None)
        entries = _without_markers((_entry(one) for one in listing["objects"]), folder)
        return sorted(listing["common_prefixes"]), [*entries]

    @contextlib.contextmanager
    def _refusing_odd_keys(self) -> Iterator[None]:
        """Refuse a listing that object_store gives up at a key that is no path: `a//b`."""
        from obstore.exceptions import InvalidPathError

        try:
            yield
        except InvalidPathError as error:
            raise StorageRefusedError(
                f"Nothing below '{self._address.for_delta}' can be listed, because an object there "
                f"has a key that is no path: {client_message(error)}. Rename or delete that object "
                "(the store's own tools can), or name a folder that does not have it below."
            ) from error

    def put_if_absent(self, path: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        try:
            self._client.put(path, data, mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            if self._address.kind == "s3" and "409 Conflict" in str(error):
                # S3 dropped the request because of another one at the same moment; it does not
                # report whether the file exists now.
                raise OSError(
                    errno.EAGAIN, "S3 refused a conditional write that crossed another one (409)"
                ) from error
            return False
        return True

    def put(self, path: str, data: bytes) -> None:
        self._client.put(path, data, use_multipart=False)

    def delete(self, paths: Iterable[str]) -> None:
        left = iter(paths)
        while some := [*islice(left, _PAGE)]:
            try:
                self._client.delete(some)
            except FileNotFoundError as error:
                if names_no_bucket(error):
                    raise
                # Google and Azure stop at the first file that is already gone.
                in_parallel(lambda path: if_there(lambda: self._client.delete(path)), some)

    @property
    def _client(self) -> S3Store | GCSStore | AzureStore:
        with self._lock:
            if self._made is None:
                self._made = _make_client(self._address, self._options)
            return self._made


def _entry(meta: ObjectMeta) -> Entry:
    since = meta["last_modified"] - _EPOCH
    modified_ns = (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
    # Not the id of a version: a HEAD returns one, a listing does not. Azure quotes the ETag in
    # one of the two.
    version = (meta["e_tag"] or "").strip('"') or None
    return Entry(meta["path"], meta["size"], version, modified_ns)


def _without_markers(entries: Iterator[Entry], folder: str) -> Iterator[Entry]:
    """Leave out the empty objects `folder/` by which Hadoop and consoles show a folder.

    object_store drops the slash of their names, and lists the files below right after them.
    """
    before: Entry | None = None
    for entry in entries:
        if before and not (before.size == 0 and entry.path.startswith(f"{before.path}/")):
            yield before
        before = None if entry.path == folder else entry
    if before:
        yield before


def _make_client(address: Address, options: Mapping[str, str]) -> S3Store | GCSStore | AzureStore:
    """Make a client that never retries. Sends nothing over the network.

    Raises:
        TopologyError: an option is unknown or invalid.
    """
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, S3Store

    _refuse_credentials(address, options)
    config: dict[str, Any] = {
        name: value
        for name, value in ((name.lower(), value) for name, value in options.items())
        if not _DELTA_ONLY.fullmatch(name)
    }
    common: dict[str, Any] = {"prefix": address.folder or None, "retry_config": {"max_retries": 0}}
    try:
        match address.kind:
            case "s3":
                provider = profile_for(options)
                if provider is not None:
                    config |= {"aws_region": provider.region} if provider.region else {}
                    common["credential_provider"] = provider
                return S3Store(address.bucket, config=cast("S3Config", config), **common)
            case "gs":
                return GCSStore(address.bucket, config=cast("GCSConfig", config), **common)
            case _:
                own = cast("AzureConfig", _azure(address, config))
                return AzureStore(address.bucket, config=own, **common)
    except (BaseError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise TopologyError(
            f"Folder '{address.for_delta}' cannot be opened: {reason} Correct storage_options: "
            "their names are object_store's, such as aws_endpoint_url.",
            number="TXN-121",
        ) from None  # its text may quote a value


def _refuse_credentials(address: Address, options: Mapping[str, str]) -> None:
    """Refuse credentials in a URL: a client's errors show it, but not the URL of a proxy."""
    endpoint = re.compile(f"{_ENVIRONMENT[address.kind]}_.*(ENDPOINT|BASE_URL).*")
    around = {name: value for name, value in os.environ.items() if endpoint.fullmatch(name)}
    for name, value in {**around, **options}.items():
        if _WITH_CREDENTIALS.match(value.strip()) and name.lower() != "proxy_url":
            raise TopologyError(
                f"Folder '{address.for_delta}' cannot be opened: {name} has credentials before its "
                "host, and messages show it. Give them as options of their own, such as "
                "aws_access_key_id and aws_secret_access_key.",
                number="TXN-121",
            )


def _azure(address: Address, config: dict[str, Any]) -> dict[str, Any]:
    """Add the account and the cloud to the options, if the location names them."""
    own: dict[str, Any] = {}
    if address.account and option(config, *AZURE_ACCOUNT_OPTIONS) is None:
        own["azure_storage_account_name"] = address.account
    if address.cloud == "fabric.microsoft.com":
        own["azure_use_fabric_endpoint"] = "true"
    elif address.cloud != AZURE_DOMAIN and option(config, "azure_endpoint", "endpoint") is None:
        own["azure_endpoint"] = f"https://{address.account}.blob.{address.cloud}"
    return config | own
