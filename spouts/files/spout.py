"""A transactional spout over files: each file is in exactly one batch, whenever it arrives.

The metadata of a batch names its files with their sizes and times, so a replay reads the same bytes
or refuses. Short digests (`spouts/files/folder/seen.py`) record the files that this and all earlier
batches took. So a file that arrives late, with an older time or a smaller name, is still read.

Move files in atomically (write elsewhere on the same file system, then rename): a file under its
final name counts as complete. A file that was read is not read again when it changes; a notice
warns of it (`spouts/files/notices.py`).
"""

from __future__ import annotations

import json
import logging
import os
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import unquote

from spouts._schemas import (
    NewColumns,
    as_nullable,
    as_struct,
    check_new_columns,
    check_same,
    conformed,
    with_new,
)
from spouts._sizes import BatchSize, Size
from spouts._uris import plain
from spouts.files.batch import FileBatch, PlannedFile, changed_error
from spouts.files.folder.backlog import Backlog
from spouts.files.folder.listing import FileStat, Listing
from spouts.files.folder.polls import Poll, Polls
from spouts.files.folder.seen import Taken, Taking
from spouts.files.inference import MOST_FILES, inferred
from spouts.files.inlet import FileInlet
from spouts.files.moved import Moved, check_moved_from, moved_names
from spouts.files.notices import FileNotices
from spouts.files.reading import FileReader, reader_defaults
from spouts.files.source_files import SourceFiles
from spouts.files.unread_columns import UnreadColumns
from spouts.files.unreadable import Unreadable
from spouts.records.bad_rows import PARSED, OnBadRows, marks, marks_of, permissive, with_text
from spouts.records.options import check_options
from txn.attempts import TransactionAttempt
from txn.errors import (
    BatchError,
    FailedException,
    SourceChangedError,
    StorageUnavailableError,
    TopologyError,
)
from txn.interfaces import Keeper, Lag, Spout, SpoutKind
from txn.spark.causes import is_of_spark
from txn.spark.lazy import st
from txn.spark.origins import unnoted
from txn.spark.rows import no_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["FileBatch", "FileSpout", "PlannedFile"]

Format = Literal["csv", "json", "parquet", "text"]
_SMALL_FILES = (1, 100)
_SMALL_BYTES = 256 * 1024**2
"""Most bytes of a txid with several files, unless the user says how many files it has."""
_LOOK = 100_000
"""Most names of one poll that are kept, so that later batches need no poll."""
_EXTRA = "extra_options={} takes what only a codec or a file system of your own knows."

log = logging.getLogger("txn.spouts.files")


class FileSpout(Spout[FileBatch]):
    """Reads the files that match a pattern, in name order, a few per batch.

    Within one look at the folder, files come in name order (so `month-01` before `month-02`);
    files that arrive later come in later batches. Names with a leading "." or "_" and names that
    end in ".tmp" or "._COPYING_" are skipped.

    Args:
        path_glob: path or URI with `*`, `?`, `[...]`, `**`; a relative one starts at the folder in
            which the program was started.
        format: "csv", "json", "parquet" or "text".
        schema: DDL or StructType; None: Spark infers it once, from the first file in name order,
            and keeps it. "text" has one column, `value string`.
        look_every_secs: how often a URI's storage is listed at most, in seconds. A local folder is
            listed whenever the spout is asked.
        files_per_batch: most files in one txid; (least, most): at most `least` while the topology
            is caught up, and up to `most` while it is behind. None: one file while it is caught
            up, and while it is behind up to 100 that have 256 MB together.
        forget_missing: True: forget files that are gone from the folder. If such a file comes back,
            even because the folder was out of reach for a moment, it is read again. False: never
            forget.
        bad_rows: what becomes of records of "csv" and "json" files that do not parse or do not fit
            the schema, and of whole files that cannot be read. "fail": the batch fails. "drop" and
            "set_aside": as for a rule of `Stream.expect`; what is set aside has the file and the
            record's own text.
        new_columns: what becomes of columns of a file that the schema lacks. "fail": the run stops
            before that file. "ignore": they are not read, and a notice names them. "add": the run
            stops before that file, and the next start reads them; rows of files without them have
            NULL. None: JSON and Parquet ignore them, a CSV header with them fails its batch.
        moved_from: the folder in which the files were when they were read, if it was moved or
            copied since: they are then not read again. It may stay there. False: files of another
            folder with the same names are other files.
        storage_options: credentials and endpoints of a URI's storage, by object_store's names
            (`aws_endpoint_url`); what they leave out comes from the environment.
        extra_options: options that a codec or a file system of your own knows; not checked.
        reader_options: passed to Spark's reader, which must know them. By default a record that
            does not fit the schema fails the batch (`mode="FAILFAST"`), and so does a CSV header
            with other columns than the schema (`enforceSchema=False`).

    Raises:
        TopologyError: an unknown format or option, a `files_per_batch` below 1, or an invalid
            range.
    """

    kind = SpoutKind.TRANSACTIONAL
    metadata_type = FileBatch
    begins_alike = True

    def __init__(
        self,
        path_glob: str | os.PathLike[str],
        *,
        format: Format,  # noqa: A002 - Spark's own word
        schema: str | StructType | None = None,
        files_per_batch: Size | None = None,
        forget_missing: bool = False,
        bad_rows: OnBadRows = "fail",
        storage_options: Mapping[str, str] | None = None,
        look_every_secs: float = 1.0,
        new_columns: NewColumns | None = None,
        moved_from: Moved = None,
        extra_options: Mapping[str, Any] | None = None,
        **reader_options: Any,
    ) -> None:
        if not isinstance(path_glob, str | os.PathLike):
            raise TopologyError(
                f"FileSpout({path_glob!r}) needs one pattern, as text or a path. For files in "
                "several folders use * or [ab] in it, or a stream for each folder and `merge`.",
                number="TXN-408",
            )
        path_glob = os.fspath(path_glob)
        if format not in get_args(Format):
            raise TopologyError(
                f"FileSpout({path_glob!r}) cannot read format {format!r}. Formats are: "
                f"{', '.join(get_args(Format))}.",
                number="TXN-408",
            )
        self._listing = Listing(path_glob, storage_options)
        self._name = f"FileSpout({path_glob!r})"
        self._polls = self._polls_every(look_every_secs)
        if new_columns is not None:
            check_new_columns(new_columns, self._name)
        check_options(format, reader_options, self._name, _EXTRA)
        reader_options |= extra_options or {}
        self._format = format
        self._given = "value string" if format == "text" and schema is None else schema
        self._most_bytes = _SMALL_BYTES if files_per_batch is None else None
        size = _SMALL_FILES if files_per_batch is None else files_per_batch
        self._size = BatchSize(size, self._name, "files_per_batch")
        self._forget_missing = forget_missing
        check_moved_from(self._name, moved_from)
        self._moved_from = moved_from
        self._options = reader_defaults(format, self._with_base_path(reader_options))
        self.unparsed = marks_of(
            self._name, bad_rows, format, reader_options, position="txn_file", of_files=True
        )
        if self.unparsed is not None and format in PARSED:
            self._options |= permissive(self.unparsed.text)
        self._schema: StructType | None = None
        self._taking = Taking()
        self._backlog = Backlog(self._listing, _LOOK)
        self._position: FileBatch | None = None
        """The position that the next batch follows, unless a run has failed or begins."""
        self._notices = FileNotices(self._name, self._listing, self._polls)
        own_codec = bool(extra_options)
        self._files = SourceFiles(
            self._name, self._listing, format, self._options, self.unparsed, own_codec, new_columns
        )
        self._unreadable = Unreadable(self._files)
        self._unread = UnreadColumns(self._files)
        self._reader = FileReader(self._files, self._notices.tell_replaced)

    def _polls_every(self, secs: Any) -> Polls:
        if isinstance(secs, bool) or not isinstance(secs, int | float) or not secs >= 0:
            raise TopologyError(
                f"{self._name} was given look_every_secs={secs!r}, which is not a number of "
                "seconds from 0 on.",
                number="TXN-415",
            )
        return Polls(self._listing, secs, _LOOK, time.monotonic)

    def _with_base_path(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return options with the whole path of `basePath`, which Spark would resolve elsewhere."""
        whole = dict(options)
        for option in [name for name in options if name.lower() == "basepath"]:
            whole[option] = self._listing.spark_ancestor(str(options[option]))
            if whole[option] is None:
                raise TopologyError(
                    f"{self._name}: {option}={options[option]!r} is not above the files of the "
                    f"pattern, which lie in {self._listing.folder}. Name that folder or one above "
                    "it, spelled as the pattern is: every folder k=v below it becomes a column k.",
                    number="TXN-408",
                )
        return whole

    def inlet(self) -> FileInlet:
        """Return the inlet of the pattern's folder, in which every file is read once."""
        return FileInlet(self._name, self._listing, self._format, self._options)

    def keep_with(self, keeper: Keeper) -> None:
        """Store digests with the keeper, so that a position has at most a few hundred."""
        self._taking = (
            Taking()
        )  # empty, so that each run reads every segment and restores lost copies
        self._taking.keeper = keeper

    def __repr__(self) -> str:
        """Return the pattern that it reads."""
        return self._name

    def starts_here(self) -> bool:
        """Return whether the pattern is relative."""
        return self._listing.kind == "relative"

    def locations(self) -> tuple[str, ...]:
        """Return the folder above the first pattern in its path."""
        return (self._listing.folder,)

    def open(self, spark: SparkSession, previous: FileBatch | None) -> StructType:
        """Determine the schema: the given one, that of earlier runs, or an inferred one.

        Raises:
            TopologyError: the schema or the spelling of paths differs from earlier runs; the
                pattern is a folder; Spark does not know the encoding or the locale; or there is no
                file to infer a schema from.
            ProgressUnreadableError: the stored list of the files read so far is gone.
        """
        if self._listing.is_folder():
            raise TopologyError(
                f"{self._name} names a folder. Name the files in it: "
                f"{self._listing.pattern.rstrip('/') + '/*.' + self._format!r}.",
                number="TXN-408",
            )
        if previous is not None:
            self._check_spelling(previous)
            self._taking.moved = None  # what is compared has its names of then already
            self._taking.moved = moved_names(
                self._name, self._listing, self._taking, previous, self._moved_from
            )
            try:
                self._taking.load(previous)
            except (OSError, StorageUnavailableError) as error:
                log.warning("%s: %s. It tries again when it plans a batch.", self._name, error)
        self._polls.begin()
        self._files.check_values(spark)
        self._schema = self._settle_schema(spark, previous)
        return self._emitted(self._schema)

    def batch_size_in_words(self) -> str:
        """Return how large a txid is, in words."""
        return self._size.in_words("file", "" if self._most_bytes is None else " and 256 MB")

    def set_batch_target(self, share: float) -> None:
        """Move within the range of `files_per_batch`."""
        self._size.set_target(share)

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: FileBatch | None
    ) -> FileBatch | None:
        """Plan the first files, in name order, that no earlier batch took.

        Raises:
            FailedException: the storage does not answer.
        """
        try:
            return self._plan(previous)
        except Exception as error:
            self._begin_anew()  # files were taken from the backlog, but are in no batch
            if not isinstance(error, OSError):
                raise
            raise FailedException(
                f"{self._name} could not list its files for {attempt}: {error}. It will try again."
            ) from error

    def _begin_anew(self) -> None:
        self._backlog.clear()
        self._polls.begin()

    def _plan(self, previous: FileBatch | None) -> FileBatch | None:
        taken: Taken | None = previous
        if previous != self._position:
            self._begin_anew()
            self._position = previous
        files = self._next_files()
        if not files:
            poll = self._polls.poll(lambda names: self._taking.unseen(names, previous))
            if poll is None:
                return None
            taken = self._keep_files(poll, previous)
            files = self._next_files()
        if not files:
            return None
        taken = self._taking.after(taken, [file.path for file in files])
        self._position = FileBatch(
            files=tuple(files),
            spelling=self._listing.kind,
            read_schema=self._opened().json(),
            seen=taken.seen,
            segments=taken.segments,
            named_as=None if self._taking.moved is None else self._taking.moved[1],
            newest_ns=self._notices.newest(
                None if previous is None else previous.newest_ns,
                [file.mtime_ns for file in files],
                is_first=previous is None,
            ),
        )
        self._notices.take((file.path, file.mtime_ns) for file in files)
        self._unread.look([file.path for file in files], self._opened())
        return self._position

    def _keep_files(self, poll: Poll, previous: FileBatch | None) -> Taken | None:
        """Keep the files of a poll for the next batches. Returns the files taken so far."""
        taken: Taken | None = previous
        if poll.is_whole:
            self._notices.tell_if_empty(poll.names)
            if taken is not None and self._forget_missing:
                taken = self._taking.without_missing(poll.names, taken)
            if previous is None:
                self._notices.tell_nothing_changed()
            else:
                self._notices.tell_changed(poll, previous.newest_ns)
        self._backlog.fill(poll)
        return taken

    @unnoted()
    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: FileBatch
    ) -> DataFrame:
        """Return the rows of the planned files, after a check that the files have not changed.

        Raises:
            SourceChangedError: a file is gone, or is another one than planned.
            BatchError: a file cannot be read.
            FailedException: the storage does not answer.
        """
        self._require_planned(attempt, metadata)
        schema = st.StructType.fromJson(json.loads(metadata.read_schema))
        unread = self._not_readable(metadata, attempt, whole=attempt.attempt_id > 0)
        if unread and self.unparsed is None:
            raise _not_read(self._unreadable.message(unread, metadata.sizes), attempt)
        files = [file for file in metadata.files if file.path not in unread]
        if not files and not unread:
            return no_rows(spark, self._emitted(self._opened()))
        rows = self._reader.rows(spark, attempt, files, schema) if files else None
        if unread and self.unparsed is not None:
            aside = self._unreadable.rows(spark, unread, metadata.sizes, schema, self.unparsed)
            rows = aside if rows is None else rows.unionByName(aside)
        assert rows is not None
        # A batch from before a column was added has NULL in it.
        return conformed(rows, self._emitted(self._opened()))

    def _not_readable(
        self, metadata: FileBatch, attempt: TransactionAttempt, *, whole: bool
    ) -> dict[str, str]:
        """Return the unreadable files of a batch with the reasons."""
        if self._files.are("ignorecorruptfiles"):
            return {}
        try:
            return self._unreadable.among(metadata.sizes, whole=whole)
        except OSError as error:
            raise FailedException(
                f"{self._name} could not look into the files of {attempt}: {error}. The batch is "
                "replayed."
            ) from error

    def read_failed(self, attempt: TransactionAttempt, metadata: FileBatch) -> None:
        """Check all bytes of the files, as `emit_batch` does from the second attempt on.

        Raises:
            BatchError: a file cannot be read.
            FailedException: a file cannot be read, and the next attempt sets it aside.
        """
        unread = self._not_readable(metadata, attempt, whole=True)
        if not unread:
            return
        if self.unparsed is None:
            raise _not_read(self._unreadable.message(unread, metadata.sizes), attempt)
        named = self._unreadable.named(unread, metadata.sizes)
        raise FailedException(f"{named}. The next attempt leaves such files to bad_rows.")

    def _emitted(self, schema: StructType) -> StructType:
        """Return the columns of the DataFrames, given those of the files."""
        return with_text(schema, *marks(self.unparsed))

    def readable(self, attempt: TransactionAttempt, metadata: FileBatch) -> FileBatch:
        """Return the batch, if its files are still what was planned; raises as `emit_batch`."""
        self._require_planned(attempt, metadata)
        return metadata

    def _require_planned(self, attempt: TransactionAttempt, metadata: FileBatch) -> None:
        for file, stat in zip(metadata.files, self._current_stats(metadata, attempt), strict=True):
            if stat is None or not stat.is_still(file.stat):
                raise changed_error(file, stat, attempt)

    def planned_parts(self, metadata: FileBatch) -> Sequence[str]:
        """Return the paths of the batch: one edge per file."""
        return [file.path for file in metadata.files]

    def planned_bytes(self, metadata: FileBatch) -> int:
        """Return the bytes of the files in storage, compressed or not."""
        return sum(file.size for file in metadata.files)

    def lag(self, newest: FileBatch | None) -> Lag:
        """Return the listed files that are in no batch, and their bytes.

        The bytes of more than 10,000 files are unknown.

        Raises:
            OSError: the storage does not answer.
        """
        return self._backlog.lag()

    def planned_lag(self, metadata: FileBatch) -> Lag:
        """Return the files of the batch, and their bytes."""
        return Lag(files=len(metadata.files), bytes=self.planned_bytes(metadata))

    def notices(self) -> Sequence[str]:
        """Return the notices: no file, files changed after they were read, columns not read."""
        return [*self._notices.texts(), *self._unread.texts()]

    def parts_read(self, batch: DataFrame, metadata: FileBatch) -> Sequence[str]:
        """Return the paths that Spark's plan of `batch` reads, spelled as they were planned.

        Includes a file that cannot be read and is set aside.
        """
        planned = {plain(self._listing.uri(f.path)): f.path for f in metadata.files}
        read = [plain(unquote(uri)) for uri in batch.inputFiles()]
        parts = [planned.get(path, path) for path in read]
        seen = set(parts)
        missing = {path: size for path, size in metadata.sizes.items() if path not in seen}
        if missing and self.unparsed is not None:
            parts += self._unreadable.among(missing, whole=True)
        return sorted(parts)

    def check_read(self, attempt: TransactionAttempt, metadata: FileBatch) -> None:
        """Check that the files read were still the planned ones.

        Spark opens the files some time after `emit_batch` has checked them.

        Raises:
            FailedException: a file was replaced meanwhile; the replay is refused and names it.
        """
        for file, stat in zip(metadata.files, self._current_stats(metadata, attempt), strict=True):
            if stat is not None and not stat.is_still(file.stat):
                raise FailedException(str(changed_error(file, stat, attempt)))

    def _next_files(self) -> list[PlannedFile]:
        """Take the files of a batch from the backlog."""
        taken = self._backlog.take(self._size.now)
        few = self._within_bytes(taken)
        if few < len(taken):
            self._backlog.give_back(taken[few:])
            taken = taken[:few]
        for i, (name, _) in enumerate(taken):
            try:
                self._check_readable(name)
                self._unread.refuse_new(name, self._opened(), declared=self._given is not None)
            except (TopologyError, SourceChangedError):
                if i == 0:
                    raise
                self._backlog.give_back(taken[i:])  # the files before it are still delivered
                taken = taken[:i]
                break
        return [
            PlannedFile(path=name, size=stat.size, mtime_ns=stat.mtime_ns, version=stat.version)
            for name, stat in taken
        ]

    def _within_bytes(self, files: Sequence[tuple[str, FileStat]]) -> int:
        """The number of files, from the first one on, whose bytes fit into a txid; at least one."""
        if self._most_bytes is None:
            return len(files)
        totals = list(accumulate(stat.size for _, stat in files))
        return max(1, bisect_right(totals, self._most_bytes))

    def _check_readable(self, name: str) -> None:
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            raise TopologyError(
                f"{self._name} matches {os.fsencode(name)!r}, whose name is not UTF-8, so neither "
                "Spark nor ZooKeeper can take it. Rename the file.",
                number="TXN-408",
            ) from None
        if not self._listing.remote and ":" in name.rpartition("/")[2]:
            raise TopologyError(
                f"{self._name} matches {name}, but Spark reads through Hadoop, which cannot open "
                "a local file with a colon in its name. Rename the file.",
                number="TXN-408",
            )

    def _current_stats(
        self, metadata: FileBatch, attempt: TransactionAttempt
    ) -> Sequence[FileStat | None]:
        """Return the current stats of a batch's files."""
        for file in metadata.files:
            if not self._listing.is_below_base(file.path):
                raise TopologyError(
                    f"{self._name} should read {file.path!r} for {attempt}, but its pattern does "
                    "not reach that path: the pattern was changed, or the folder was moved, while "
                    "that batch was open. Run it once more with the old pattern, and, if the "
                    "folder was moved, with a link to it in its old place (ln -s NEW OLD); then "
                    "stop it, and start it as it is now.",
                    number="TXN-408",
                )
        try:
            return self._listing.stats([file.path for file in metadata.files])
        except OSError as error:
            raise FailedException(
                f"{self._name} could not look at the files of {attempt}: {error}. The batch is "
                "replayed."
            ) from error

    def _settle_schema(self, spark: SparkSession, previous: FileBatch | None) -> st.StructType:
        stored = st.StructType.fromJson(json.loads(previous.read_schema)) if previous else None
        adds = self._files.new_columns == "add"
        if self._given is None:
            if stored is None or not adds:
                return stored or self._inferred(spark)
            unseen = self._taking.unseen(self._listing.names(), previous)[:MOST_FILES]
            new = next((name for name in unseen if self._unread.new(name, stored)), None)
            return with_new(stored, inferred(spark, self._files, [new])) if new else stored
        declared = as_nullable(as_struct(self._given, self._name))
        if self._format == "text" and declared.simpleString() != "struct<value:string>":
            raise TopologyError(
                f"{self._name} reads text, whose only column is `value string`, but its schema is "
                f"{declared.simpleString()}. Leave the schema out, or name another format.",
                number="TXN-410",
            )
        if stored is None:
            return declared
        if not adds:
            known = {field.name.lower() for field in stored}
            later = [f.name for f in declared if f.name.lower() not in known]
            hint = (
                f" For a column that files get later ({', '.join(later)}): new_columns='add' reads "
                "it from the next batch on; batches that are planned already have NULL in it."
                if later
                else ""
            )
            check_same(stored, declared, self._name, hint)
            return declared
        by_name = {field.name.lower(): field for field in declared}
        former = [by_name[f.name.lower()] for f in stored if f.name.lower() in by_name]
        check_same(stored, st.StructType(former), self._name)
        return with_new(stored, declared)

    def _inferred(self, spark: SparkSession) -> StructType:
        names = self._listing.first_few(MOST_FILES)
        for name in names:
            self._check_readable(name)
        names = self._readable(names, whole=False)
        try:
            return inferred(spark, self._files, names)
        except Exception as error:
            left = self._readable(names, whole=True)
            if left == names or not is_of_spark(error):
                raise
            return inferred(spark, self._files, left)

    def _readable(self, names: list[str], *, whole: bool) -> list[str]:
        """Return the readable ones of some files.

        Raises:
            TopologyError: a file cannot be read, and such files are not set aside.
        """
        stats = zip(names, self._listing.stats(names), strict=True)
        sizes = {name: stat.size for name, stat in stats if stat is not None}
        unread = self._unreadable.among(sizes, whole=whole)
        if unread and self.unparsed is None:
            raise TopologyError(self._unreadable.message(unread, sizes), number="TXN-424")
        return [name for name in names if name not in unread]

    def _check_spelling(self, previous: FileBatch) -> None:
        if previous.spelling != self._listing.kind:
            raise TopologyError(
                f"{self._name} spells its paths differently from the batches read so far "
                f"({previous.spelling} then, {self._listing.kind} now), so files already read "
                "would not be recognised and would be read twice. Spell the pattern as before.",
                number="TXN-408",
            )

    def _opened(self) -> StructType:
        if self._schema is None:
            raise TopologyError(
                f"{self._name} was asked for a batch before it was opened.", number="TXN-116"
            )
        return self._schema


def _not_read(problem: str, attempt: TransactionAttempt) -> BatchError:
    again = f"Nothing of batch {attempt} is stored; run again, and it is replayed."
    return BatchError(f"{problem} {again}", number="TXN-424")
