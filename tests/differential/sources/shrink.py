"""Makes a case smaller as long as it still shows the same finding."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.differential.shrink import smallest
from tests.differential.sources.declaration import Case, File

__all__ = ["shrink"]


def shrink(case: Case, same: Callable[[Case], bool], secs: float) -> Case:
    """Find the smallest case in that time of which `same` holds."""
    return smallest(case, _smaller, same, secs)


def _smaller(case: Case) -> Iterator[Case]:
    for place in range(len(case.files) if len(case.files) > 1 else 0):
        yield _with(case, files=case.files[:place] + case.files[place + 1 :])
    for name in case.options:
        yield _with(case, options={k: v for k, v in case.options.items() if k != name})
    for place, file in enumerate(case.files):
        for less in _smaller_files(file):
            yield _with(case, files=(*case.files[:place], less, *case.files[place + 1 :]))


def _smaller_files(file: File) -> Iterator[File]:
    if file.packed:
        yield file.model_copy(update={"packed": "", "name": re.sub(r"\.(gz|bz2)$", "", file.name)})
    for place in range(len(file.values)):
        yield _less(file, values=file.values[:place] + file.values[place + 1 :])
    if file.name.endswith(".parquet"):
        return
    lines = re.split(r"(?<=\n)", file.content)
    for place in range(len(lines) if len(lines) > 1 else 0):
        yield _less(file, content="".join(lines[:place] + lines[place + 1 :]))
    text = file.content
    for size in (64, 16, 4, 1):
        for start in range(0, len(text) if len(text) > size else 0, size):
            yield _less(file, content=text[:start] + text[start + size :])


def _less(file: File, **changed: Any) -> File:
    return file.model_copy(update=changed)


def _with(case: Case, **changed: Any) -> Case:
    return case.model_copy(update=changed)
