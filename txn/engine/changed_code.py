"""Compare the program with that of the last run, and describe the changes to the user.

A start reports changes and refuses nothing: to correct a transform and go on is everyday work. But
the tables' older rows were computed by the former program, and nothing else would show that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from difflib import SequenceMatcher

from txn.dataflow.definition import Definition
from txn.dataflow.fingerprints import PYTHON, fingerprint
from txn.dataflow.stages import stages
from txn.protocol.records import ProgramRecord, StageRecord
from txn.protocol.recovery import Recovered

__all__ = ["describe_changes", "list_changes", "program_id", "program_of", "record_to_keep"]

_SHOWN = 3
_RECORDED = 20
"""Most changes that the record keeps for `txn status`."""
_BYTES = 256 * 1024
"""Most bytes of a record's stages as JSON: it has to fit into one node."""


def program_of(definition: Definition) -> ProgramRecord:
    """Return the record of the present program; `changes` and `tables` stay empty."""
    records = [
        StageRecord(id=stage.id, told=stage.told, fingerprint=stage.fingerprint)
        for stage in stages(definition.sources, definition.sinks)
    ]
    text = json.dumps([stage.model_dump() for stage in records])
    if len(text) > _BYTES:
        whole = fingerprint([(stage.id, stage.fingerprint) for stage in records])
        records = [StageRecord(id="program-1", told="the program", fingerprint=whole)]
    tables = sorted(sink.name for sink in definition.sinks)
    return ProgramRecord(python=PYTHON, stages=records, declared=tables)


def program_id(record: ProgramRecord) -> str:
    """Return a short id of a program: another one, or another Python, has another id."""
    text = json.dumps([record.python, [(one.id, one.fingerprint) for one in record.stages]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def record_to_keep(
    program: ProgramRecord, before: ProgramRecord | None, txid: int
) -> ProgramRecord:
    """Return the record to store for a program that begins at `txid`."""
    if before is None:
        return program
    if lines := list_changes(before, program):
        return program.model_copy(update={"changes": _shorten(lines, _RECORDED), "since": txid})
    return program.model_copy(update={"changes": before.changes, "since": before.since})


def list_changes(before: ProgramRecord, program: ProgramRecord) -> list[str]:
    """List the changes, stage by stage, in words.

    Fingerprints of different releases of Python are not compared, nor is a stage without one.
    """
    if before.python != program.python:
        return []
    old, new = _stages_by_stem(before.stages), _stages_by_stem(program.stages)
    return [
        line
        for stem in {**new, **old}
        for line in _compare_stages(old.get(stem, ()), new.get(stem, ()))
    ]


def _stages_by_stem(records: Sequence[StageRecord]) -> dict[str, list[StageRecord]]:
    """Group the stages whose ids differ only in their number, in that order."""
    stems: dict[str, list[StageRecord]] = {}
    for stage in records:
        stems.setdefault(stage.id.rpartition("-")[0], []).append(stage)
    return stems


def _compare_stages(old: Sequence[StageRecord], new: Sequence[StageRecord]) -> Iterator[str]:
    # A stage inserted before others shifts their numbers but does not change them.
    old_keys = [stage.fingerprint or "unknown" for stage in old]
    new_keys = [stage.fingerprint or "unknown" for stage in new]
    match = SequenceMatcher(None, old_keys, new_keys, autojunk=False)
    for kind, old_begin, old_end, new_begin, new_end in match.get_opcodes():
        if kind == "equal":
            continue
        before, after = old[old_begin:old_end], new[new_begin:new_end]
        for old_stage, new_stage in zip(before, after, strict=False):
            if old_stage.fingerprint is not None and new_stage.fingerprint is not None:
                yield f"{new_stage.told} was changed"
        yield from (f"{stage.told} is new" for stage in after[len(before) :])
        yield from (f"{stage.told} is gone" for stage in before[len(after) :])


def describe_changes(lines: Sequence[str], recovered: Recovered) -> str:
    """Describe the changes to the user in one line, with the txids that they affect."""
    first = recovered.committed.txid + 1
    text = (
        f"The program is not as it was at txid {first - 1}: {', '.join(_shorten(lines, _SHOWN))}. "
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


def _shorten(lines: Sequence[str], most: int) -> list[str]:
    rest = len(lines) - most
    return [*lines[:most], *([f"and {rest} more"] if rest > 0 else [])]


def _txids(txids: Collection[int]) -> str:
    listed = ", ".join(map(str, txids))
    return f"Txid {listed} was" if len(txids) == 1 else f"Txids {listed} were"
