"""Open a location with its `storage_options`. Sends nothing over the network."""

from __future__ import annotations

from collections.abc import Mapping

from txn.storage.addresses import Address, address_of
from txn.storage.hdfs import HdfsStore
from txn.storage.local import LocalStore
from txn.storage.locations import local_path
from txn.storage.objects import ObjectStore
from txn.storage.reporting import ReportingStore
from txn.storage.store import Store

__all__ = ["open_store"]


def open_store(
    location: str, options: Mapping[str, str] | None = None
) -> tuple[Store, Address | None]:
    """Open the store of a location; with it the location's address, None for a local path.

    Args:
        location: a local path, a `file:` URI, or a URI of `s3`, `s3a`, `s3n`, `gs`, `gcs`, `abfs`,
            `abfss`, `az`, `azure`, `wasb`, `wasbs`, `hdfs`, `viewfs`.
        options: `storage_options`.
    """
    path = local_path(location)
    if path is not None:
        return ReportingStore(LocalStore(path)), None
    address = address_of(location)
    if address.kind == "hdfs":
        return ReportingStore(HdfsStore(address, options or {})), address
    return ReportingStore(ObjectStore(address, options or {})), address
