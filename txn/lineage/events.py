"""OpenLineage events: for each committed txid what it read and which table versions hold it.

    topology.run(spark, observers=[Lineage()])

A txid is a run of a job that has the topology's name. See docs/tracing.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from txn.errors import SetupError
from txn.observers import AttemptBegan, BatchCommitted, RunBegan, RunEnded, RunEvent, TablePublished
from txn.positions import read_of
from txn.storage.locations import identity
from txn.text import first_line

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, OutputDataset

__all__ = ["Lineage", "is_asked_for"]

_PRODUCER = "https://pypi.org/project/txn-spark"
_NAMESPACE_VARIABLE = "OPENLINEAGE_NAMESPACE"
_MOST_ENTRIES = 10_000
"""Most entries about attempts that are not committed yet; a run has fewer in flight."""


def is_asked_for(environment: Mapping[str, str]) -> bool:
    """True if the environment configures OpenLineage's client."""
    if environment.get("OPENLINEAGE_DISABLED", "").lower() == "true":
        return False
    return any(
        value
        and name.startswith(("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT"))
        for name, value in environment.items()
    )


class Lineage:
    """An observer that sends OpenLineage events. Needs the extra `openlineage`.

    Args:
        client: sends them; it stays open. None: a client for each run, as `OPENLINEAGE_*` or the
            file `openlineage.yml` configures it.

    Raises:
        SetupError: the package is missing, or the client's settings are invalid.
    """

    def __init__(self, client: OpenLineageClient | None = None) -> None:
        try:
            import openlineage.client  # noqa: F401
        except ImportError as error:
            raise SetupError(
                f"Lineage needs OpenLineage's client, which is missing ({error}). Install it: pip "
                "install 'txn-spark[openlineage]'.",
                number="TXN-211",
            ) from error
        self._program_client = client
        self._client: OpenLineageClient | None = _make_client() if client is None else client
        self._sources: Mapping[str, tuple[str, ...]] = {}
        self._planned: dict[Any, float] = {}
        """attempt -> time of its plan."""
        self._published: dict[tuple[str, int], TablePublished] = {}
        """(table, version) -> its publication."""

    def observe(self, event: RunEvent) -> None:
        """Take an event; send one for each committed txid."""
        match event:
            case RunBegan():
                self._sources = event.sources
                if self._client is None:
                    self._client = _make_client()
            case AttemptBegan():
                self._planned[event.attempt] = event.planned_at
                _drop_oldest(self._planned)
            case TablePublished():
                self._published[event.table, event.version] = event
                _drop_oldest(self._published)
            case BatchCommitted():
                self._send(event)
            case RunEnded():
                self._end()

    def _end(self) -> None:
        self._planned, self._published = {}, {}
        if self._program_client is None and self._client is not None:
            self._client.close()
            self._client = None

    def _send(self, event: BatchCommitted) -> None:
        from openlineage.client.event_v2 import Job, Run, RunState
        from openlineage.client.event_v2 import RunEvent as LineageEvent
        from openlineage.client.facet_v2 import job_type_job, nominal_time_run
        from openlineage.client.uuid import generate_new_uuid

        from txn.lineage.facets import TransactionFacet

        assert self._client is not None
        at = datetime.fromtimestamp(event.at, timezone.utc)
        planned = datetime.fromtimestamp(self._planned.pop(event.attempt, event.at), timezone.utc)
        facets: dict[str, Any] = {
            "nominalTime": nominal_time_run.NominalTimeRunFacet(
                planned.isoformat(), at.isoformat(), producer=_PRODUCER
            ),
            "txn": TransactionFacet(
                topology=event.topology,
                txid=event.attempt.txid,
                attempt=event.attempt.attempt_id,
                epoch=event.epoch,
                firstTxidOfGroup=event.group[0].txid,
                lastTxidOfGroup=event.group[-1].txid,
                quarantined=event.quarantined,
                producer=_PRODUCER,
            ),
        }
        kind = job_type_job.JobTypeJobFacet("BATCH", "TXN", "TRANSACTION", producer=_PRODUCER)
        self._client.emit(
            LineageEvent(
                eventType=RunState.COMPLETE,
                eventTime=at.isoformat(),
                run=Run(str(generate_new_uuid(planned)), facets),
                job=Job(_namespace(), event.topology, {"jobType": kind}),
                inputs=self._inputs(event),
                outputs=self._outputs(event),
                producer=_PRODUCER,
            )
        )
        if event.attempt == event.group[-1]:
            for table, version in event.tables.items():
                self._published.pop((table, version), None)

    def _inputs(self, event: BatchCommitted) -> list[InputDataset]:
        """Return the datasets that each stream read; streams without input are left out."""
        from openlineage.client.event_v2 import InputDataset
        from openlineage.client.facet_v2 import input_statistics_input_dataset as statistics

        from txn.lineage.facets import PositionFacet

        datasets = []
        for stream, metadata in event.metadata.items():
            if metadata is None:
                continue
            places = [dataset_of(place) for place in self._sources.get(stream, ())]
            facets: dict[str, Any] = {
                "txn_position": PositionFacet(
                    stream=stream, position=read_of(metadata), producer=_PRODUCER
                )
            }
            if len(places) <= 1:
                # With several places, the share of each is unknown.
                facets["inputStatistics"] = statistics.InputStatisticsInputDatasetFacet(
                    rowCount=event.input_records.get(stream),
                    size=event.input_bytes.get(stream),
                    producer=_PRODUCER,
                )
            for namespace, name in places or [(_namespace(), f"{event.topology}.{stream}")]:
                datasets.append(InputDataset(namespace, name, inputFacets=facets))
        return datasets

    def _outputs(self, event: BatchCommitted) -> list[OutputDataset]:
        """Return the tables, each with the version that holds the txid."""
        from openlineage.client.event_v2 import OutputDataset
        from openlineage.client.facet_v2 import dataset_version_dataset as versions
        from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

        datasets = []
        for table, version in event.tables.items():
            published = self._published.get((table, version))
            facets: dict[str, Any] = {}
            # A group's version is counted once, at its last txid.
            if published is not None and event.attempt == event.group[-1]:
                facets["outputStatistics"] = statistics.OutputStatisticsOutputDatasetFacet(
                    rowCount=published.rows,
                    size=published.bytes,
                    fileCount=published.files,
                    producer=_PRODUCER,
                )
            version_facet = versions.DatasetVersionDatasetFacet(str(version), producer=_PRODUCER)
            datasets.append(
                OutputDataset(
                    *dataset_of(table), facets={"version": version_facet}, outputFacets=facets
                )
            )
        return datasets


def dataset_of(place: str) -> tuple[str, str]:
    """Return OpenLineage's (namespace, name) of a local path or a URI, by its conventions."""
    parts = urlsplit(place)
    if parts.scheme == "kafka":
        return f"kafka://{parts.netloc}", parts.path.lstrip("/")
    location = identity(place)
    parts = urlsplit(location)
    if location.startswith("/") or len(parts.scheme) <= 1:
        return "file", Path(location).as_posix()
    return f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/") or "/"


def _namespace() -> str:
    return os.environ.get(_NAMESPACE_VARIABLE) or "txn"


def _drop_oldest(entries: dict[Any, Any]) -> None:
    if len(entries) > _MOST_ENTRIES:
        del entries[next(iter(entries))]


def _make_client() -> OpenLineageClient:
    from openlineage.client import OpenLineageClient

    before = set(os.environ)
    try:
        return OpenLineageClient()
    except Exception as error:
        raise SetupError(
            f"OpenLineage's client cannot be made from its settings: {first_line(error)}. Correct "
            "the variables OPENLINEAGE_*, or the file openlineage.yml.",
            number="TXN-214",
        ) from error
    finally:
        # The client writes settings derived from OPENLINEAGE_URL, with the API key, into the
        # environment: every process started later would send lineage as well.
        for name in set(os.environ) - before:
            if name.startswith("OPENLINEAGE__"):
                del os.environ[name]
