"""Point out progress of a topology that lies elsewhere than its program would have it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from txn.config.home import TXN_FOLDER, holds_topology, other_homes

if TYPE_CHECKING:
    from txn.topology import Topology

__all__ = ["notes_on_homes"]


def notes_on_homes(topology: Topology) -> list[str]:
    """Return a note for each home that holds the topology's progress besides the one that is used.

    One more if that one is not beside the program.
    """
    name, own, found = topology.name, topology.program_folder, topology.home
    home = found.absolute()
    if own is None or own == home:
        others = sorted(other_homes(name, home))
        return [_note(name, home, other, is_relative=False) for other in others]
    if found != Path():
        return [_strayed(name, home, own)]
    # It has other tables in each folder, and this is the one that is meant.
    return [_note(name, home, own, is_relative=True)] if holds_topology(own, name) else []


def _strayed(topology: str, home: Path, own: Path) -> str:
    ours, theirs = own / TXN_FOLDER, home / TXN_FOLDER
    return (
        f"The progress of topology '{topology}' is in {theirs}, not beside the program. To have it "
        "there, where it is found wherever the program is started, move it while nothing runs: "
        f"mkdir -p {ours} && mv {theirs / 'zookeeper'} {ours}/"
    )


def _note(topology: str, home: Path, other: Path, *, is_relative: bool) -> str:
    why = (
        "The program has relative paths, so this run has tables and progress of its own in "
        f"{home}. To go on with the others, start it in {other}."
        if is_relative
        else f"That is not used: this run goes on with {home / TXN_FOLDER}."
    )
    return f"Topology '{topology}' also has progress in {other / TXN_FOLDER}. {why}"
