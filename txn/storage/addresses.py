"""The address of a remote folder: parsed from a URI, spelled for delta-rs or for Spark.

Hadoop, delta-rs and object_store have different names for one storage: `s3a` is Hadoop's name for
`s3`; `az` and `wasbs` are others for `abfss`. Nothing here asks a network.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from txn.errors import TopologyError

__all__ = ["AZURE_ACCOUNT_OPTIONS", "AZURE_DOMAIN", "Address", "account_in", "address_of", "option"]

Kind = Literal["s3", "gs", "azure", "hdfs"]

_KINDS: dict[str, Kind] = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "azure",
    "abfss": "azure",
    "az": "azure",
    "azure": "azure",
    "wasb": "azure",
    "wasbs": "azure",
    "hdfs": "hdfs",
    "viewfs": "hdfs",
}
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)/?(.*)", re.DOTALL)
_HOST = re.compile(r"([^.@]+)\.(?:blob|dfs)\.(.+)")
AZURE_DOMAIN = "core.windows.net"
"""Azure's usual domain."""
AZURE_ACCOUNT_OPTIONS = ("azure_storage_account_name", "account_name")
"""Names of the option for Azure's account."""


@dataclass(frozen=True)
class Address:
    """A folder in an object store or on HDFS."""

    kind: Kind
    scheme: str
    """As the user wrote it, in lower case."""
    bucket: str
    """Bucket or container; on HDFS, the name node or name service ("" is Hadoop's default)."""
    folder: str
    """Without slashes at its ends; "" is the bucket itself."""
    account: str = ""
    """Azure's storage account, if the location names it."""
    cloud: str = AZURE_DOMAIN
    """Azure's domain behind `<account>.dfs.`."""

    @property
    def for_delta(self) -> str:
        """The URI that delta-rs takes."""
        if self.kind == "azure" and not self.account:
            return self._spelled("az", self.bucket)
        return self._spelled(*self._scheme_and_authority(self.account, "s3"))

    def for_spark(self, account: str = "") -> str:
        """The URI that Hadoop's file systems, and so Spark, take.

        Args:
            account: Azure's, if the location does not name it.

        Raises:
            TopologyError: neither names the account.
        """
        if self.kind == "azure" and not (self.account or account):
            raise TopologyError(
                f"'{self._spelled(self.scheme, self.bucket)}' does not name its storage account, "
                "which Spark has to know. Write "
                f"abfss://{self.bucket}@ACCOUNT.dfs.{AZURE_DOMAIN}/{self.folder}, or give "
                "azure_storage_account_name in storage_options.",
                number="TXN-121",
            )
        return self._spelled(*self._scheme_and_authority(self.account or account, "s3a"))

    def azure_host(self, account: str) -> str:
        """Azure's host of an account, as Hadoop's settings name it."""
        return f"{account}.dfs.{self.cloud}"

    def _scheme_and_authority(self, account: str, s3_scheme: str) -> tuple[str, str]:
        match self.kind:
            case "s3":
                return s3_scheme, self.bucket
            case "gs":
                return "gs", self.bucket
            case "azure":
                return "abfss", f"{self.bucket}@{self.azure_host(account)}"
            case "hdfs":
                return self.scheme, self.bucket

    def _spelled(self, scheme: str, authority: str) -> str:
        return f"{scheme}://{authority}/{self.folder}".rstrip("/")


def address_of(location: str) -> Address:
    """Parse a URI.

    Raises:
        TopologyError: no client here can open it.
    """
    match = _URI.fullmatch(location)
    assert match is not None, f"{location} is a path: only URIs come here"
    scheme, authority = match[1].lower(), match[2]
    # Normalised as delta-rs does: object_store has no names with empty parts.
    folder = posixpath.normpath(f"/{match[3]}").strip("/")
    kind = _KINDS.get(scheme)
    if kind is None:
        raise _unknown(location, scheme)
    account, cloud = "", AZURE_DOMAIN
    if kind == "azure":
        host = ""
        if "@" in authority:  # CONTAINER@ACCOUNT.dfs.DOMAIN
            authority, _, host = authority.rpartition("@")
        if host and (parts := _HOST.fullmatch(host)):
            account, cloud = parts[1].lower(), parts[2].lower()
        elif host:
            raise TopologyError(
                f"Folder '{location}' cannot be opened: '{host}' is not a host of Azure's storage. "
                f"Write abfss://{authority}@ACCOUNT.dfs.{AZURE_DOMAIN}/{folder}.",
                number="TXN-121",
            )
    if (not authority and kind != "hdfs") or "@" in authority:
        raise TopologyError(
            f"Folder {location!r} cannot be opened: it names no bucket. Write "
            f"{scheme}://BUCKET/FOLDER; credentials belong in storage_options or the environment.",
            number="TXN-121",
        )
    return Address(kind, scheme, authority, folder, account, cloud)


def _unknown(location: str, scheme: str) -> TopologyError:
    schemes = "s3://, gs://, abfss://, az://, wasbs://, hdfs://, viewfs:// or file://"
    way = f"Use a local path, or a URI that begins with {schemes}."
    if scheme == "dbfs":
        way = (
            "Databricks mounts it: write /dbfs/FOLDER, if every executor has that path too, or "
            "the storage behind it (s3://, abfss://, gs://)."
        )
    return TopologyError(
        f"Folder {location!r} cannot be opened: nothing here knows the scheme '{scheme}'. {way}",
        number="TXN-121",
    )


def option(options: Mapping[str, str], *names: str) -> str | None:
    """The value of the first of `names` (in lower case) that `options` has in any case; or None."""
    values = {name.lower(): value for name, value in options.items()}
    return next((values[name] for name in names if name in values), None)


def account_in(options: Mapping[str, str]) -> str:
    """Azure's account in the options or the environment; "" if neither has it."""
    return option(options, *AZURE_ACCOUNT_OPTIONS) or os.environ.get(
        "AZURE_STORAGE_ACCOUNT_NAME", ""
    )
