"""Everything happens to a run, one after the other: when it is seen, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from tests.dashboard.browser import browser
from tests.dashboard.recorded import CORRECTIONS, LIMIT_SECS, Recording, table
from tests.faults.support import rows_of
from tests.faults.warm import WarmJvm
from tests.thorough import THOROUGH

if TYPE_CHECKING:
    from txn.embedded import EmbeddedZooKeeper

TXIDS = (1, 2, 3, 6, 5)
"""Of each batch that was sold. Txid 4 was quarantined, and its batch came back as txid 6."""


@contextmanager
def environs() -> Iterator[Sequence[Mapping[str, str]]]:
    """What the two drivers need to find a warm JVM each, unless the tests are to be thorough."""
    jvms = [] if THOROUGH else [WarmJvm.lend(), WarmJvm.lend()]
    try:
        yield [jvm.environment for jvm in jvms] or [{}, {}]
    finally:
        for jvm in jvms:
            jvm.give_back()


def test_what_happens_to_a_run_is_seen_within_two_seconds(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """A driver that is killed, its standby, a source that is away, a quarantined batch and its
    replay are on the page and in Prometheus within two seconds, and each record is counted once.

    Time in which something on the machine waits for a CPU does not count.
    """
    hosts = f"{zookeeper.hosts}/{tmp_path.name}"
    with (
        environs() as found,
        browser() as chrome,
        Recording(tmp_path, hosts, chrome, found) as recording,
    ):
        steps = list(recording.steps())
    print(f"\n{table(steps)}")
    assert len(steps) == 12
    assert [step for step in steps if step.late > LIMIT_SECS] == []
    assert recording.console == []
    sold = [
        (shop, Decimal(CORRECTIONS.get(amount, amount)), txid)
        for txid, batch in zip(TXIDS, recording.sold, strict=True)
        for shop, amount in batch
    ]
    assert rows_of(tmp_path / "warehouse/sales", "shop", "amount", "txid") == sorted(sold)
    amounts: dict[str, list[Decimal]] = {}
    for shop, amount, _ in sold:
        amounts.setdefault(shop, []).append(amount)
    totals = [(shop, len(each), sum(each)) for shop, each in sorted(amounts.items())]
    assert rows_of(tmp_path / "warehouse/totals", "shop", "sales", "amount") == totals
