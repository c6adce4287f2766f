"""A committer that records its calls: rows as Parquet in a folder, its log a text file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from txn.attempts import TransactionAttempt
from txn.errors import CommitConflictError, FencedError, StagedFileError
from txn.interfaces import (
    Committer,
    CommitterContext,
    Prepared,
    Publication,
    Published,
    Semantics,
    Staged,
    StagedFile,
    TablePublication,
)
from txn.spark.lazy import sf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["RecordingCommitter"]

LOG = "log.jsonl"


class RecordingCommitter(Committer):
    """A table without Delta, for `Stream.partition_persist`: one line of `log.jsonl` per version.

    It keeps the contract of its semantics as `AppendTable` does, as long as one process at a time
    writes to it: enough for the tests of a program, and an example to write a committer by.

    Args:
        folder: an empty folder, or that of an earlier run.
    """

    lies_in_folder = True

    def __init__(self, folder: str | Path, semantics: Semantics | str = Semantics.OPAQUE) -> None:
        self.name = str(folder)
        self.semantics = Semantics(semantics)
        self.calls: list[str] = []
        """The calls, in order: "stage 1:0", "prepare 1:0", "publish 1:0", ..."""
        self._folder = Path(folder)
        self._lock = Lock()
        self._written = 0

    # --- the contract ------------------------------------------------------------------------

    def required_columns(self) -> Sequence[str]:
        """Require no columns: any are stored."""
        return ()

    def partials(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        """The rows themselves."""
        return batch if count_as is None else batch.withColumn(count_as, sf.lit(1))

    def open(
        self, spark: SparkSession, context: CommitterContext, schema: StructType | None
    ) -> None:
        """Make the folder."""
        self._call(f"open epoch {context.epoch}")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._epoch = context.epoch

    def fence(self) -> None:
        """Append a line with this epoch, and delete the unpublished files of older ones.

        Raises:
            FencedError: the log has a newer epoch.
        """
        self._call("fence")
        self._require_leader(self._epoch)
        self._append({"epoch": self._epoch})
        for folder in self._folder.glob("*-e*"):
            if not folder.name.endswith(f"-e{self._epoch}"):
                self._sweep(folder)

    def last_publication(self) -> tuple[int, Publication] | None:
        """The newest line that has a publication."""
        newest = next(self.publications(), None)
        return (newest.version, newest.publication) if newest else None

    def stage(self, partials: DataFrame, attempt: TransactionAttempt) -> Staged:
        """Write Parquet files that no line of the log names yet."""
        from pyarrow import parquet

        self._call(f"stage {attempt}")
        with self._lock:
            self._written += 1
            target = self._staging(attempt) / str(self._written)
        partials.write.parquet(str(target))
        files = [
            StagedFile(
                str(file.relative_to(self._folder)),
                file.stat().st_size,
                parquet.read_metadata(file).num_rows,
            )
            for file in sorted(target.glob("*.parquet"))
        ]
        return Staged(attempt, tuple(file for file in files if file.rows))

    def prepare(self, staged: Staged, publication: Publication) -> Prepared:
        """Choose the files for the next line, by the guard of the semantics."""
        self._call(f"prepare {staged.attempt}")
        for file in staged.files:
            path = self._folder / file.path
            if not path.is_file() or path.stat().st_size != file.size:
                raise StagedFileError(f"{path} is gone or changed. The batch is replayed.")
        new = list(staged.members or (staged,))
        if self.semantics is Semantics.TRANSACTIONAL:
            new = [part for part in new if self._holds(part.attempt.txid) is None]
            if not new:
                held = self._holds(publication.last_txid)
                return Prepared(staged, (), read_version=held or 0, skipped=True)
        adds = tuple(file for part in new for file in part.files)
        return Prepared(staged, adds, read_version=len(self._lines()) - 1)

    def publish(self, prepared: Prepared, publication: Publication) -> Published:
        """Append the line, unless the log has a newer epoch or attempt."""
        self._call(f"publish {prepared.staged.attempt}")
        if prepared.skipped:
            files = self._lines()[prepared.read_version]["files"]
            return Published(
                prepared.read_version, tuple(StagedFile(**f) for f in files), skipped=True
            )
        self._require_leader(publication.epoch)
        self._require_newer(publication)
        line = {
            "epoch": publication.epoch,
            "publication": publication.model_dump(mode="json"),
            "files": [asdict(file) for file in prepared.adds],
            "txids": {
                file.path: part.attempt.txid
                for part in prepared.staged.members or (prepared.staged,)
                for file in part.files
            },
        }
        return Published(self._append(line), prepared.adds)

    def discard(self, attempt: TransactionAttempt) -> None:
        """Delete a dead attempt's staged files, except those that the log names."""
        self._call(f"discard {attempt}")
        self._sweep(self._staging(attempt))

    def committed(self, attempt: TransactionAttempt) -> None:
        """Delete the staged files of a skipped replay."""
        self._call(f"committed {attempt}")
        self._sweep(self._staging(attempt))

    # --- its own log, for operations ---------------------------------------------------------

    def publications(self) -> Iterator[TablePublication]:
        """The lines that have a publication, newest first: the capability `KeepsOwnLog`."""
        for version, line in reversed([*enumerate(self._lines())]):
            if "publication" in line:
                publication = Publication.model_validate(line["publication"])
                yield TablePublication(version, publication, 0)

    def newest_epoch(self) -> int:
        """The newest epoch of any line."""
        return max((line["epoch"] for line in self._lines()), default=0)

    # --- reading by a test -------------------------------------------------------------------

    def published(self) -> dict[int, tuple[str, ...]]:
        """Txid -> files with its rows, for a reader of the table now."""
        files_of: dict[int, tuple[str, ...]] = {}
        for line in self._lines():
            if "publication" not in line:
                continue
            publication = Publication.model_validate(line["publication"])
            if self.semantics is Semantics.OPAQUE:
                first = publication.first_txid
                files_of = {txid: files for txid, files in files_of.items() if txid < first}
            for member in publication.txids:
                files = [
                    f["path"] for f in line["files"] if line["txids"][f["path"]] == member.txid
                ]
                former = files_of.get(member.txid, ())
                files_of[member.txid] = (*former, *(str(self._folder / path) for path in files))
        return files_of

    def read(self, spark: SparkSession, txid: int | None = None) -> DataFrame:
        """The published rows, of one txid or of all.

        Raises:
            ValueError: no row was published.
        """
        published = self.published()
        chosen = published if txid is None else {txid: published.get(txid, ())}
        files = [path for paths in chosen.values() for path in paths]
        if not files:
            raise ValueError(f"{self.name} holds no rows{f' of txid {txid}' if txid else ''}")
        return spark.read.parquet(*files)

    # --- the log -----------------------------------------------------------------------------

    def _staging(self, attempt: TransactionAttempt) -> Path:
        return self._folder / f"{attempt.txid}-{attempt.attempt_id}-e{self._epoch}"

    def _sweep(self, staging: Path) -> None:
        """Delete an attempt's staged files, job by job, except those that a log line names."""
        named = {file["path"] for line in self._lines() for file in line.get("files", ())}
        for job in staging.glob("*"):
            if not any(str(f.relative_to(self._folder)) in named for f in job.glob("*.parquet")):
                shutil.rmtree(job, ignore_errors=True)

    def _require_leader(self, epoch: int) -> None:
        newest = self.newest_epoch()
        if newest > epoch:
            raise FencedError(f"{self.name} was taken over by epoch {newest}.")

    def _require_newer(self, publication: Publication) -> None:
        last = self.last_publication()
        if last is None or last[1].epoch != publication.epoch:
            return
        held = {member.txid: member.attempt_id for member in last[1].txids}
        if any(held.get(new.txid, -1) >= new.attempt_id for new in publication.txids):
            raise CommitConflictError(f"{self.name} holds a newer attempt: {held}.")

    def _holds(self, txid: int) -> int | None:
        for version, line in enumerate(self._lines()):
            publication = line.get("publication")
            if publication and publication["first_txid"] <= txid <= publication["last_txid"]:
                return version
        return None

    def _lines(self) -> list[dict[str, Any]]:
        path = self._folder / LOG
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]

    def _append(self, line: dict[str, Any]) -> int:
        with self._lock, (self._folder / LOG).open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        return len(self._lines()) - 1

    def _call(self, what: str) -> None:
        with self._lock:
            self.calls.append(what)
