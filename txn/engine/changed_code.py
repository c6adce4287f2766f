"""Whether the program is the one that the last run was of, and how to say it if it is not.

A start tells it and refuses nothing: to correct a transform and go on is everyday work. But what
the tables hold from before was computed by the former program, and nothing else would say so.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from difflib import SequenceMatcher

from txn.dataflow.definition import Definition
from txn.dataflow.fingerprints import PYTHON, fingerprint
from txn.dataflow.stages import stages
from txn.protocol.records import ProgramRecord, StageRecord
from txn.protocol.recovery import Recovered

__all__ = ["changes", "message", "program_of", "succeeding"]

_SHOWN = 3
_KEPT = 20
"""Most changes that are kept for `txn status`."""
_BYTES = 256 * 1024
"""Most bytes of a record's stages as JSON: it has to fit into one node."""


def program_of(definition: Definition) -> ProgramRecord:
    """The program as it is now; `changes` stays empty."""
    found = [
        StageRecord(id=stage.id, told=stage.told, fingerprint=stage.fingerprint)
        for stage in stages(definition.sources, definition.sinks)
    ]
    said = json.dumps([stage.model_dump() for stage in found])
    if len(said) > _BYTES:
        whole = fingerprint([(stage.id, stage.fingerprint) for stage in found])
        found = [StageRecord(id="program-1", told="the program", fingerprint=whole)]
    return ProgramRecord(python=PYTHON, stages=found)


def succeeding(now: ProgramRecord, before: ProgramRecord | None, txid: int) -> ProgramRecord:
    """The record to keep of a program whose first txid is `txid`; `before`, if nothing is new."""
    if before is None:
        return now
    if told := changes(before, now):
        return now.model_copy(update={"changes": _first(told, _KEPT), "since": txid})
    if (now.python, now.stages) == (before.python, before.stages):
        return before
    return now.model_copy(update={"changes": before.changes, "since": before.since})


def changes(before: ProgramRecord, now: ProgramRecord) -> list[str]:
    """What differs, stage by stage, in words.

    Nothing is compared that was fingerprinted by two releases of Python, or has no fingerprint.
    """
    if before.python != now.python:
        return []
    old, new = _by_stem(before.stages), _by_stem(now.stages)
    return [
        told for stem in {**new, **old} for told in _differ(old.get(stem, ()), new.get(stem, ()))
    ]


def _by_stem(found: Sequence[StageRecord]) -> dict[str, list[StageRecord]]:
    """The stages that ids tell apart by their number alone, in its order."""
    stems: dict[str, list[StageRecord]] = {}
    for stage in found:
        stems.setdefault(stage.id.rpartition("-")[0], []).append(stage)
    return stems


def _differ(old: Sequence[StageRecord], new: Sequence[StageRecord]) -> Iterator[str]:
    # A stage that was put before others moves their numbers, and is no change of them.
    match = SequenceMatcher(None, [*map(_key, old)], [*map(_key, new)], autojunk=False)
    for kind, i, i_end, j, j_end in match.get_opcodes():
        if kind == "equal":
            continue
        both = min(i_end - i, j_end - j)
        for was, now in zip(old[i : i + both], new[j : j + both], strict=True):
            if was.fingerprint is not None and now.fingerprint is not None:
                yield f"{now.told} was changed"
        yield from (f"{stage.told} is new" for stage in new[j + both : j_end])
        yield from (f"{stage.told} is gone" for stage in old[i + both : i_end])


def _key(stage: StageRecord) -> str:
    return stage.fingerprint or "unknown"


def message(told: Sequence[str], recovered: Recovered) -> str:
    """One line for the user, about the changes of a program that goes on from there."""
    first = recovered.committed.txid + 1
    text = (
        f"The program is not as it was at txid {first - 1}: {', '.join(_first(told, _SHOWN))}. "
        f"Txids from {first} on are processed by the program as it is now; what the tables hold "
        "from before stays."
    )
    if begun := sorted(batch.txid for batch in recovered.batches):
        text += (
            f" {_txids(begun)} begun by the former program and not committed: what it has staged "
            "is dropped, and the present program processes the same input."
        )
    if recovered.published:
        text += (
            f" Some tables hold txid {', '.join(map(str, sorted(recovered.published)))} already, "
            "from the former program: a transactional table keeps that, all others get it from "
            "the present one."
        )
    return text


def _first(told: Sequence[str], most: int) -> list[str]:
    rest = len(told) - most
    return [*told[:most], *([f"and {rest} more"] if rest > 0 else [])]


def _txids(txids: Collection[int]) -> str:
    listed = ", ".join(map(str, txids))
    return f"Txid {listed} was" if len(txids) == 1 else f"Txids {listed} were"
