"""A simulated store with Delta tables in it: `DeltaTable` and `Storage` as the product uses them.

A version of a table is one commit file, and an append creates it if it is not there: that is all
the store promises. Commit files are the JSON that the product writes and parses; that of version 0
is made here, in place of delta-rs. An append may be refused, may land while its answer is lost, and
may land later than its answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

import committers.publishing.append
from committers.publishing.append import commit_actions, commit_text
from committers.publishing.files import ActiveFile, active_files
from tests.simulation.kernel import Crash
from tests.simulation.primitives import CLOCK
from tests.simulation.world import World, current_world
from txn.delta.commits import LAST_CHECKPOINT, Commit, commit_path, parse_commit
from txn.storage import retrying
from txn.storage.storage import Storage

__all__ = [
    "Blob",
    "SimDeltaTable",
    "SimStorage",
    "Table",
    "load_files",
    "retried",
    "text_of",
]

T = TypeVar("T")

RETRY_LIMITS = retrying.RetryLimits(clock=CLOCK.monotonic, sleep=CLOCK.sleep)


@dataclass(frozen=True)
class Blob:
    """A data file: its rows, as tuples."""

    rows: tuple[Any, ...]
    size: int


@dataclass(frozen=True)
class Columns:
    """`deltalake.Schema`."""

    text: str

    def to_json(self) -> str:
        return self.text


@dataclass(frozen=True)
class Metadata:
    """`DeltaTable.metadata()`."""

    id: str
    configuration: dict[str, str]
    partition_columns: list[str]
    name: str | None = None
    description: str | None = None
    created_time: int | None = None


@dataclass(frozen=True)
class Protocol:
    """`DeltaTable.protocol()`."""

    min_reader_version: int = 1
    min_writer_version: int = 2
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()


class Below(MutableMapping[str, Any]):
    """Those of a folder's files that lie in one of its folders."""

    def __init__(self, files: dict[str, Any], folder: str) -> None:
        self._files = files
        self._folder = f"{folder}/"

    def __getitem__(self, path: str) -> Any:
        return self._files[self._folder + path]

    def __setitem__(self, path: str, file: Any) -> None:
        self._files[self._folder + path] = file

    def __delitem__(self, path: str) -> None:
        del self._files[self._folder + path]

    def __iter__(self) -> Iterator[str]:
        start = len(self._folder)
        return iter([path[start:] for path in self._files if path.startswith(self._folder)])

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass
class Table:
    """One folder: its commit files and its data files."""

    name: str
    owner: Table | None = None
    """The table whose next generation this is."""
    commits: list[bytes] = field(default_factory=list)
    parsed: list[Commit] = field(default_factory=list)
    blobs: MutableMapping[str, Blob] = field(default_factory=dict)
    texts: MutableMapping[str, bytes] = field(default_factory=dict)
    active: dict[str, ActiveFile] = field(default_factory=dict)
    referred: set[str] = field(default_factory=set)
    """Paths that some version has added: a reader of that version needs them."""
    added: dict[str, int] = field(default_factory=dict)
    """Path -> the version that added it."""
    removed: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Path -> the version that removed it, and when."""
    cleaned: int = 0
    """Commit files of older versions are gone."""
    garbled: set[int] = field(default_factory=set)
    """Versions that lack a file which they were to add."""
    schema: Any = None
    metadata: Metadata | None = None
    definitions: list[tuple[int, Any, Metadata]] = field(default_factory=list)
    """(version, schema, metadata) of every version that has a definition, oldest first."""
    vanished: int = 0
    """How often its log was deleted."""

    def lie_in(self, owner: Table) -> None:
        """Be the next generation of a table, in a folder of it."""
        self.owner, folder = owner, self.name.split("/", 1)[1]
        assert isinstance(owner.blobs, dict)
        assert isinstance(owner.texts, dict)
        self.blobs, self.texts = Below(owner.blobs, folder), Below(owner.texts, folder)

    def vanish(self) -> None:
        """Its log is deleted, and what is under way to it gets nowhere."""
        self.vanished += 1
        for entries in (self.commits, self.parsed, self.active, self.definitions):
            entries.clear()  # type: ignore[attr-defined]
        self.referred, self.added, self.removed, self.cleaned = set(), {}, {}, 0
        self.schema = self.metadata = None

    def defined(self, version: int, schema: Any, metadata: Metadata) -> None:
        """A version defines the table."""
        self.schema, self.metadata = schema, metadata
        self.definitions.append((version, schema, metadata))

    def definition(self, version: int) -> tuple[Any, Metadata]:
        """Schema and metadata as of a version."""
        found = [one for one in self.definitions if one[0] <= version]
        return found[-1][1:]

    def files_at(self, version: int) -> list[str]:
        """Paths of the files of a version."""
        if version == self.version:
            return list(self.active)
        files: dict[str, None] = {}
        for commit in self.parsed[: version + 1]:
            for path in commit.removes:
                files.pop(path, None)
            files.update(dict.fromkeys(add.path for add in commit.adds))
        return list(files)

    def is_readable(self, path: str) -> bool:
        """Whether a version has the file whose commit file is there, or that is the newest."""
        versions = range(min(self.cleaned, self.version), self.version + 1)
        return any(path in self.files_at(version) for version in versions)

    def vacuum(self, committed: int, before: float) -> int:
        """Delete files that no version has named since; how many.

        What an uncommitted txid replaced is younger than any retention, and so is what it wrote.

        Args:
            committed: the version that COMMITTED names.
            before: what was removed later is kept.
        """
        gone = [
            path
            for path, (version, when) in self.removed.items()
            if path in self.blobs
            and when < before
            and (
                version <= committed
                or (self.added[path] <= committed and not self.parsed[version].publication)
            )
        ]
        for path in gone:
            del self.blobs[path]
        return len(gone)

    @property
    def version(self) -> int:
        return len(self.commits) - 1

    def description(self) -> dict[str, Any]:
        """The `metaData` action that describes it."""
        assert self.metadata is not None
        return {
            "id": self.metadata.id,
            "schemaString": self.schema.to_json(),
            "partitionColumns": self.metadata.partition_columns,
            "configuration": self.metadata.configuration,
        }

    def app_version(self, app: str, version: int) -> int | None:
        """What the newest `txn` action of an application id says, up to a version."""
        found = (one.apps[app] for one in self.parsed[version::-1] if app in one.apps)
        return next(found, None)

    def land(self, version: int, text: bytes) -> bool:
        """Create the commit file of `version`, if it is the next one."""
        if version != len(self.commits):
            return False
        commit = parse_commit(version, text, self.name)
        self.commits.append(text)
        self.parsed.append(commit)
        now = current_world().kernel.now
        for path in commit.removes:
            self.active.pop(path, None)
            self.removed[path] = version, now
        self.active.update(active_files(commit.adds))
        self.added.update((add.path, version) for add in commit.adds)
        self.referred.update(add.path for add in commit.adds)
        if (described := commit.metadata) is not None:
            metadata = Metadata(
                str(described["id"]),
                dict(described["configuration"]),
                [*described["partitionColumns"]],
            )
            self.defined(version, Columns(described["schemaString"]), metadata)
        return True


def text_of(
    actions: Sequence[Any], apps: Mapping[str, int], info: Mapping[str, Any] | None = None
) -> bytes:
    """A commit file of anybody's, as the product writes it."""
    return commit_text(
        commit_actions(actions, apps, now_ms=0, partition_columns=(), info=info or {})
    )


class SimDeltaTable:
    """In place of `deltalake.DeltaTable`: a snapshot of a table, and appends to it."""

    def __init__(
        self, uri: str, version: int | None = None, storage_options: object = None
    ) -> None:
        world = current_world()
        world.ask("load table")
        self._table = world.table(uri)
        if self._table.version < 0:
            raise TableNotFoundError(uri)
        self._version = world.listed(self._table) if version is None else version
        if self._version == self._table.version:
            self.active = dict(self._table.active)
        else:
            adds = [add for commit in self._table.parsed for add in commit.adds]
            known = active_files(adds)
            self.active = {path: known[path] for path in self._table.files_at(self._version)}

    @staticmethod
    def create(uri: str, schema: Any, **options: Any) -> None:
        """An append of version 0."""
        world = current_world()
        table = world.table(uri)
        properties: Any = options["commit_properties"]
        apps = {one.app_id: one.version for one in properties.app_transactions}
        text = text_of([], apps, properties.custom_metadata)

        def landed() -> None:
            own_id = uri if table.owner is None else f"{uri} {world.new_id()}"
            metadata = Metadata(
                own_id, dict(options["configuration"]), list(options["partition_by"])
            )
            table.defined(0, schema, metadata)

        if not _append(world, table, 0, text, landed):
            raise CommitFailedError("version 0 exists already")

    def version(self) -> int:
        return self._version

    def schema(self) -> Any:
        return self._table.definition(self._version)[0]

    def metadata(self) -> Metadata:
        return self._table.definition(self._version)[1]

    def protocol(self) -> Protocol:
        return Protocol()

    def transaction_version(self, app: str) -> int | None:
        return self._table.app_version(app, self._version)

    def update_incremental(self) -> None:
        world = current_world()
        world.ask("update table")
        self._version = max(self._version, world.listed(self._table))

    def cleanup_metadata(self) -> None:
        """Nothing has expired by itself."""
        current_world().io("list")

    def create_checkpoint(self) -> None:
        """What a loaded table knows is known to all of this store."""
        current_world().io("checkpoint")


def make_table(storage: SimStorage, spec: Any, epoch: int, incarnation: int) -> None:
    """In place of what writes version 0 where the table lies."""
    committers.publishing.append._create(storage.uri, spec, epoch, incarnation)


def _append(
    world: World, table: Table, version: int, text: bytes, landed: Callable[[], None]
) -> bool:
    """One try at one version: put-if-absent of its commit file."""
    world.io("append")
    world.hesitate()
    kernel, faults, random = world.kernel, world.faults, world.random
    process = kernel.alive().process
    commit = parse_commit(version, text, table.name)
    garbled = world.garbles(table.name, commit)
    if garbled:
        # Its last action is that which adds the last file.
        text = text[: text.rindex(b"\n", 0, -1) + 1]
    named = (*(add.path for add in commit.adds), *commit.removes)
    world.offered.update((table.name, path) for path in named)
    answer: list[bool] = []

    vanished = table.vanished

    def arrive() -> None:
        done = table.vanished == vanished and table.land(version, text)
        answer.append(done)
        if done:
            landed()
            if garbled:
                table.garbled.add(version)
        world.books.append_arrived(table, version, process, done=done)

    if commit.publication is not None and world.dies_before(table, process):
        raise Crash
    if world.is_release_due and commit.publication is not None and not process.release:
        # It dies with that under way, which lands while the next program changes tables.
        world.is_release_due = False
        world.note("append late", process)
        kernel.at(kernel.now + random.uniform(0.05, 0.6), arrive)
        kernel.kill(process)
        raise Crash
    fault = faults.first("append refused", "append answer lost", "append late")
    if fault is None and table.name != "t0":
        # Above all where the table before it has the txid.
        fault = faults.first("append refused", "append late")
    if fault is not None:
        world.note(fault, process)
    if fault == "append refused":
        kernel.sleep(random.uniform(0.001, 0.2))
        raise DeltaError("the store said 503")
    if fault == "append late":
        late = random.choice((0.03, 0.2, 1.0, 3.0)) * random.uniform(0.5, 2)
        kernel.at(kernel.now + late, arrive)
        kernel.sleep(random.uniform(0.001, 0.1))
        # After the one the same commit is sent again; after the other the attempt fails.
        raise OSError("timed out") if random.random() < 0.5 else DeltaError("the store said 500")
    kernel.at(kernel.now + random.uniform(0.001, 0.008), arrive)
    kernel.sleep(0.0085 + random.uniform(0, 0.004))
    if fault == "append answer lost":
        raise OSError("connection reset")
    return answer[0]


def load_files(table: SimDeltaTable) -> dict[str, ActiveFile]:
    """In place of `committers.publishing.files.load_files`."""
    return dict(table.active)


def retried(operation: Callable[[], T], what: str) -> T:
    """The product's own, in simulated time."""
    return retrying.retried(operation, what, RETRY_LIMITS)


def _ask(what: str) -> None:
    retried(lambda: current_world().ask(what), what)


@dataclass(frozen=True)
class Entry:
    """A file in a listing."""

    path: str


class SimStorage:
    """In place of `txn.storage.storage.Storage`: one folder of the store."""

    is_local = False

    def __init__(self, location: str, options: object = None) -> None:
        self.options: dict[str, str] = {}
        self.hadoop: dict[str, str] = {}
        self.location = self.uri = location
        self.table = current_world().table(location)

    def url(self, path: str = "") -> str:
        return f"{self.location}/{path}"

    read_url = url

    def absolute(self, path: str) -> str:
        return self.url(path)

    first_missing = Storage.first_missing

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        if not paths:
            return []
        _ask("sizes")
        found = [self.table.blobs.get(path) for path in paths]
        return [None if blob is None else blob.size for blob in found]

    def read_many(
        self, paths: Sequence[str], sizes_of: Sequence[str] = ()
    ) -> tuple[list[bytes | None], list[int | None]]:
        """All in one moment."""
        _ask("read_many")
        found = [self.table.blobs.get(path) for path in sizes_of]
        sizes = [None if blob is None else blob.size for blob in found]
        return [*map(self._content, paths)], sizes

    def read(self, path: str) -> bytes | None:
        _ask("read")
        return self._content(path)

    def _content(self, path: str) -> bytes | None:
        if path == LAST_CHECKPOINT:
            # Whoever cleans a log has made a checkpoint of what remains.
            cleaned = self.table.cleaned
            return json.dumps({"version": cleaned}).encode() if cleaned else None
        if path.startswith("_delta_log/"):
            version = int(path[11:-5])
            assert path == commit_path(version)
            known = self.table.commits
            return known[version] if self.table.cleaned <= version < len(known) else None
        return self.table.texts.get(path)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        version = int(path[11:-5])
        assert path == commit_path(version)
        return _append(current_world(), self.table, version, data, lambda: None)

    def write(self, path: str, data: bytes) -> None:
        world = current_world()
        world.io("write")
        self.table.texts[path] = data

    def files(self, folder: str) -> list[tuple[str, int]]:
        _ask("list")
        prefix = f"{folder}/"
        blobs = self.table.blobs
        found = sorted((path, blobs[path].size) for path in blobs if path.startswith(prefix))
        current_world().described(self.table.name, (path for path, _ in found))
        return found

    def folders(self, folder: str) -> list[str]:
        _ask("list")
        current_world().hesitate()
        prefix = f"{folder}/"
        paths: Sequence[str] = (*self.table.blobs, *self.table.texts)
        if current_world().faults.strikes("stale listing"):
            paths = paths[:-1]
        found = {path[len(prefix) :].split("/")[0] for path in paths if path.startswith(prefix)}
        return sorted(found)

    def entries(self) -> list[str]:
        _ask("list")
        paths = (*self.table.blobs, *self.table.texts)
        return sorted({path.split("/")[0] for path in paths})

    def delete_folder(self, folder: str) -> None:
        prefix = f"{folder}/"
        self._delete([path for path in self.table.blobs if path.startswith(prefix)])
        for path in [path for path in self.table.texts if path.startswith(prefix)]:
            del self.table.texts[path]

    @property
    def store(self) -> SimStorage:
        return self

    def walk(self) -> list[Entry]:
        """Everything in the folder."""
        _ask("list")
        log = map(commit_path, range(self.table.version + 1))
        return [Entry(path) for path in (*self.table.blobs, *self.table.texts, *log)]

    def delete_files(self, paths: Iterable[str]) -> None:
        paths = [*paths]
        for folder in {path.split("/_delta_log/")[0] for path in paths if "/_delta_log/" in path}:
            current_world().books.vanishes(current_world().table(f"{self.location}/{folder}"))
        chosen = [path for path in paths if path in self.table.blobs]
        if chosen:
            self._delete(chosen)

    def _delete(self, paths: Sequence[str]) -> None:
        world = current_world()
        _ask("delete")
        for path in paths:
            if self.table.blobs.pop(path, None) is not None:
                world.books.file_deleted(self.table, path)
