"""The facets that `Lineage` adds to those of OpenLineage; imports its client."""

from __future__ import annotations

from typing import Any

import attr
from openlineage.client.generated.base import InputDatasetFacet, RunFacet

__all__ = ["PositionFacet", "TransactionFacet"]


@attr.define(kw_only=True)
class TransactionFacet(RunFacet):
    """The facet of a run: its topology, txid and attempt."""

    topology: str
    txid: int
    attempt: int
    epoch: int
    firstTxidOfGroup: int  # noqa: N815 - as OpenLineage's facets are spelled
    lastTxidOfGroup: int  # noqa: N815
    quarantined: bool
    """True if it was committed empty."""


@attr.define(kw_only=True)
class PositionFacet(InputDatasetFacet):
    """The facet of an input: the part that the txid read, as the spout's own JSON."""

    stream: str
    position: Any
