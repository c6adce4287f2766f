"""How much each workload does: in full, and small enough to see in minutes that all of it works."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["FULL", "QUICK", "Rows", "Sizes"]


@dataclass(frozen=True)
class Rows:
    """A set of Parquet files: `offset long, word string, amount int`.

    Every contender first does the same work on the first `warm` files, for itself and untimed,
    again and again for `Sizes.warm_secs`.
    """

    files: int
    rows: int
    """In each file: one transaction."""
    keys: int
    """Distinct words, skewed: the square of a uniform number."""
    warm: int

    @property
    def name(self) -> str:
        """The folder in the cache."""
        return f"{self.files}x{self.rows}-of-{self.keys}"

    @property
    def total(self) -> int:
        """Rows in all files."""
        return self.files * self.rows


@dataclass(frozen=True)
class Sizes:
    """The sizes of all workloads."""

    name: str
    warm_secs: float
    """How long a contender warms up at least: as long for each, whatever one run of it takes.
    Negative: not at all."""
    timed_secs: float
    """For how long the timed run is repeated; at least once."""
    big: Rows
    """(a), (d) and (e)."""
    tiny: Rows
    """(b)."""
    states: tuple[int, ...]
    """(c): keys in the table before the measured commits."""
    commits: int
    """(c): measured commits for each state."""
    commit_rows: int
    """(c): rows, each with a random key, in each of them."""
    laps: int
    """(d): runs of each kind in one process, in turn."""
    pending: tuple[int, ...]
    """(e): txids in flight."""
    partitions: tuple[int, ...]
    """(f): partitions of the source, all of them read in every batch."""
    coordinated: int
    """(f): measured batches."""
    far_big: Rows
    """(h): (a) on S3."""
    far_tiny: Rows
    """(i): (b) on S3."""
    far_warm_secs: float
    """(h) and (i): as `warm_secs`; they are timed once, for one run takes long."""
    read_states: tuple[int, ...]
    """(j): keys in the table."""
    read_batches: int
    """(j): txids after the one that brings every key."""
    read_laps: int
    """(j): how often each reading is timed."""
    kept: Rows
    """(m)."""
    tables: tuple[int, ...]
    """(p): tables of one topology."""
    table_batches: int
    """(p): measured batches."""
    memory_batches: int
    """(g)."""
    memory_every: int
    """(g): batches between two looks."""

    def warmed(self, seconds: float) -> Sizes:
        """These, after another warm-up; 0: after none, and the first run alone is timed."""
        told = f"{seconds:g} s of" if seconds else "no"
        timed = self.timed_secs if seconds else 0.0
        name = f"{self.name}, {told} warm-up"
        warm = seconds or -1.0
        return replace(self, name=name, warm_secs=warm, far_warm_secs=warm, timed_secs=timed)


FULL = Sizes(
    name="full",
    warm_secs=40.0,
    timed_secs=15.0,
    big=Rows(files=40, rows=500_000, keys=100_000, warm=40),
    tiny=Rows(files=200, rows=1_000, keys=1_000, warm=40),
    states=(10_000, 100_000, 1_000_000, 10_000_000),
    commits=12,
    commit_rows=10_000,
    laps=12,
    pending=(1, 2, 4, 8),
    partitions=(1, 10, 100, 1_000, 5_000, 50_000),
    coordinated=60,
    far_big=Rows(files=8, rows=500_000, keys=100_000, warm=2),
    far_tiny=Rows(files=30, rows=1_000, keys=1_000, warm=3),
    far_warm_secs=20.0,
    read_states=(10_000, 100_000, 1_000_000, 10_000_000),
    read_batches=1_000,
    read_laps=15,
    kept=Rows(files=500, rows=2_000, keys=20_000, warm=1),
    tables=(1, 5, 20, 50),
    table_batches=30,
    memory_batches=2_000,
    memory_every=200,
)

QUICK = Sizes(
    name="quick",
    warm_secs=0.0,
    timed_secs=0.0,
    big=Rows(files=6, rows=20_000, keys=1_000, warm=2),
    tiny=Rows(files=12, rows=1_000, keys=1_000, warm=4),
    states=(1_000, 10_000),
    commits=3,
    commit_rows=1_000,
    laps=1,
    pending=(1, 4),
    partitions=(1, 100),
    coordinated=8,
    far_big=Rows(files=3, rows=20_000, keys=1_000, warm=1),
    far_tiny=Rows(files=5, rows=1_000, keys=1_000, warm=1),
    far_warm_secs=0.0,
    read_states=(1_000, 10_000),
    read_batches=20,
    read_laps=1,
    kept=Rows(files=8, rows=1_000, keys=1_000, warm=1),
    tables=(1, 3),
    table_batches=5,
    memory_batches=40,
    memory_every=10,
)
