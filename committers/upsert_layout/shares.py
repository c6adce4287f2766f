"""Distribute the hash buckets of a rewrite over tasks."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["HASHED_BYTES", "MOST_TASKS", "TASK_BYTES", "shared_out"]

HASHED_BYTES = 32 * 1024 * 1024
"""Largest staged (compressed) size of partials that a task joins in memory."""
TASK_BYTES = 1024 * 1024
"""Stored and staged bytes on a local disk that are worth a separate task."""
MOST_TASKS = 32
"""The most tasks of a rewrite: each adds to Spark's plan, and to the time to make it."""


def shared_out(
    stored: Sequence[tuple[int, int]],
    staged: Sequence[tuple[int, int]],
    slots: int,
    task_bytes: int | None = None,
) -> tuple[list[set[int]], bool]:
    """(hash buckets per task, of about the same bytes; True if the partials are hashed).

    Args:
        stored: (bucket, bytes) of each file of the table.
        staged: (bucket, bytes) of each file of partials.
        slots: tasks that can run at once.
        task_bytes: stored and staged bytes that are worth a separate task; None: `TASK_BYTES`.
    """
    sizes, partials = (_summed(files) for files in ([*stored, *staged], staged))
    worthwhile = sum(sizes.values()) // (task_bytes or TASK_BYTES)
    few = max(1, min(slots, MOST_TASKS, worthwhile, len(sizes)))
    for tasks in (few, len(sizes)):
        shares: list[set[int]] = [set() for _ in range(tasks)]
        loads = [0] * tasks
        for bucket in sorted(sizes, key=lambda one: (-sizes[one], one)):
            least = loads.index(min(loads))
            shares[least].add(bucket)
            loads[least] += sizes[bucket]
        if all(sum(partials.get(one, 0) for one in share) <= HASHED_BYTES for share in shares):
            return shares, True
    return [set(sizes)], False


def _summed(files: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Bucket -> bytes."""
    sums: dict[int, int] = {}
    for bucket, size in files:
        sums[bucket] = sums.get(bucket, 0) + size
    return sums
