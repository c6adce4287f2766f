"""Find a Delta table's planned versions again, in its log and its storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spouts.delta.batch import DeltaBatch, DeltaVersion
from spouts.delta.log import AddedFile, SourceLog
from txn.attempts import TransactionAttempt
from txn.errors import SourceChangedError
from txn.spark.causes import in_one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PlannedVersions"]


class PlannedVersions:
    """Finds the files of a spout's planned versions in the table's log, or refuses."""

    def __init__(self, name: str, log: SourceLog) -> None:
        self._name = name
        self._log = log

    def files(self, metadata: DeltaBatch) -> list[AddedFile]:
        """Return the files of all versions of a batch; errors as for `files_of`."""
        return [file for planned in metadata.versions for file in self.files_of(planned)]

    def files_of(self, planned: DeltaVersion) -> tuple[AddedFile, ...]:
        """Return the files of one version.

        Raises:
            SourceChangedError: the log no longer has them, or has others.
        """
        commit = self._log.read(planned.version)
        if commit is None:
            raise SourceChangedError(
                f"{self._name}: version {planned.version} was planned, but is no longer in the "
                "table's log: it was cleaned up. Restore the commit file from a backup and start "
                "the topology again; keep delta.logRetentionDuration longer than the topology "
                f"may be down. {SourceChangedError.LET_GO}",
                number="TXN-412",
            )
        files = commit.files(planned.below)
        actual = (len(files), sum(file.size for file in files))
        if actual != (planned.files, planned.size):
            raise SourceChangedError(
                f"{self._name}: version {planned.version} was planned with {planned.files} files "
                f"of {planned.size} bytes, but its log entry now has {actual[0]} files of "
                f"{actual[1]} bytes. The log was changed by hand: restore it, and start again.",
                number="TXN-412",
            )
        return files

    def require_stored(
        self, files: Sequence[AddedFile], metadata: DeltaBatch, attempt: TransactionAttempt
    ) -> None:
        """Check that files exist, with the size in the log.

        Raises:
            SourceChangedError: a file is gone or has another size.
        """
        sizes = self._log.storage.sizes([file.path for file in files])
        for file, size in zip(files, sizes, strict=True):
            if size != file.size:
                problem = "is gone (VACUUM?)" if size is None else f"has {size} bytes"
                span = f"{metadata.versions[0].version} to {metadata.versions[-1].version}"
                raise SourceChangedError(
                    f"{self._name}: file {file.path} of versions {span}, planned for {attempt}, "
                    f"{problem}; it had {file.size} bytes. Restore it from a backup and start the "
                    "topology again; a topology must not fall behind VACUUM's retention. "
                    f"{SourceChangedError.LET_GO}",
                    number="TXN-412",
                )

    def require_changes(self, metadata: DeltaBatch, attempt: TransactionAttempt) -> None:
        """Check that the files with the recorded changes of all versions exist.

        Raises:
            SourceChangedError: a file is gone.
        """
        for planned in metadata.versions:
            gone = self._missing_change_file(planned.version)
            if gone is not None:
                raise SourceChangedError(
                    f"{self._name}: {gone} with the changes of version {planned.version}, planned "
                    f"for {attempt}, is gone (VACUUM?). Restore it from a backup.",
                    number="TXN-412",
                )

    def _missing_change_file(self, version: int) -> str | None:
        paths = self._log.change_files(version)
        if paths is None:
            return "the commit file"
        sizes = self._log.storage.sizes(paths)
        return next((path for path, size in zip(paths, sizes, strict=True) if size is None), None)

    def changes(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: DeltaBatch
    ) -> DataFrame:
        """Return the recorded changes of all versions of a batch.

        Raises:
            SourceChangedError: Delta can no longer read them.
        """
        from pyspark.errors import AnalysisException

        reader = spark.read.format("delta").option("readChangeFeed", "true")
        reader = reader.options(**self._log.storage.hadoop)
        reader = reader.option("startingVersion", metadata.versions[0].version)
        reader = reader.option("endingVersion", metadata.versions[-1].version)
        try:
            return reader.load(self._log.storage.url())
        except AnalysisException as error:
            raise SourceChangedError(
                f"{self._name}: the changes of versions {metadata.versions[0].version} to "
                f"{metadata.versions[-1].version} cannot be read for {attempt}: "
                f"{in_one_line(str(error))} {SourceChangedError.LET_GO}",
                number="TXN-412",
            ) from error
