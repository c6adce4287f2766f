"""The files of the page: whole, in the wheel, and unable to run what they show."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from tests.for_each import for_each
from tests.release.distribution import build
from txn.notebook.charts import PHASES
from txn.operations.new_project import make_project

ROOT = Path(__file__).parent.parent.parent
ASSETS = ROOT / "txn" / "dashboard" / "assets"
OURS = [
    p
    for p in sorted(ASSETS.iterdir())
    if p.suffix in (".js", ".html", ".css") and p.stem != "uplot"
]
FORBIDDEN = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"


@for_each(OURS, lambda path: path.name)
def test_text_never_becomes_markup_or_code(path: Path) -> None:
    """No script of the page, and not the chart library either, has a way to parse text."""
    assert re.findall(FORBIDDEN, path.read_text("utf-8")) == []
    assert re.findall(FORBIDDEN, (ASSETS / "uplot.js").read_text("utf-8")) == []


@for_each(OURS, lambda path: path.name)
def test_nothing_is_loaded_from_elsewhere(path: Path) -> None:
    """No address of another host; SVG's name is not one that is loaded."""
    found = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", path.read_text("utf-8"))
    assert [address for address in found if "www.w3.org/2000/svg" not in address] == []


def test_the_first_command_works(tmp_path: Path) -> None:
    """Whoever sees an empty page is told how to make a project and to run it."""
    text = (ASSETS / "overview.js").read_text("utf-8")
    (told,) = re.findall(r"txn new (\w+) && cd \1 && txn run ([\w.:]+)", text)
    name, target = told
    file, _, topology = target.partition(":")
    project = make_project(name, tmp_path)
    assert re.search(rf"^(def )?{topology}\b", (project / file).read_text("utf-8"), re.M)


def test_stations_have_one_name() -> None:
    """A time of a txid is called the same on the page and in the charts of a notebook."""
    text = (ASSETS / "transactions.js").read_text("utf-8")
    (stations,) = re.findall(r"^const STATIONS = \{(.*)\};$", text, re.M)
    shown = dict(re.findall(r'(\w+): "([^"]+)"', stations))
    assert shown == {mark: name for mark, (name, _) in PHASES.items() if mark != "committed"}


def test_there_is_no_inline_script_or_style() -> None:
    """The policy of the page would refuse them."""
    text = (ASSETS / "index.html").read_text("utf-8")
    assert re.findall(r"<script(?![^>]*\ssrc=)[^>]*>|<style|\son\w+=|\sstyle=", text) == []


@for_each(OURS, lambda path: path.name)
def test_every_import_is_there(path: Path) -> None:
    """A script imports only names that the other one exports, and a document only files."""
    text = path.read_text("utf-8")
    for names, file in re.findall(r'^import \{([^}]*)\} from "\./([^"]+)";', text, re.M):
        exported = (ASSETS / file).read_text("utf-8")
        for name in (one.strip() for one in names.split(",")):
            assert re.search(
                rf"export (?:const|let|class|function|async function) {name}\b", exported
            ), name
    for file in re.findall(r'(?:src|href)="(assets/[^"]+)"', text):
        assert (ASSETS.parent / file).is_file()


def test_the_wheel_has_the_page(tmp_path: Path) -> None:
    """A built wheel has every asset, the chart library's licence, and what `txn explain` reads."""
    with zipfile.ZipFile(build("wheel", ROOT, tmp_path)) as wheel:
        names = set(wheel.namelist())
    packed = {name for name in names if name.startswith("txn/dashboard/assets/")}
    assert packed == {f"txn/dashboard/assets/{path.name}" for path in ASSETS.iterdir()}
    assert names >= {"txn/dashboard/assets/uplot.LICENSE", "txn/errors.md"}
