"""Remove secrets from answers, and values that a browser's JSON cannot hold."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from txn.text import printable

__all__ = ["Scrubber", "secrets_in"]

_SECRET = re.compile(r"key|secret|token|password|credential|sas|auth|sign", re.IGNORECASE)
_SHORTEST = 4
"""Least characters of a secret: a shorter value occurs in harmless words, too."""
_SETTINGS = frozenset({"true", "false", "none", "null"})
"""Values of options such as `AWS_SKIP_SIGNATURE`. Numbers are not among them: they may be
passwords."""
_USER_IN_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/@\s]*:[^/@\s]*@")
_SIGNED = re.compile(r"([?&](?:sig|X-Amz-[A-Za-z-]+|se|sv|token)=)[^&\s\"']+")
_EXACT = 2**53
"""A browser's numbers are exact up to here."""
_HIDDEN = "***"


def secrets_in(options: Iterable[Mapping[str, str]]) -> frozenset[str]:
    """Return the secret values in some `storage_options`."""
    return frozenset(
        value
        for one in options
        for name, value in one.items()
        if _SECRET.search(name) and value.strip().lower() not in _SETTINGS
    )


class Scrubber:
    """Removes secrets from answers.

    Args:
        secrets: texts that must not appear anywhere. Those of fewer than four characters stay: they
            occur in harmless words.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        # The longest first: one may be a part of another.
        long = {secret for secret in secrets if len(secret) >= _SHORTEST}
        self._secrets = sorted(long, key=len, reverse=True)

    def text(self, text: str) -> str:
        """Return a text without secrets, and without characters that hide or reverse others."""
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        if "://" in text:
            text = _USER_IN_URI.sub(rf"\1{_HIDDEN}@", text)
        if "=" in text:
            text = _SIGNED.sub(rf"\1{_HIDDEN}", text)
        return printable(text)

    def answer(self, value: Any) -> Any:
        """Return a JSON value without secrets; numbers that a browser would change become texts."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(name)): self.answer(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.answer(one) for one in value]
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT:
            return str(value)
        return value
