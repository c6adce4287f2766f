"""Credentials of AWS's configuration files, which object_store does not read (delta-rs does)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txn.errors import TopologyError
from txn.storage.addresses import option

if TYPE_CHECKING:
    from obstore.store import S3Credential

__all__ = ["Profile", "profile_for"]

_RENEWED = timedelta(minutes=5)
"""Lifetime reported to object_store; botocore then renews credentials that expire."""
_KEYS = ("aws_access_key_id", "access_key_id")
_UNSIGNED = ("aws_skip_signature", "skip_signature")
_OTHER_SOURCES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def profile_for(options: Mapping[str, str]) -> Profile | None:
    """The profile that AWS's own order selects; None if credentials come from elsewhere.

    Elsewhere: `storage_options`, keys in the environment, a web identity, a container's role; and,
    without AWS_PROFILE and a file of credentials, the role of the instance.

    Raises:
        TopologyError: a profile applies, but botocore is not installed or cannot read it.
    """
    if option(options, *_KEYS) or (option(options, *_UNSIGNED) or "").lower() in ("true", "1"):
        return None
    named = os.environ.get("AWS_PROFILE") or None
    if os.environ.get(_OTHER_SOURCES[0]):
        return None
    if named is None and (any(map(os.environ.get, _OTHER_SOURCES)) or not _file().is_file()):
        return None
    try:
        return Profile(named)
    except ImportError as error:
        raise TopologyError(
            f"Credentials for S3 are in AWS's configuration files (profile '{named or 'default'}'),"
            " which are read by botocore. Install the extra: pip install 'txn-spark[aws]'; or give "
            "the credentials in storage_options or the environment.",
            number="TXN-121",
        ) from error


def _file() -> Path:
    path = os.environ.get("AWS_SHARED_CREDENTIALS_FILE")
    return Path(path or "~/.aws/credentials").expanduser()


class Profile:
    """Provides object_store with the credentials of a profile (keys, SSO, roles).

    Args:
        name: None: the default profile.

    Raises:
        ImportError: botocore is not installed.
        TopologyError: the profile does not exist, or has no credentials.
    """

    def __init__(self, name: str | None) -> None:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session

        self._name = name or "default"
        try:
            session = Session(profile=name)
            self.region: str | None = session.get_config_variable("region")
            self._credentials: Any = session.get_credentials()
        except BotoCoreError as error:
            raise self._refused(str(error)) from error
        if self._credentials is None:
            raise self._refused("it has no credentials")

    def __call__(self) -> S3Credential:
        """The current credentials."""
        credentials = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": credentials.access_key,
            "secret_access_key": credentials.secret_key,
            "token": credentials.token,
            "expires_at": datetime.now(timezone.utc) + _RENEWED,
        }

    def _refused(self, why: str) -> TopologyError:
        return TopologyError(
            f"Credentials for S3 cannot be read from profile '{self._name}' of AWS's configuration "
            f"files: {why}. Correct AWS_PROFILE or the files, or give the credentials in "
            "storage_options.",
            number="TXN-121",
        )
