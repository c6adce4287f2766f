from __future__ import annotations

from pathlib import Path

import pytest

from committers.append_table import AppendTable
from spouts.rate import RateSpout
from txn import Topology
from txn.errors import TopologyError, UserError
from txn.operations.loading import TargetError
from txn.operations.recover import read_tables


def topology(folder: Path) -> Topology:
    result = Topology("t")
    rows = result.stream("rows", RateSpout(1, total=1))
    rows.partition_persist(AppendTable(str(folder / "rows")))
    return result


def test_a_table_that_the_topology_lacks_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    """Whoever names a new table that is none is told which ones there are."""
    with pytest.raises(TargetError, match=r"no table 'other', but '.*rows'"):
        read_tables(topology(tmp_path), ["other"])


def test_without_any_table_there_is_nothing_to_recover_from(tmp_path: Path) -> None:
    """It is refused, and names the table that is not there."""
    with pytest.raises(UserError, match="no Delta table at"):
        read_tables(topology(tmp_path))


def test_a_topology_that_ends_nowhere_has_no_tables() -> None:
    """It is refused before anything is looked at."""
    with pytest.raises(TopologyError, match="ends nowhere"):
        read_tables(Topology("t"))
