"""MkDocs hooks: pages that are not in docs/, and links that lead out of it.

The files of the repository keep the links that work in the repository. In the site a link to a file
that is a page leads to the page, and any other to the file at `repo_url`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "index.md": "README.md",
    "errors.md": "txn/errors.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}
"""Page -> its file, for those that are not in docs/."""
API = {
    "topologies": "txn.topology txn.config txn.session txn.engine.running"
    " txn.engine.reporting.report txn.operations.txids txn.attempts txn.errors",
    "spouts": "spouts.files spouts.kafka spouts.delta spouts.memory spouts.rate spouts.reader",
    "tables": "committers.state_table committers.append_table committers.aggregates",
    "plugins": "txn.interfaces txn.interfaces.spout_capabilities"
    " txn.interfaces.committer_capabilities",
    "observers": "txn.observers txn.metrics txn.tracing txn.lineage",
    "testing": "txn.testing",
}
"""Page of the API reference -> its modules."""
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_FILE_OF_FENCE = re.compile(r"^```(\w+) (\S+)$", re.M)
_NESTED_ITEM = re.compile(r"^  (?=- )", re.M)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for page, source in OUTSIDE.items():
        text = (ROOT / source).read_text("utf-8")
        files.append(File.generated(config, page, content=text))
    for name, modules in API.items():
        parts = [
            f"# API: {name}",
            *(f"## `{module}`\n\n::: {module}" for module in modules.split()),
        ]
        files.append(File.generated(config, f"api/{name}.md", content="\n\n".join(parts)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: Files) -> str:
    """Turn what GitHub shows into what Python-Markdown shows, links included."""
    here = page.file.src_uri
    folder = posixpath.dirname(OUTSIDE.get(here, f"docs/{here}"))

    def link(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found[1]))
        pages = {source: name for name, source in OUTSIDE.items()}
        target = pages.get(path, path.removeprefix("docs/"))
        if target == path:
            return f"]({config.repo_url}/blob/main/{path}{found[2] or ''})"
        return f"]({posixpath.relpath(target, posixpath.dirname(here) or '.')}{found[2] or ''})"

    markdown = _NESTED_ITEM.sub("    ", _LINK.sub(link, markdown))
    return _FILE_OF_FENCE.sub(r'```\1 title="\2"', markdown)
