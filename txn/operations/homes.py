"""Point out progress of a topology in another home than its own, before a run begins a second."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from txn.config.home import TXN_FOLDER, has_progress, nearest_home
from txn.errors import SetupError

if TYPE_CHECKING:
    from txn.topology import Topology

__all__ = ["check_homes"]


def check_homes(topology: Topology) -> list[str]:
    """Return a note for each other home in which the topology ran.

    Raises:
        SetupError: the progress is in another home only, and the tables are the same there.
    """
    home = topology.home.absolute()
    candidates = {nearest_home().absolute(), topology.program_folder} - {None, home}
    others = [place for place in candidates if place and _ran_in(place, topology.name)]
    is_bound = home == topology.program_folder
    for other in others:
        if is_bound and not has_progress(home) and has_progress(other):
            ours, theirs = home / TXN_FOLDER, other / TXN_FOLDER
            raise SetupError(
                f"Topology '{topology.name}' ran with its progress in {theirs}. Its .txn belongs "
                f"beside the program, in {home}. Nothing was changed. To go on from there, move "
                f"it: mkdir -p {ours} && mv {theirs / 'zookeeper'} {ours}/. If other topologies "
                f"have their progress there too, add --zookeeper embedded:{theirs}/zookeeper "
                "instead.",
                number="TXN-209",
            )
    return [_note(topology, home, other, is_bound=is_bound) for other in others]


def _ran_in(home: Path, name: str) -> bool:
    folder = home / TXN_FOLDER
    return any((folder / file).exists() for file in (f"logs/{name}.log", f"runs/{name}.json"))


def _note(topology: Topology, home: Path, other: Path, *, is_bound: bool) -> str:
    why = (
        f"That one is not used: this run has its progress in {home / TXN_FOLDER}."
        if is_bound
        else "Its tables have relative paths, so this run has tables and progress of its own in "
        f"{home}. To go on with the others, start it in {other}."
    )
    return f"Topology '{topology.name}' also ran in {other}. {why}"
