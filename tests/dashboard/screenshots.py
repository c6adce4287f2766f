"""python -m tests.dashboard.screenshots: pictures for docs/dashboard.md, and its recorded run."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.children import wait_until
from tests.dashboard.browser import browser
from tests.dashboard.recorded import Recording, table
from tests.dashboard.sample import Sample, Told, with_stopped
from tests.dashboard.serving import served
from txn.dashboard.watching.topologies import Watch
from txn.embedded import EmbeddedZooKeeper

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAGE = Path(__file__).parents[2] / "docs" / "dashboard.md"
FOLDER = PAGE.with_suffix("")
PICTURES = {
    "overview": ("", "light", (1280, 420)),
    "topology": ("t/flights/topology", "dark", (1280, 900)),
    "transactions": ("t/flights/transactions/207", "light", (1280, 760)),
    "tables": ("t/flights/tables?view=changes&from=225&to=240", "light", (1280, 560)),
    "trouble": ("t/flights/trouble", "dark", (1280, 760)),
    "phone": ("t/flights/topology", "light", (390, 844)),
}
"""name -> (page, colours, width and height)."""
RECORDED = {
    "The leader is killed": ("killed", "overview"),
    "The standby takes over": ("taken-over", "overview"),
    "The source goes away": ("away", "topology"),
    "It goes into quarantine": ("quarantined", "trouble"),
    "It is replayed, mended": ("replayed", "transactions"),
}
"""step -> (name of its picture, page)."""
TIMES = re.compile(r"(?<=<!-- make screenshots -->\n).*?(?=<!-- end -->)", re.DOTALL)
"""What stands in the page where the times of the recorded run are to be."""


def main() -> None:
    """Draw and record all of it."""
    FOLDER.mkdir(exist_ok=True)
    with browser() as chrome:
        draw_sample(chrome)
        times = record_run(chrome)
    text, count = TIMES.subn(lambda _: f"\n{times}\n\n", PAGE.read_text("utf-8"))
    assert count == 1, "the page has one place for the times"
    PAGE.write_text(text, "utf-8")


def draw_sample(chrome: Browser) -> None:
    """A picture of each page, of topologies that are made up."""
    with tempfile.TemporaryDirectory() as scratch:
        sample = Sample(Path(scratch))
        with Watch([], "zk1:2181", where=Path(scratch), feed=Told) as watch:
            Told.last.say(with_stopped(sample.look(), Path(scratch)))
            found = watch.topology("flights")
            for files in range(22, 14, -1):  # a lag that goes down
                sample.note(lags={"flights": {"files": files}, "weather": {"records": files * 90}})
                wait_until(lambda n=files: _is_told(found, n), "the note is read", 20)
            sample.note()
            wait_until(
                lambda: not found.reads_old and all(t.facts for t in found.tables), "all", 30
            )
            with served(watch) as url:
                for name, (where, scheme, (width, height)) in PICTURES.items():
                    sample.note()
                    context = chrome.new_context(
                        viewport={"width": width, "height": height},
                        color_scheme=scheme,  # type: ignore[arg-type]
                        reduced_motion="reduce",
                    )
                    page = context.new_page()
                    page.goto(f"{url}#/{where}")
                    page.wait_for_timeout(2500)
                    page.screenshot(path=FOLDER / f"{name}.png")
                    context.close()


def record_run(chrome: Browser) -> str:
    """Pictures of a run to which everything happens, and a table of when that was seen."""
    os.environ.setdefault("TXN_ZOOKEEPER_ACL", "open")
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        steps = []
        with (
            EmbeddedZooKeeper(place / "zookeeper") as server,
            Recording(place, server.hosts, chrome) as recording,
        ):
            topology = recording.open("t/sales/topology", (1280, 640), "dark")
            for step in recording.steps():
                steps.append(step)
                if step.name in RECORDED:
                    name, where = RECORDED[step.name]
                    page = recording.pages.get(where, topology)
                    if where != "overview":  # it shows the step already, and not for long
                        page.wait_for_timeout(1500)
                    page.screenshot(path=FOLDER / f"recorded-{name}.png")
        return table(steps)


def _is_told(found: object, files: int) -> bool:
    note = getattr(found, "note", None)
    return note is not None and note.lags["flights"]["files"] == files


if __name__ == "__main__":
    main()
