"""The acker: Storm's edge cases E1 to E15 (those marked differ on purpose), maps and guards."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txn.acker import Acker, Outcome, RotatingMap, Status, draw_id

ROOT = 7
ACKED = Outcome(ROOT, Status.ACKED)
FAILED = Outcome(ROOT, Status.FAILED)
TIMED_OUT = Outcome(ROOT, Status.TIMED_OUT)
REFUSED = Outcome(ROOT, Status.REFUSED)


@pytest.fixture
def acker() -> Acker:
    """An acker with three buckets and no limit."""
    return Acker()


def ticks(acker: Acker, times: int) -> list[list[Outcome]]:
    """What each of so many ticks brought."""
    return [acker.tick() for _ in range(times)]


# --- order and algebra -----------------------------------------------------------------------


def test_e1_tree_is_acked_when_every_edge_arrived(acker: Acker) -> None:
    """A root is acked by the ack that accounts for its last edge, and not before."""
    assert acker.init(ROOT, 100) is None
    assert acker.ack(ROOT, 100 ^ 200 ^ 300) is None
    assert acker.ack(ROOT, 200) is None
    assert acker.ack(ROOT, 300) == ACKED
    assert len(acker) == 0


def test_e2_ack_may_come_before_init(acker: Acker) -> None:
    """An ack that overtakes its init opens a pending root, which the init completes."""
    assert acker.ack(ROOT, 100) is None
    assert len(acker) == 1
    assert acker.init(ROOT, 100) == ACKED
    assert len(acker) == 0


def test_e3_order_of_messages_means_nothing(acker: Acker) -> None:
    """Acks before and after the init complete the root just as well."""
    assert acker.ack(ROOT, 100 ^ 200) is None
    assert acker.init(ROOT, 100) is None
    assert acker.ack(ROOT, 200) == ACKED


def test_e5_double_ack_before_the_end_never_completes(acker: Acker) -> None:
    """An edge acked twice while the root is pending is an edge missing: the root times out."""
    acker.init(ROOT, 100 ^ 200)
    assert [acker.ack(ROOT, 100), acker.ack(ROOT, 100), acker.ack(ROOT, 200)] == [None] * 3
    assert ticks(acker, 3) == [[], [], [TIMED_OUT]]


def test_e6_root_without_receivers_is_acked_at_once(acker: Acker) -> None:
    """An init of 0 says that there is nothing to wait for."""
    assert acker.init(ROOT, 0) == ACKED


def test_e7_edge_of_id_zero_is_invisible(acker: Acker) -> None:
    """An edge id of 0 cannot be waited for, which is why `draw_id` never yields one."""
    acker.init(ROOT, 100)
    assert acker.ack(ROOT, 100 ^ 0) == ACKED


def test_ack_of_value_zero_changes_nothing(acker: Acker) -> None:
    """An ack whose value is 0 (received and passed on under one id) is lawful and neutral."""
    acker.init(ROOT, 100)
    assert acker.ack(ROOT, 0) is None
    assert acker.ack(ROOT, 100) == ACKED


def test_ack_of_value_zero_does_not_complete_an_uninitialised_root(acker: Acker) -> None:
    """Zero alone is not complete: the root must be initialised too."""
    assert acker.ack(ROOT, 0) is None
    assert len(acker) == 1


def test_roots_do_not_touch_each_other(acker: Acker) -> None:
    """Equal edges under different roots stay apart."""
    acker.init(ROOT, 100)
    acker.init(8, 100)
    assert acker.ack(8, 100) == Outcome(8, Status.ACKED)
    assert len(acker) == 1


def test_repeated_init_is_a_duplicate(acker: Acker) -> None:
    """The same init again changes nothing (in Storm it would cancel itself: a false ack)."""
    acker.init(ROOT, 100)
    assert acker.init(ROOT, 100) is None
    assert acker.ack(ROOT, 100) == ACKED


def test_one_root_for_two_trees_fails(acker: Acker) -> None:
    """A second init with another value means a root used twice, so the root fails."""
    acker.init(ROOT, 100)
    assert acker.init(ROOT, 200) == FAILED


# --- failure ---------------------------------------------------------------------------------


def test_fail_after_init_fails_at_once(acker: Acker) -> None:
    """A failed root ends with the failing message."""
    acker.init(ROOT, 100)
    assert acker.fail(ROOT) == FAILED
    assert len(acker) == 0


def test_e8_late_ack_after_failure_cannot_turn_into_a_false_ack(acker: Acker) -> None:
    """Fail, late ack, init again under one root brings nothing (Storm: a false ack)."""
    acker.init(ROOT, 100)
    acker.fail(ROOT)
    assert acker.ack(ROOT, 100) is None
    assert len(acker) == 0
    assert acker.init(ROOT, 100) is None


def test_e9_fail_before_init_is_delivered_with_the_init(acker: Acker) -> None:
    """A failure that overtakes its init waits for it, then ends the root."""
    assert acker.fail(ROOT) is None
    assert len(acker) == 1
    assert acker.init(ROOT, 100) == FAILED


def test_e10_failed_beats_zero_when_init_comes_last(acker: Acker) -> None:
    """Ack, fail, init is a failure, though the XOR is zero (Storm: an ack)."""
    acker.ack(ROOT, 100)
    acker.fail(ROOT)
    assert acker.init(ROOT, 100) == FAILED


def test_e11_failed_beats_an_empty_init(acker: Acker) -> None:
    """Fail, then an init of 0, is a failure (Storm: an ack)."""
    acker.fail(ROOT)
    assert acker.init(ROOT, 0) == FAILED


# --- time ------------------------------------------------------------------------------------


def test_e12_reset_before_init_opens_a_root(acker: Acker) -> None:
    """A reset that overtakes the init opens a record and brings nothing."""
    assert acker.reset_timeout(ROOT) is None
    assert acker.init(ROOT, 5) is None
    assert acker.ack(ROOT, 5) == ACKED


def test_e13_root_times_out_at_the_third_tick(acker: Acker) -> None:
    """Expiry is an outcome (Storm only drops the record)."""
    acker.init(ROOT, 5)
    assert ticks(acker, 3) == [[], [], [TIMED_OUT]]
    assert len(acker) == 0


def test_e14_ack_does_not_refresh(acker: Acker) -> None:
    """An ack gives a root no more time."""
    acker.init(ROOT, 5)
    ticks(acker, 2)
    acker.ack(ROOT, 5 ^ 6)
    assert acker.tick() == [TIMED_OUT]


def test_e15_reset_timeout_refreshes(acker: Acker) -> None:
    """A reset gives a root its full time again."""
    acker.init(ROOT, 5)
    ticks(acker, 2)
    assert acker.reset_timeout(ROOT) is None
    assert ticks(acker, 2) == [[], []]
    assert acker.ack(ROOT, 5) == ACKED


def test_reset_keeps_the_ledger(acker: Acker) -> None:
    """A reset changes the age of a root and nothing else."""
    acker.init(ROOT, 100 ^ 200)
    acker.ack(ROOT, 100)
    acker.reset_timeout(ROOT)
    assert acker.ack(ROOT, 200) == ACKED


def test_timeout_ticks_sets_the_life() -> None:
    """With `timeout_ticks=n`, a root dies at the n-th tick after it was opened."""
    acker = Acker(timeout_ticks=5)
    acker.init(ROOT, 5)
    assert ticks(acker, 5) == [[], [], [], [], [TIMED_OUT]]


def test_init_does_not_refresh_a_root_that_an_ack_opened(acker: Acker) -> None:
    """The life of a root begins with its first message, whichever that is."""
    acker.ack(ROOT, 6)
    ticks(acker, 2)
    acker.init(ROOT, 5)
    assert acker.tick() == [TIMED_OUT]


def test_roots_of_one_tick_expire_in_the_order_of_their_opening(acker: Acker) -> None:
    """A tick returns the expired roots in a fixed order: the oldest first."""
    for root in (9, 3, 5):
        acker.init(root, 1)
    assert [o.root for o in ticks(acker, 3)[2]] == [9, 3, 5]


def test_root_never_initialised_expires_without_outcome(acker: Acker) -> None:
    """Nobody waits for a root without init, so its expiry is silent."""
    acker.ack(ROOT, 100)
    assert ticks(acker, 3) == [[], [], []]
    assert len(acker) == 0


def test_late_init_after_a_forgotten_ack_times_out(acker: Acker) -> None:
    """An init whose acks were forgotten cannot complete; it gets its outcome by expiry."""
    acker.ack(ROOT, 100)
    ticks(acker, 3)
    assert acker.init(ROOT, 100) is None
    assert ticks(acker, 3) == [[], [], [TIMED_OUT]]


def test_failure_without_init_is_not_forgotten(acker: Acker) -> None:
    """A failed root that expires before its init fails, and a late init cannot revive it."""
    acker.fail(ROOT)
    assert ticks(acker, 3) == [[], [], [FAILED]]
    assert acker.init(ROOT, 0) is None


# --- tombstones ------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["ack", "fail", "timeout"])
def test_e4_finished_root_is_reopened_by_nothing(acker: Acker, end: str) -> None:
    """A late init, ack, fail or reset of a finished root returns None and leaves no ghost."""
    acker.init(ROOT, 100)
    if end == "ack":
        acker.ack(ROOT, 100)
    elif end == "fail":
        acker.fail(ROOT)
    else:
        ticks(acker, 3)
    late = [acker.ack(ROOT, 100), acker.fail(ROOT), acker.reset_timeout(ROOT), acker.init(ROOT, 0)]
    assert (late, len(acker)) == ([None] * 4, 0)


def test_tombstone_outlives_the_bucket_of_its_root(acker: Acker) -> None:
    """A root that ends just before its own expiry is remembered for the full time."""
    acker.init(ROOT, 100)
    ticks(acker, 2)
    acker.ack(ROOT, 100)
    ticks(acker, 2)
    assert acker.init(ROOT, 0) is None


def test_tombstone_rotates_out(acker: Acker) -> None:
    """After `timeout_ticks` ticks a finished root is forgotten: memory stays bounded."""
    acker.init(ROOT, 0)
    ticks(acker, 3)
    assert acker.init(ROOT, 0) == ACKED


def test_finished_root_does_not_expire_again(acker: Acker) -> None:
    """A tombstone goes without an outcome: one outcome per root."""
    acker.init(ROOT, 0)
    assert ticks(acker, 6) == [[]] * 6


# --- limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("opening", ["init", "ack", "fail", "reset_timeout"])
def test_new_root_above_high_water_is_refused(opening: str) -> None:
    """Whatever message opens it, a root beyond `high_water` is refused and not tracked."""
    acker = Acker(high_water=2)
    acker.init(1, 5)
    acker.ack(2, 5)
    arguments = (ROOT, 9) if opening in ("init", "ack") else (ROOT,)
    assert getattr(acker, opening)(*arguments) == REFUSED
    assert len(acker) == 2


def test_refused_root_is_reopened_by_nothing() -> None:
    """Late messages of a refused root open nothing, even when there is room again."""
    acker = Acker(high_water=1)
    acker.init(1, 5)
    acker.init(ROOT, 9)
    acker.ack(1, 5)
    assert acker.ack(ROOT, 9) is None
    assert len(acker) == 0


def test_high_water_does_not_refuse_pending_roots() -> None:
    """Messages of roots that are tracked already pass at the mark."""
    acker = Acker(high_water=1)
    acker.init(ROOT, 9)
    assert acker.ack(ROOT, 9) == ACKED


def test_tombstones_do_not_count_as_pending() -> None:
    """Finished roots make room for new ones."""
    acker = Acker(high_water=1)
    acker.init(ROOT, 0)
    assert acker.init(8, 9) is None


@pytest.mark.parametrize("message", ["init", "ack", "fail", "reset_timeout"])
def test_root_zero_is_refused(acker: Acker, message: str) -> None:
    """A root of 0 is a program error: ids are never 0."""
    arguments = (0, 9) if message in ("init", "ack") else (0,)
    with pytest.raises(ValueError, match="root id of 0"):
        getattr(acker, message)(*arguments)


def test_one_tick_is_refused() -> None:
    """`timeout_ticks=1` would expire a root opened just before the tick."""
    with pytest.raises(ValueError, match="timeout_ticks must be at least 2, not 1"):
        Acker(timeout_ticks=1)


def test_high_water_below_one_is_refused() -> None:
    """An acker that could hold nothing is a mistake."""
    with pytest.raises(ValueError, match="high_water must be at least 1 or None, not 0"):
        Acker(high_water=0)


# --- against a stupid twin -------------------------------------------------------------------


@st.composite
def trees(draw: st.DrawFn) -> tuple[dict[int, list[int]], random.Random]:
    """A tree of edges, edge -> its children, 0 standing for the spout; and a source of order."""
    source = random.Random(draw(st.integers(0, 2**32)))
    children: dict[int, list[int]] = {0: []}
    for _ in range(draw(st.integers(0, 12))):
        parent, edge = source.choice(list(children)), draw_id(source.getrandbits)
        children[parent].append(edge)
        children[edge] = []
    return children, source


def xor(edges: list[int]) -> int:
    """XOR of a list."""
    value = 0
    for edge in edges:
        value ^= edge
    return value


@settings(deadline=None, max_examples=100)
@given(trees())
def test_acked_exactly_with_the_last_message(
    tree: tuple[dict[int, list[int]], random.Random],
) -> None:
    """In any order of messages, a tree is acked by its last one (the twin counts messages)."""
    children, source = tree
    acker, edges = Acker(), [e for e in children if e]
    source.shuffle(edges)
    place = source.randint(0, len(edges))
    outcomes = []
    for message in [*edges[:place], 0, *edges[place:]]:
        value = message ^ xor(children[message])
        outcomes.append(acker.ack(ROOT, value) if message else acker.init(ROOT, value))
    assert outcomes == [None] * len(edges) + [ACKED]


@settings(deadline=None, max_examples=100)
@given(
    st.integers(2, 4),
    st.lists(st.one_of(st.just("tick"), st.tuples(st.sampled_from("prm"), st.integers(1, 4)))),
)
def test_rotating_map_agrees_with_a_map_of_ages(
    buckets: int, script: list[str | tuple[str, int]]
) -> None:
    """The rotating map holds what a plain dictionary with an age per key would hold."""
    rotating: RotatingMap[int, str] = RotatingMap(buckets)
    ages: dict[int, int] = {}
    for what in script:
        if isinstance(what, str):
            ages = {key: age + 1 for key, age in ages.items()}
            expired = {key: f"v{key}" for key, age in ages.items() if age == buckets}
            ages = {key: age for key, age in ages.items() if age < buckets}
            assert rotating.rotate() == expired
        elif what[0] == "p":
            rotating.put(what[1], f"v{what[1]}")
            ages[what[1]] = 0
        elif what[0] == "r":
            assert rotating.remove(what[1]) == (f"v{what[1]}" if what[1] in ages else None)
            ages.pop(what[1], None)
        assert ([key in rotating for key in range(1, 5)], len(rotating)) == (
            [key in ages for key in range(1, 5)],
            len(ages),
        )


def test_rotating_map_get_does_not_refresh() -> None:
    """Reading an entry leaves its age as it is."""
    rotating: RotatingMap[str, int] = RotatingMap(2)
    rotating.put("a", 1)
    rotating.rotate()
    assert rotating.get("a") == 1
    assert rotating.rotate() == {"a": 1}
    assert rotating.get("a") is None


def test_rotating_map_keeps_one_entry_per_key() -> None:
    """A second put replaces the first, in whatever bucket that was."""
    rotating: RotatingMap[str, int] = RotatingMap(3)
    rotating.put("a", 1)
    rotating.rotate()
    rotating.put("a", 2)
    assert (len(rotating), rotating.get("a")) == (1, 2)


def test_rotating_map_of_one_bucket_is_refused() -> None:
    """Fewer than two buckets cannot keep anything for a whole interval."""
    with pytest.raises(ValueError, match="at least 2 buckets, not 1"):
        RotatingMap(1)


def test_ids_are_never_zero() -> None:
    """`draw_id` draws again when the source yields 0."""
    drawn = iter([0, 0, 42])
    assert draw_id(lambda bits: next(drawn)) == 42


def test_ids_have_64_bits() -> None:
    """`draw_id` asks its source for 64 bits."""
    assert draw_id(lambda bits: bits) == 64
