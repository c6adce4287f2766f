"""The site of the documentation has every page, and its reference every module that it names."""

from __future__ import annotations

import ast
import importlib
import re
from typing import Any

from tests.release.distribution import ROOT


def constant(name: str) -> Any:
    """A constant of docs/site.py, which needs MkDocs to be imported."""
    for node in ast.parse((ROOT / "docs" / "site.py").read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=found)]) if found == name:
                return ast.literal_eval(node.value)
    raise LookupError(name)


def test_the_navigation_has_every_page_once() -> None:
    """Pages in docs/, from elsewhere and of the reference are in mkdocs.yml, each of them once."""
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    pages = [*(path.name for path in (ROOT / "docs").glob("*.md")), *constant("OUTSIDE")]
    pages += [f"api/{name}.md" for name in constant("API")]
    assert sorted(re.findall(r"- (\S+\.md)$", navigation, re.M)) == sorted(pages)


def test_the_reference_names_modules_with_public_names() -> None:
    """Each module of the API reference exists and says by `__all__` what it has."""
    modules = [name for names in constant("API").values() for name in names.split()]
    assert len(modules) > 20
    assert [name for name in modules if not importlib.import_module(name).__all__] == []
