"""A short run of everything, and the parts of the harness that a run relies on."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.checker import check
from tests.chaos.figures import figures
from tests.chaos.history import read_history
from tests.chaos.plan import THIRDS, faults_of
from tests.chaos.run import Options, run
from tests.thorough import by_turns


def test_every_record_lands_once_while_everything_is_killed(tmp_path: Path) -> None:
    """Driver, executors, ZooKeeper, Kafka, links, sessions and disk may be killed, stopped, cut or
    full: every record is in exactly one committed txid, totals are right, and no reader sees part
    of a transaction. One third of the kinds in a commit's suite, the others in others'.
    """
    thirds, folder = by_turns(THIRDS), tmp_path / "chaos"
    options = Options(
        folder=folder, seed=1, minutes=0, records=8_000, gap_secs=1.5, per_file=500, thirds=thirds
    )
    events = list(read_history(run(options, say=print)))
    found = figures(events)
    print(found)
    assert check(events) == []
    assert found["records"] == {"kafka": 4_000, "files": 4_000}
    wanted = set(faults_of("local", thirds)) - found["not_available"].keys()
    assert wanted == found["faults"].keys()
    assert not (folder / "disk").is_mount()
