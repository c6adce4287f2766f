"""python -m tests.dashboard.screenshots: pictures of each page for docs/dashboard.md."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.children import wait_until
from tests.dashboard.browser import browser
from tests.dashboard.sample import Sample, Told, with_stopped
from tests.dashboard.serving import served
from txn.operations.watching.topologies import Watch

FOLDER = Path(__file__).parent.parent.parent / "docs" / "dashboard"
PICTURES = {
    "overview": ("", "light", (1280, 420)),
    "topology": ("t/flights/topology", "dark", (1280, 900)),
    "transactions": ("t/flights/transactions/207", "light", (1280, 760)),
    "tables": ("t/flights/tables?view=changes&from=225&to=240", "light", (1280, 560)),
    "trouble": ("t/flights/trouble", "dark", (1280, 760)),
    "phone": ("t/flights/topology", "light", (390, 844)),
}
"""name -> (page, colours, width and height)."""


def main() -> None:
    """Draw all of them."""
    FOLDER.mkdir(exist_ok=True)
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
            with served(watch) as url, browser() as chrome:
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


def _is_told(found: object, files: int) -> bool:
    note = getattr(found, "note", None)
    return note is not None and note.lags["flights"]["files"] == files


if __name__ == "__main__":
    main()
