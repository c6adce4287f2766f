"""The optional capabilities of spouts and committers: what the engine finds in which plugin."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from txn.interfaces import Spout, committer_capabilities, spout_capabilities
from txn.testing import (
    CommitterContract,
    ContractError,
    RecordingCommitter,
    SpoutContract,
    capabilities,
)

TABLE = (
    "ChangesShape CleansUp CompletesColumns FindsTable IdentifiesTable KeepsBytes KeepsGenerations "
    "SettlesTxids StagesTogether"
)
STATE = f"{TABLE} ChecksChanges ReadsAsOf ReportsChanges ShowsPartials"
SHIPPED = {
    "spouts.delta:DeltaSpout": "ChecksReplays CountsBytes CountsRows FindsSchema NamesLocations "
    "ReportsLag ReportsPlannedLag SizesBatches TellsBatchSize",
    "spouts.files:FileSpout": "ChecksReads ChecksReplays CountsBytes ExplainsFailures "
    "NamesLocations ReportsLag ReportsNotices ReportsPlannedLag SizesBatches StartsHere "
    "TakesCorrections TellsBatchSize UsesKeeper",
    "spouts.kafka:KafkaSpout": "ChecksReads ChecksReplays NamesLocations ReportsLag "
    "ReportsNotices ReportsPlannedLag SizesBatches TakesCorrections TellsBatchSize UsesKeeper",
    "spouts.memory:FeederSpout": "ChecksReplays CountsRows ReportsLag",
    "spouts.memory:MemoryOpaqueSpout": "",
    "spouts.memory:MemoryPartitionedSpout": "ChecksReplays CountsRows ReportsLag "
    "ReportsPlannedLag SizesBatches",
    "spouts.memory:MemoryTransactionalSpout": "ChecksReplays CountsRows ReportsLag",
    "spouts.rate:RateSpout": "CountsRows ReportsLag SizesBatches",
    "spouts.reader:ReaderSpout": "ReportsLag",
    "committers.append_table:AppendTable": f"{TABLE} HoldsRows KeepsBeside ReadableTable",
    "committers.kept_rows:KeptRows": f"{TABLE} MaintainsTable RecallsRows",
    "committers.log_layout.committer:LogCommitter": f"{STATE} DescribesState MaintainsTable "
    "RecallsRows",
    "committers.upsert_layout.committer:UpsertCommitter": f"{STATE} DescribesState",
    "txn.testing:RecordingCommitter": "CleansUp KeepsOwnLog",
    "txn.interfaces:Spout": "",
    "txn.interfaces:PartitionedSpout": "",
    "txn.interfaces:Committer": "",
}


@pytest.mark.parametrize("target", SHIPPED)
def test_a_shipped_plugin_has_its_capabilities_and_a_contract_has_none(target: str) -> None:
    """The engine finds in each class what it can do, and nothing in what all of them inherit."""
    plugin = resolve_name(target)
    module = spout_capabilities if issubclass(plugin, Spout) else committer_capabilities
    public = {name: getattr(module, name) for name in module.__all__}
    protocols = {name: one for name, one in public.items() if isinstance(one, type)}
    names = {name for name, protocol in protocols.items() if issubclass(plugin, protocol)}
    assert set(SHIPPED[target].split()) == names


def test_a_capability_is_found_in_the_object_as_in_its_class() -> None:
    """A wrapper sets the methods of the spout that it wraps; a subclass gives one up with None."""
    inner = MemoryTransactionalSpout([[("a",)]], "k string")
    wrapper = MemoryOpaqueSpout({}, "k string")
    assert capabilities(wrapper) == ()
    wrapper.lag = inner.lag  # type: ignore[attr-defined]
    assert capabilities(wrapper) == ("ReportsLag",)
    silent = type("Silent", (MemoryTransactionalSpout,), {"lag": None})([[("a",)]], "k string")
    assert capabilities(silent) == ("ChecksReplays", "CountsRows")


@pytest.mark.parametrize(
    ("base", "member", "message"),
    [
        (MemoryOpaqueSpout, {"lag": lambda self: None}, r"Own\.lag is called as lag\(newest\)"),
        (MemoryOpaqueSpout, {"notices": ("no file",)}, r"Own\.notices .* is not a callable"),
        (RecordingCommitter, {"state_as_of": lambda self, txid: None}, r"state_as_of\(txid, exact"),
        (RecordingCommitter, {"keep": 1, "kept": 2}, r"Own\.keep is called as keep\(name, content"),
    ],
)
def test_the_kits_name_a_method_that_does_not_take_what_the_engine_passes(
    tmp_path: Path, base: type, member: dict[str, Any], message: str
) -> None:
    """`isinstance` compares names only, so the kits compare the arguments."""
    own = type("Own", (base,), member)
    kit: Any = SpoutContract() if base is MemoryOpaqueSpout else CommitterContract()
    kit.make_spout = lambda folder: own({}, "k string")
    kit.make_committer = own
    with pytest.raises(ContractError, match=message):
        kit.test_it_says_what_it_is(tmp_path)
