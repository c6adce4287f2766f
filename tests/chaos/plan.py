"""What is done to the run, drawn from the seed: how each driver dies, and which other faults come.

The same seed gives the same sequences. When they strike is a matter of real processes: runs of the
same seed are alike, and not the same.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from txn.engine.base.killpoints import MAINTENANCE_POINTS, POINTS

__all__ = [
    "CLUSTER_FAULTS",
    "DRIVER_FAULTS",
    "FAULTS",
    "NOT_ON_S3",
    "STORE_FAULTS",
    "THIRDS",
    "Fate",
    "deck",
    "fates",
    "fault_decks",
    "faults_of",
]

How = Literal["start", "time", "point", "zombie_stop", "zombie_cut", "spared"]

DRIVER_FAULTS = ("driver_kill", "zombie")
OTHER_FAULTS: tuple[Mapping[str, int], ...] = (
    {
        "zookeeper_kill": 4,
        "zookeeper_stop": 3,
        "zookeeper_majority": 3,
        "link_delay": 2,
        "link_cut": 3,
        "session_expiry": 2,
    },
    {"executor_kill": 5, "worker_kill": 3, "broker_kill": 1, "disk_full": 1},
)
"""Kind -> how often, for each of the two threads that do them: one of each at a time."""
STORE_FAULTS: Mapping[str, int] = {
    "store_errors": 4,
    "store_lost": 3,
    "store_late": 4,
    "store_slow": 2,
    "store_lists": 2,
    "store_kill": 2,
}
"""Those of a third thread, where the tables lie on S3."""
CLUSTER_FAULTS: Mapping[str, int] = {
    "worker_pause": 3,
    "worker_decommission": 3,
    "worker_add": 2,
    "worker_cut_driver": 3,
    "worker_cut_store": 3,
}
"""Those of a fourth thread, where workers have machines of their own."""
FAULTS = (
    *DRIVER_FAULTS,
    *(kind for kinds in (*OTHER_FAULTS, STORE_FAULTS, CLUSTER_FAULTS) for kind in kinds),
)
"""Every kind of fault."""
NOT_ON_S3 = ("disk_full",)
THIRDS = (0, 1, 2)

_HOW: Mapping[How, int] = {"start": 36, "time": 28, "point": 30, "zombie_stop": 4, "zombie_cut": 2}
_FIRST: tuple[How, ...] = ("start", "zombie_stop", "point")
_VICTIMS = ("driver", "driver", "driver", "driver", "python", "python", "jvm")
START_SECS = 9.0
"""About as long as a start takes."""
RUN_SECS = 6.0


@dataclass(frozen=True)
class Fate:
    """How a driver's life ends."""

    how: How
    after: float
    """Seconds: after its start ("start"), or after its first commit."""
    victim: str = "driver"
    """Who is killed: the whole driver, its Python process or its JVM."""
    point: str | None = None
    nth: int = 1
    silent: bool = False
    """Of a zombie that is cut off: whether its links swallow everything, or refuse it."""
    pause: float = 0.0
    """Of a zombie: seconds from its successor's leadership to its resumption."""


def deck(draw: random.Random, kinds: Mapping[str, int]) -> Iterator[str]:
    """Kinds for ever: each of them once, then in shuffled packs with so many of each."""
    first = sorted(kinds)
    draw.shuffle(first)
    yield from first
    while True:
        pack = [kind for kind, count in kinds.items() for _ in range(count)]
        draw.shuffle(pack)
        yield from pack


def fates(seed: int) -> Iterator[Fate]:
    """How one driver after the other dies."""
    draw = random.Random(f"{seed}-drivers")
    for how in _FIRST:
        yield _fate(how, draw)
    while True:
        yield _fate(draw.choices(list(_HOW), list(_HOW.values()))[0], draw)


def _fate(how: How, draw: random.Random) -> Fate:
    if how == "start":
        return Fate(how, draw.uniform(0.3, START_SECS), draw.choice(_VICTIMS))
    if how == "time":
        return Fate(how, draw.uniform(0.0, RUN_SECS), draw.choice(_VICTIMS))
    if how == "point":
        point = draw.choice((*POINTS, *POINTS, *MAINTENANCE_POINTS))
        return Fate(how, 0.0, point=point, nth=draw.randint(1, 4))
    pause = draw.uniform(0.0, 3.0)
    return Fate(how, draw.uniform(0.0, 3.0), silent=draw.random() < 0.5, pause=pause)


def faults_of(
    store: str, thirds: Collection[int] = THIRDS, cluster: str = "shared"
) -> tuple[str, ...]:
    """The kinds that there are in a run on this store and cluster, or in some thirds of it."""
    return (*DRIVER_FAULTS, *(kind for kinds in _series(store, thirds, cluster) for kind in kinds))


def _series(store: str, thirds: Collection[int], cluster: str) -> list[dict[str, int]]:
    gone = {*(STORE_FAULTS if store == "local" else NOT_ON_S3)}
    gone |= set() if cluster == "isolated" else set(CLUSTER_FAULTS)
    found = []
    for all_kinds in (*OTHER_FAULTS, STORE_FAULTS, CLUSTER_FAULTS):
        kinds = [(kind, count) for kind, count in all_kinds.items() if kind not in gone]
        if kinds:
            found.append(dict(k for number, k in enumerate(kinds) if number % 3 in thirds))
    return found


def fault_decks(
    seed: int,
    store: str = "local",
    cluster: str = "shared",
    *,
    once: bool = False,
    thirds: Collection[int] = THIRDS,
) -> list[tuple[Iterator[str], random.Random]]:
    """For each thread: its kinds of faults, and what draws the rest of each.

    Args:
        once: each kind one time, and no more.
        thirds: of the kinds: every third one, from the first, second or third on.
    """
    found = []
    for number, kinds in enumerate(_series(store, thirds, cluster)):
        draw = random.Random(f"{seed}-faults-{number}")
        drawn = deck(draw, kinds)
        found.append((islice(drawn, len(kinds)) if once else drawn, draw))
    return found
