"""Retry storage that fails for a moment, with back-off, until a deadline.

For calls that may be repeated: reading, listing, deleting, replacing. Not for a bare conditional
write: its writer must read the file and compare each time (`committers.publishing.log`). If a
fault outlasts the deadline, the batch waits, visibly and without counting an attempt, as if its
source were away. A fault that waiting cannot cure raises at once.
"""

from __future__ import annotations

import errno
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from txn.errors import StorageRefusedError, StorageUnavailableError

__all__ = [
    "RETRY_LIMITS",
    "RetryLimits",
    "client_message",
    "is_momentary",
    "is_refusal",
    "names_no_bucket",
    "retried",
]

T = TypeVar("T")

log = logging.getLogger("txn")

_MOMENTARY_ERRNOS = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EIO,
        errno.ELOOP,
        errno.EMFILE,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENFILE,
        errno.ENODEV,
        errno.ENOTCONN,
        errno.EPIPE,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
_REFUSAL_ERRNOS = frozenset({errno.EACCES, errno.ENOTDIR, errno.EPERM, errno.EROFS})
_ABOUT_TABLE = {"TableNotFoundError", "SchemaMismatchError", "DeltaProtocolError"}
"""Errors of delta-rs about a table, not about its storage."""
_REFUSAL_TEXTS = re.compile(
    r"ACCESS_DENIED|AccessDenied|NO_SUCH_BUCKET|NoSuchBucket|INVALID_ACCESS_KEY_ID"
    r"|InvalidAccessKeyId|SIGNATURE_DOES_NOT_MATCH|SignatureDoesNotMatch|INVALID_CLIENT_TOKEN_ID"
    r"|MISSING_AUTHENTICATION_TOKEN|401 Unauthorized|403 Forbidden|Permission ?[Dd]enied"
    r"|Unauthenticated|Read-only file system|Operation not permitted|Not a directory"
    r"|lacked the necessary privileges|lacked valid authentication|ContainerNotFound"
    # An address that cannot be right: object_store has no code for either.
    r"|incorrectly configured region|URL scheme is not allowed"
)
"""Texts of refusals by object-store clients, and by delta-rs for a disk: they have no codes."""
_PLACE = re.compile(r"\w[\w+.-]*://[^\s<>\"]*|[^\s<>\"']*/[^\s<>\"']*")
"""URLs and paths, which may contain any word; not the tags of an XML text."""
_USER = re.compile(r"//[^/?#\s]*@")
_NO_BUCKET_TEXTS = re.compile("NoSuchBucket|ContainerNotFound")
_MOMENTARY_TEXTS = re.compile(
    r"AWS Error|curlCode|Generic \w+ error|error sending request|Server returned non-2xx"
    r"|[Tt]imed? ?out|[Cc]onnection (refused|reset|closed)|[Tt]oo many open files"
    # A folder vanished while delta-rs read it: the next try shows whether it still exists.
    r"|Failed to canonicalize path"
)


@dataclass(frozen=True)
class RetryLimits:
    """The limits on retrying storage."""

    deadline_secs: float = 5.0
    first_secs: float = 0.05
    most_secs: float = 1.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


RETRY_LIMITS = RetryLimits()
"""Short: a batch that waits reports why, and a call that is retried does not."""


def retried(operation: Callable[[], T], what: str, limits: RetryLimits = RETRY_LIMITS) -> T:
    """Run an operation that may be repeated, and return its result.

    Args:
        what: the operation and its place, for messages: "read s3://b/k".

    Raises:
        StorageUnavailableError: storage did not do it before the deadline.
        StorageRefusedError: storage refuses it for good.
        Exception: any other error of the operation (a file does not exist), unchanged.
    """
    until, wait = limits.clock() + limits.deadline_secs, limits.first_secs
    while True:
        try:
            return operation()
        except Exception as error:
            if is_refusal(error):
                raise StorageRefusedError(
                    f"Storage refuses to {what}: {client_message(error)}. Waiting does not help: "
                    "correct the permission, the credentials or the name, then run again. "
                    "Progress is intact."
                ) from error
            if not is_momentary(error):
                raise
            if limits.clock() + wait > until:
                raise StorageUnavailableError(
                    f"Storage could not {what} within {limits.deadline_secs:g} s: "
                    f"{client_message(error)}. A batch waits and tries again; a start must be "
                    "repeated."
                ) from error
            log.info("storage could not %s, and is asked again: %s", what, client_message(error))
        limits.sleep(wait)
        wait = min(2 * wait, limits.most_secs)


def is_refusal(error: BaseException) -> bool:
    """Return whether storage refuses the operation for good."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _REFUSAL_ERRNOS
    if names_no_bucket(error):
        return True
    # delta-rs reports "table not found" for a folder that it may not create.
    return _is_client_error(error) and _REFUSAL_TEXTS.search(_without_places(error)) is not None


def is_momentary(error: BaseException) -> bool:
    """Return whether a retry may succeed."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _MOMENTARY_ERRNOS
    return (
        _is_client_error(error)
        and not _class_names(error) & _ABOUT_TABLE
        and _MOMENTARY_TEXTS.search(_without_places(error)) is not None
        and _REFUSAL_TEXTS.search(_without_places(error)) is None
    )


def names_no_bucket(error: BaseException) -> bool:
    """Return whether object_store's "not found" means the bucket, not a file in it.

    The answer to a HEAD does not distinguish the two.
    """
    if not isinstance(error, FileNotFoundError):
        return False
    return _NO_BUCKET_TEXTS.search(_without_places(error)) is not None


def _is_client_error(error: BaseException) -> bool:
    """Return whether a storage client raised it: `os`, delta-rs or obstore."""
    if isinstance(error, FileNotFoundError):
        return False
    if isinstance(error, OSError):
        return True
    return bool(_class_names(error) & {"DeltaError", "obstore.BaseError"})


def _class_names(error: BaseException) -> set[str]:
    """Return the names of an error's classes; obstore's have a prefix, as others use them too."""
    kinds = type(error).__mro__
    return {
        f"obstore.{kind.__name__}" if kind.__module__.startswith("obstore") else kind.__name__
        for kind in kinds
    }


def _without_places(error: BaseException) -> str:
    """Return the error's message without paths and URLs."""
    return _PLACE.sub("", str(error))


def client_message(error: BaseException) -> str:
    """Return a client's message in one short line, without terminal colours and users in URLs."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).replace("↳", ":")
    text = text.partition("\n\nDebug source")[0]  # pages of obstore's
    text = re.split(r"\n\s+0: ", text, maxsplit=1)[0]  # a Rust backtrace
    text = " ".join(_USER.sub("//", text).split()).replace(" : ", ": ")
    return text.rstrip(".")[:600]
