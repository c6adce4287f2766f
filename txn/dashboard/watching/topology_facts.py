"""A topology to watch, given by its name alone or by its program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from txn.config import TopologyConfig
from txn.config.home import nearest_home
from txn.interfaces.committer_capabilities import KeepsOwnLog
from txn.operations.loading import named_topology
from txn.operations.plan import plan_topology
from txn.storage.catalog_names import is_table_name
from txn.topology import Topology

__all__ = ["TopologyFacts"]


@dataclass(frozen=True)
class TopologyFacts:
    """A topology to watch, and the facts that ZooKeeper does not have."""

    name: str
    config: TopologyConfig = field(default_factory=TopologyConfig)
    """Has the credentials for ZooKeeper: secrets."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """`TopologyPlan` as JSON; empty: only the name was given."""
    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Table -> its `storage_options`: secrets."""
    program: str = ""
    """FILE.py:TOPOLOGY; empty: unknown."""
    home: Path = field(default_factory=nearest_home)
    """The folder whose `.txn` has its log and note."""
    own_logs: Mapping[str, KeepsOwnLog] = field(default_factory=dict)
    """Table -> its committer, if it keeps its own log; not for another process."""

    @classmethod
    def named(cls, target: str) -> TopologyFacts:
        """Build it from NAME or FILE.py:TOPOLOGY."""
        name, config, topology = named_topology(target)
        return cls(name, config) if topology is None else cls.of(topology, target)

    @classmethod
    def of(cls, topology: Topology, program: str = "") -> TopologyFacts:
        """Build it from a loaded program and its FILE.py:TOPOLOGY."""
        return cls(
            topology.name,
            topology.settings,
            asdict(plan_topology(topology)),
            # ZooKeeper has the folders of tables that the program knows by names.
            {
                sink.name: sink.committer.storage_options
                for sink in topology.sinks
                if not is_table_name(sink.name)
            },
            program,
            topology.home,
            {s.name: s.committer for s in topology.sinks if isinstance(s.committer, KeepsOwnLog)},
        )

    def to_line(self) -> str:
        """Return it as one line of JSON for another process, secrets included."""
        config = {name: _plain(getattr(self.config, name)) for name in self.config.model_fields_set}
        tables = {name: dict(options) for name, options in self.tables.items()}
        fields = {"name": self.name, "config": config, "plan": self.plan, "tables": tables}
        return json.dumps({**fields, "program": self.program, "home": str(self.home)}, default=str)

    @classmethod
    def of_line(cls, line: str | bytes) -> TopologyFacts:
        """Parse a line that `to_line` made."""
        fields = json.loads(line)
        config = TopologyConfig.model_validate(fields["config"])
        known = (fields["plan"], fields["tables"], fields["program"], Path(fields["home"]))
        return cls(fields["name"], config, *known)


def _plain(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
