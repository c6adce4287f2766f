"""What a release uploads: the same bytes wherever it is built, with a README for an index page."""

from __future__ import annotations

import re
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.release.distribution import ROOT, build

ADDRESS = "https://github.com/txn-spark/txn"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


def test_builds_are_reproducible(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    """The unpacked sources, elsewhere and later, build the same wheel and sdist byte for byte."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    for path in source.rglob("*.py"):
        path.touch()
    again = [build("wheel", source, tmp_path), build("sdist", source, tmp_path)]
    assert [path.name for path in again] == [wheel.name, sdist.name]
    assert [path.read_bytes() for path in again] == [wheel.read_bytes(), sdist.read_bytes()]


def test_the_readme_of_an_index_page_has_absolute_links(wheel: Path) -> None:
    """Each link of the README in the wheel leads to a file of the repository, by its address."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        readme = archive.read(name).decode().partition("\n\n")[2]
    links = re.findall(r"\]\(([^)]+)\)", readme)
    start = f"{ADDRESS}/blob/main/"
    files = [link.removeprefix(start).partition("#")[0] for link in links]
    assert len(links) > 30
    assert [link for link in links if not link.startswith(start)] == []
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_one_address_is_used() -> None:
    """pyproject.toml, mkdocs.yml and CITATION.cff name the repository by the same address."""
    for name in ("pyproject.toml", "mkdocs.yml", "CITATION.cff"):
        addresses = set(
            re.findall(r"https://github\.com/[\w.-]+/[\w.-]+", (ROOT / name).read_text())
        )
        assert addresses == {ADDRESS}, name
