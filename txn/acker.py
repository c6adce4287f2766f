"""The acker: one integer per batch proves that every part of it has arrived.

Theory first, because the code is short and the reasons are long.

**The algebra.** Everything that must arrive (a partition, a file, a table) is an *edge* with a
random 64-bit id. The id is XORed into the batch's ledger twice: once when the edge is created,
once when it arrives. XOR is commutative and associative, so order does not matter; it is its own
inverse (x ^ x = 0), so a pair cancels, whatever comes in between. Hence

    ledger = XOR of the edges created and not yet arrived,

and a ledger of zero means that every created edge has arrived. One acknowledgement carries both
halves of a handover, "what I received ^ what I created", so the ledger never drops to zero
between a parent's end and its children's beginning.

**Why random.** Ids 1, 2, 3 would be wrong: 1 ^ 2 ^ 3 = 0 with three edges missing. With random ids
an incomplete ledger is zero with a chance of one in 2**64: at 10,000 acknowledgements a second,
once in 58 million years (docs/acker.md has the calculation). An id of zero is invisible to XOR, so
ids are never zero: `draw_id` draws again. The acker itself cannot see such an edge, and an
`ack` whose *value* is zero is valid (x ^ x: received and passed on under the same id).

**Two conditions, not one.** A ledger is also zero before its first edge. So a root is complete
when it is *initialised and* zero, and messages may come in any order: an ack or a fail that
overtakes its init opens the record, and the init settles it. Failure beats zero, whichever came
first (Storm tests for zero first, so there "ack, fail, init" acknowledges a failed tree).

**Tombstones.** A finished root is remembered until `timeout_ticks` more ticks have passed. Without
that, a duplicate ack after the end would open a ghost, and "fail, late ack 100, init 100" under one
root would XOR to zero and acknowledge a failed batch.

**The root is a fresh random id per attempt, never the txid.** All attempts of a batch share the
txid; late acks of a dead attempt would land in the ledger of the live one, and two wrongs can XOR
to zero. Tombstones guard one root for a while; only a fresh root guards for ever.

**Time is a tick.** Records sit in `timeout_ticks` buckets; each tick throws the oldest away. A
record put just before a tick lives (n - 1) intervals, one put just after it n: age in (n - 1, n].
Only `reset_timeout` makes a record younger, so work that goes round in circles ends too.

Pure: no threads, no clock, no randomness. Sources: `org.apache.storm.daemon.Acker`,
`org.apache.storm.utils.RotatingMap`; the differences are listed in docs/acker.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

__all__ = ["Acker", "Outcome", "RotatingMap", "Status", "draw_id"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ID_BITS = 64


class Status(str, Enum):
    """The end of one root's tracking. Each root ends at most once."""

    ACKED = "acked"  # initialised, and every edge arrived
    FAILED = "failed"  # by `fail`, or because the same root was initialised for two trees
    TIMED_OUT = "timed_out"  # initialised, and not finished within `timeout_ticks` ticks
    REFUSED = "refused"  # never tracked: `high_water` roots were pending already


@dataclass(frozen=True)
class Outcome:
    """A root and the status with which it ended."""

    root: int
    status: Status


class RotatingMap(Generic[K, V]):
    """A map whose entries die at the n-th rotation after their last `put`.

    Source: `org.apache.storm.utils.RotatingMap`. Not thread-safe, as there.

    Args:
        buckets: number of generations, at least 2. With one, an entry put just before a rotation
            would die at once.

    Raises:
        ValueError: fewer than 2 buckets.
    """

    def __init__(self, buckets: int = 3) -> None:
        if buckets < 2:
            raise ValueError(f"a rotating map needs at least 2 buckets, not {buckets}")
        self._buckets: deque[dict[K, V]] = deque({} for _ in range(buckets))

    def put(self, key: K, value: V) -> None:
        """Write `key` into the newest bucket, so it gets its full life again."""
        self.remove(key)
        self._buckets[0][key] = value

    def get(self, key: K) -> V | None:
        """Return the value, or None. Reading does not make the entry younger."""
        return next((bucket[key] for bucket in self._buckets if key in bucket), None)

    def remove(self, key: K) -> V | None:
        """Remove the entry and return its value; None if there was no entry."""
        return next((bucket.pop(key) for bucket in self._buckets if key in bucket), None)

    def rotate(self) -> dict[K, V]:
        """Start a new bucket; drop the oldest and return its entries."""
        expired = self._buckets.pop()
        self._buckets.appendleft({})
        return expired

    def __contains__(self, key: object) -> bool:
        """True while `key` is in any bucket."""
        return any(key in bucket for bucket in self._buckets)

    def __len__(self) -> int:
        """Return the number of live entries."""
        return sum(map(len, self._buckets))


@dataclass
class _Ledger:
    """One pending root. Changed in place, because a new `put` would make it younger."""

    value: int = 0  # XOR of all edges created and not yet arrived
    initial: int | None = None  # the value of init; None until init came
    failed: bool = False


class Acker:
    """Tracks roots until they are acked, failed, timed out or refused: one outcome per root.

    Messages of one root may come in any order. Every method returns the outcome that it caused,
    or None. Each outcome is returned once and names its root.

    Args:
        timeout_ticks: a root dies at this tick after its record was opened; at least 2.
        high_water: most roots pending at once; a new root beyond it is refused. None: no limit.

    Raises:
        ValueError: `timeout_ticks` below 2, `high_water` below 1, or (every message) a root of 0.
    """

    def __init__(self, timeout_ticks: int = 3, high_water: int | None = None) -> None:
        if timeout_ticks < 2:
            raise ValueError(
                f"timeout_ticks must be at least 2, not {timeout_ticks}: with one tick, a root "
                "opened just before it would expire at once; tick more often instead"
            )
        if high_water is not None and high_water < 1:
            raise ValueError(f"high_water must be at least 1 or None, not {high_water}")
        self._high_water = high_water
        self._pending: RotatingMap[int, _Ledger] = RotatingMap(timeout_ticks)
        # Tombstones. They start their own life when the root ends, so a root that ends one tick
        # before its own bucket goes is remembered no shorter than any other.
        self._finished: RotatingMap[int, None] = RotatingMap(timeout_ticks)

    def init(self, root: int, value: int) -> Outcome | None:
        """Start `root` with the XOR of its first edges; 0 if it has no edges.

        A repeated init with the same value is a duplicate message and changes nothing. With
        another value, two trees share the root, and neither can be trusted: FAILED.
        """
        ledger = self._open(root)
        if not isinstance(ledger, _Ledger):
            return ledger
        if ledger.initial is None:
            ledger.initial = value
            ledger.value ^= value
        elif ledger.initial != value:
            ledger.failed = True
        return self._settle(root, ledger)

    def ack(self, root: int, value: int) -> Outcome | None:
        """XOR `value` into the ledger: the edges received ^ the edges created in return."""
        ledger = self._open(root)
        if not isinstance(ledger, _Ledger):
            return ledger
        ledger.value ^= value
        return self._settle(root, ledger)

    def fail(self, root: int) -> Outcome | None:
        """Give `root` up. Before its init this only marks it; the outcome comes with the init."""
        ledger = self._open(root)
        if not isinstance(ledger, _Ledger):
            return ledger
        ledger.failed = True
        return self._settle(root, ledger)

    def reset_timeout(self, root: int) -> Outcome | None:
        """Give `root` its full time again: the only message that does. Finished roots stay so."""
        ledger = self._open(root)
        if not isinstance(ledger, _Ledger):
            return ledger
        self._pending.put(root, ledger)
        return None

    def tick(self) -> list[Outcome]:
        """Let one interval pass; return the outcomes of the roots that expired.

        A root that was never initialised expires silently: no spout waits for it.
        If its init comes later, the forgotten acks keep it from zero, and it times out. A *failed*
        root ends as FAILED instead: if it were forgotten, the late init could complete it.
        """
        self._finished.rotate()
        expired = self._pending.rotate()
        return [
            self._finish(root, Status.FAILED if ledger.failed else Status.TIMED_OUT)
            for root, ledger in expired.items()
            if ledger.failed or ledger.initial is not None
        ]

    def __len__(self) -> int:
        """Return the number of pending roots, initialised or not, without tombstones."""
        return len(self._pending)

    def _open(self, root: int) -> _Ledger | Outcome | None:
        """Open the ledger of `root` if necessary; None if it is finished; Outcome if refused."""
        if root == 0:
            raise ValueError("a root id of 0 was given; ids are random and never 0 (draw_id)")
        ledger = self._pending.get(root)
        if ledger is not None:
            return ledger
        if root in self._finished:
            return None
        if self._high_water is not None and len(self._pending) >= self._high_water:
            return self._finish(root, Status.REFUSED)
        ledger = _Ledger()
        self._pending.put(root, ledger)
        return ledger

    def _settle(self, root: int, ledger: _Ledger) -> Outcome | None:
        """End `root` if it is complete. Failure is checked first, because it beats zero."""
        if ledger.initial is None:
            return None
        if ledger.failed:
            return self._finish(root, Status.FAILED)
        if ledger.value == 0:
            return self._finish(root, Status.ACKED)
        return None

    def _finish(self, root: int, status: Status) -> Outcome:
        """Replace the ledger by a tombstone."""
        self._pending.remove(root)
        self._finished.put(root, None)
        return Outcome(root, status)


def draw_id(getrandbits: Callable[[int], int]) -> int:
    """Draw a random 64-bit id, never 0, for a root or an edge.

    Args:
        getrandbits: `random.Random(...).getrandbits` or `random.SystemRandom().getrandbits`.
    """
    while not (drawn := getrandbits(ID_BITS)):
        pass
    return drawn
