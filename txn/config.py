"""The settings of a topology: one frozen object, checked when it is made."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

__all__ = ["TopologyConfig"]


class TopologyConfig(BaseModel):
    """Settings of one topology, with Storm's names where Storm has the thing.

    Raises:
        pydantic.ValidationError: an unknown name or a value out of range.
    """

    # An error about a setting must not repeat it: it may be a credential in the wrong place.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    max_spout_pending: int = Field(default=24, ge=1, le=1000)
    """Txids in flight at once (Storm: `topology.max.spout.pending`, default there 1). More hides
    commit latency behind processing, and costs replayed work after a failure. At most
    `max_processing_jobs` x `max_group_processing` are in Spark; one group more keeps it busy."""
    max_group_commit: int = Field(default=32, ge=1)
    """Consecutive txids that one table version may hold: while commits lag behind processing, all
    that are ready are published together. 1: each txid is a version of its own."""
    max_group_processing: int = Field(default=8, ge=1)
    """Consecutive txids that one Spark job may stage: while processing lags behind the source, a
    job takes several of them, each with files of its own, as many as it can do in a few seconds.
    1: each txid has jobs of its own."""
    max_processing_jobs: int = Field(default=2, ge=1)
    """Staging jobs that run at once. Two keep the task slots busy while the driver plans the next;
    more help where reading waits for its source rather than for a slot."""
    message_timeout_secs: float = Field(default=300.0, gt=0)
    """Seconds without progress after which a phase of a batch fails (Storm: 30; a Spark job is
    longer than a tuple tree). A batch that only waits for its commit turn does not age."""
    stop_grace_secs: float = Field(default=20.0, gt=0)
    """Seconds in which every thread has to come back once a run ends, cancelled work included. Who
    does not (a call of yours that blocks) is named, leadership is given up all the same, and the
    run ends with AbandonedError. Clean-up is worked off for up to `message_timeout_secs`, if none
    of its jobs takes longer than the grace; what is not done then is left to the next run."""
    ackers: int = Field(default=1, ge=0)
    """0 switches tracking off, as in Storm; there is one acker however large the number."""
    batch_emit_interval_ms: int = Field(default=0, ge=0)
    """Least milliseconds between the starts of two new txids (Trident: 500). Idle spouts are asked
    again after this time or 100 ms, whichever is longer."""
    max_batch_attempts: int = Field(default=5, ge=1)
    """Attempts of one txid within one run before `on_exhausted` applies (Storm: for ever)."""
    on_exhausted: Literal["stop", "quarantine"] = "stop"
    """What to do then: stop the topology, or commit the txid empty and keep its metadata."""
    retry_backoff_ms: int = Field(default=200, ge=0)
    """Milliseconds before the first replay of a failed txid; doubles up to 30 s."""
    verify: Literal["edges", "rows"] = "edges"
    """"edges": the acker's XOR over partitions, files and tables. "rows": also that transactional
    spouts return as many rows as they planned, where they know, and that row counts are conserved
    through every aggregation, at the price of a tenth to a third of the batch time."""
    shared_folders: tuple[str, ...] = ()
    """Local folders that every executor has under the same path, such as an NFS mount. With a
    master other than `local` a table in any other local folder is refused; one in such a folder
    is tried before the first batch, by every executor that there is."""
    zookeeper_timeout_secs: float = Field(default=10.0, gt=0)
    """Session timeout asked of ZooKeeper: how long a dead leader blocks a successor."""
    zookeeper_deadline_secs: float = Field(default=120.0, gt=0)
    """How long a write may be retried while ZooKeeper is away before the topology stops."""
    zookeeper_auth: tuple[tuple[str, SecretStr], ...] = ()
    """(scheme, credential) pairs: ("digest", "user:password"), or ("sasl", "user:password") for
    SASL with DIGEST-MD5 (extra `sasl`). This and all that follow may be given by environment
    variables instead: docs/security.md."""
    zookeeper_acl: Literal["open", "creator"] | None = None
    """Whose the created nodes are. "creator": of whoever `zookeeper_auth` or the client certificate
    says we are, nobody else may even read. "open": everybody's. None: "creator" where there are
    credentials; without any they are everybody's, and the log warns of it."""
    zookeeper_readers: tuple[tuple[str, str], ...] = ()
    """(scheme, id) pairs of those who may read what is ours and change nothing, for monitoring:
    ("digest", "user:hash"), ("sasl", "user"), ("x509", "CN=monitor"), ("ip", "10.0.0.0/8")."""
    zookeeper_tls: bool = False
    """Connect with TLS."""
    zookeeper_ca: str | None = None
    """Path of the CA certificates (PEM) that may have signed the servers', besides the machine's
    own."""
    zookeeper_check_hostname: bool = True
    """Whether a server's certificate must name the host that we connect to."""
    zookeeper_certfile: str | None = None
    """Path of the client certificate for TLS (PEM); goes with `zookeeper_keyfile`."""
    zookeeper_keyfile: str | None = None
    """Path of the client key for TLS (PEM)."""
    zookeeper_keyfile_password: SecretStr | None = None
    """Password of the client key, if it has one."""
