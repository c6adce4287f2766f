"""The settings of a topology: one frozen object, validated on construction."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, model_validator

from txn.attempts import LONGEST_GROUP

__all__ = ["TopologyConfig", "is_unknown"]


class TopologyConfig(BaseModel):
    """Settings of one topology, with Storm's names for settings that Storm has.

    What a program leaves out may come from the environment or a file: docs/configuration.md.

    Raises:
        pydantic.ValidationError: an unknown name or a value out of range.
    """

    # An error must not repeat a setting's value: it may be a credential in the wrong place.
    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True
    )

    max_spout_pending: int = Field(default=24, ge=1, le=1000)
    """Txids in flight at once (Storm: `topology.max.spout.pending`, default there 1). More hides
    commit latency behind processing, and costs replayed work after a failure. At most
    `max_processing_jobs` x `max_group_processing` are in Spark; one group more keeps it busy. While
    nothing is left in the sources, the next txid is planned when no batch is being processed."""
    max_group_commit: int = Field(default=32, ge=1, le=LONGEST_GROUP)
    """Consecutive txids that one table version may hold: while commits lag behind processing, all
    ready txids are published together. 1: each txid gets its own version; at most 64."""
    max_group_processing: int = Field(default=8, ge=1, le=LONGEST_GROUP)
    """Consecutive txids that one Spark job may stage: while processing lags behind the source, a
    job takes as many as it can do in a few seconds, each with its own files. 1: each txid gets its
    own jobs; at most 64."""
    max_processing_jobs: int = Field(default=2, ge=1)
    """Staging jobs that run at once. Two keep the task slots busy while the driver plans the next;
    more help if reading waits for its source rather than for a slot."""
    message_timeout_secs: float = Field(default=300.0, gt=0)
    """Seconds without progress after which a phase of a batch fails (Storm: 30; a Spark job is
    longer than a tuple tree). A batch that only waits for its commit turn does not age."""
    stop_grace_secs: float = Field(default=20.0, gt=0)
    """Seconds that every thread has to return once a run ends, cancelled work included. If one
    does not (a call of yours blocks), the run gives up its leadership and ends with an
    AbandonedError that names the thread. Clean-up may go on for `message_timeout_secs`, if none of
    its jobs takes longer than the grace; the rest is left to the next run."""
    ackers: int = Field(default=1, ge=0)
    """0 switches tracking off, as in Storm; any larger number means one acker."""
    batch_emit_interval_ms: int = Field(default=0, ge=0)
    """Least milliseconds between the starts of two new txids (Trident: 500). Idle spouts are asked
    again after this time or 100 ms, whichever is longer."""
    max_batch_attempts: int = Field(default=5, ge=1)
    """Attempts of one txid within one run before `on_exhausted` applies (Storm: for ever)."""
    on_exhausted: Literal["stop", "quarantine"] = "stop"
    """What happens when a txid has used up its attempts: "stop" ends the run, and does so at the
    first error of your code or of a record; "quarantine" counts that as a failed attempt, and in
    the end commits the txid empty and keeps its metadata."""
    retry_backoff_ms: int = Field(default=200, ge=0)
    """Milliseconds before the first replay of a failed txid; doubles up to 30 s."""
    verify: Literal["edges", "rows"] = "edges"
    """"edges": the acker's XOR over partitions, files and tables. "rows": also check that
    transactional spouts return as many rows as they planned (if they know the number), and that no
    aggregation loses rows. It costs about a tenth of the time of a run."""
    shared_folders: tuple[str, ...] = ()
    """Local folders that every executor has under the same path, for example an NFS mount. With a
    master other than `local`, a table in any other local folder is refused. Before the first
    batch every executor tests the declared folders that hold tables."""
    new_tables: tuple[str, ...] = ()
    """Paths of tables that may begin after the newest committed txid, and lack what was committed
    before. A new table of an old topology is refused if it is not among them."""
    dropped_tables: tuple[str, ...] = ()
    """Paths of tables that the topology once had and the program no longer names. A start without
    one that is not listed here is refused: it would lack the txids from then on."""
    dropped_columns: tuple[str, ...] = ()
    """Columns of tables that the program no longer has, each as TABLE:COLUMN. A start without one
    that is not listed here is refused: a program of before may have been started by mistake."""
    backfilled_tables: tuple[str, ...] = ()
    """Paths of tables that get the txids that they lack before the run goes on: new tables, and
    tables that were dropped and put back. What those txids read is read anew. A next generation
    that `txn backfill` has filled takes its table's place."""
    rebuilt_tables: tuple[str, ...] = ()
    """Paths of tables whose rows may be written anew if the program needs them in another shape.
    A start that needs to, for a table that is not listed here, is refused: it takes time."""
    dropped_streams: tuple[str, ...] = ()
    """Streams that the topology once had and the program no longer declares. A start without one
    that is not listed here is refused. Its position is kept: a program that declares the stream
    again goes on from there."""
    optimize_every_hours: float = Field(default=0.0, ge=0)
    """Hours between two rounds of `txn optimize` over the tables, by the leader itself, in a
    process beside its batches; the first one follows the first commit of a run. 0: never."""
    vacuum_every_hours: float = Field(default=0.0, ge=0)
    """Hours between two rounds of `txn vacuum`, as above. Files are kept for as long as the table's
    `delta.deletedFileRetentionDuration` says, and never shorter than a batch may take. 0: never."""
    zookeeper_timeout_secs: float = Field(default=10.0, gt=0)
    """Session timeout requested from ZooKeeper: how long a dead leader blocks its successor."""
    zookeeper_connect_secs: float = Field(default=30.0, gt=0)
    """How long a start, or a command such as `txn status`, waits for a ZooKeeper that does not
    answer, before it ends with an error. After 2 s it reports what it waits for."""
    zookeeper_deadline_secs: float = Field(default=120.0, gt=0)
    """How long a write may be retried while ZooKeeper is away before the topology stops."""
    zookeeper_auth: tuple[tuple[str, SecretStr], ...] = ()
    """(scheme, credential) pairs: ("digest", "user:password"), or ("sasl", "user:password") for
    SASL with DIGEST-MD5 (extra `sasl`). A file or the environment is a better place for it
    than the program: docs/security.md."""
    zookeeper_acl: Literal["open", "creator"] | None = None
    """Who owns the created nodes. "creator": the user of `zookeeper_auth` or of the client
    certificate; nobody else may even read. "open": everybody. None: "creator" if there are
    credentials; without any, everybody, and the log warns of it."""
    zookeeper_readers: tuple[tuple[str, str], ...] = ()
    """(scheme, id) pairs of those who may read our nodes but not change them, for monitoring:
    ("digest", "user:hash"), ("sasl", "user"), ("x509", "CN=monitor"), ("ip", "10.0.0.0/8")."""
    zookeeper_tls: bool = False
    """Connect with TLS."""
    zookeeper_ca: str | None = None
    """Path of CA certificates (PEM) to trust for the servers, besides the machine's own."""
    zookeeper_check_hostname: bool = True
    """Whether a server's certificate must name the host to which we connect."""
    zookeeper_certfile: str | None = None
    """Path of the client certificate for TLS (PEM); goes with `zookeeper_keyfile`."""
    zookeeper_keyfile: str | None = None
    """Path of the client key for TLS (PEM)."""
    zookeeper_keyfile_password: SecretStr | None = None
    """Password of the client key, if it has one."""

    _places: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def places(self) -> dict[str, str]:
        """Setting -> the place where it was set; settings of the program are absent."""
        return self._places

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, values: Any) -> Any:
        for name in values if isinstance(values, Mapping) else ():
            if unknown := is_unknown(str(name)):
                raise ValueError(unknown)
        return values


def is_unknown(name: str) -> str | None:
    """Return the message for a name that is not a setting; None if it is one."""
    if name in TopologyConfig.model_fields:
        return None
    near = get_close_matches(name, TopologyConfig.model_fields, n=1, cutoff=0.75)
    return f"'{name}' is not a setting of a topology." + (
        f" Did you mean {near[0]}?" if near else " docs/configuration.md has all of them."
    )


def _described() -> str:
    """Return every setting with its default and meaning, for `help(TopologyConfig)`."""
    lines = ["", "    Settings:"]
    for name, field in TopologyConfig.model_fields.items():
        text = " ".join((field.description or "").split())
        lines.append(f"        {name} (default {field.default!r}): {text}")
    return "\n".join(lines)


TopologyConfig.__doc__ = f"{TopologyConfig.__doc__}{_described()}\n"
