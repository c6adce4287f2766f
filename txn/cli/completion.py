"""Shell completion: files with topologies in them, and the topologies that ran here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import BashComplete, CompletionItem

__all__ = ["Bash", "names", "topologies"]


def topologies(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete FILE.py:TOPOLOGY from the files in the folder.

    Files are parsed and not run, so that a key press starts nothing.
    """
    file, colon, _ = incomplete.partition(":")
    if colon:
        items = list(_in_file(file))
    else:
        folder = Path(file) if file.endswith("/") else Path(file).parent
        items = [item for path in sorted(folder.glob("*.py")) for item in _in_file(str(path))]
    fitting = [item for item in items if item.value.startswith(incomplete)]
    return fitting or ([] if colon else [CompletionItem(incomplete, type="dir")])


def names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of topologies that ran in the nearest home, or FILE.py:TOPOLOGY."""
    from txn.config.home import nearest_home
    from txn.dashboard.watching.run_files import LOG_FOLDER

    ran = [path.stem for path in sorted((nearest_home() / LOG_FOLDER).glob("*.log"))]
    fitting = [CompletionItem(name) for name in ran if name.startswith(incomplete)]
    more = topologies(ctx, param, incomplete)
    return [*fitting, *(item for item in more if item.type == "plain" or not fitting)]


class Bash(BashComplete):
    """Completion for Bash, to which the colon in FILE.py:TOPOLOGY ends a word."""

    _before = ""
    """The text up to the last colon, which Bash keeps."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words so far, with FILE.py, the colon and TOPOLOGY as one."""
        args, last = super().get_completion_args()
        if last == ":" and args:
            args, last = args[:-1], f"{args[-1]}:"
        elif len(args) > 1 and args[-1] == ":":
            args, last = args[:-2], f"{args[-2]}:{last}"
        else:
            return args, last
        self._before = last[: last.index(":") + 1]
        return args, last

    def format_completion(self, item: CompletionItem) -> str:
        """Return the line for Bash's function: of FILE.py:TOPOLOGY the part after the colon."""
        return f"{item.type},{item.value.removeprefix(self._before)}"


def _in_file(file: str) -> Iterator[CompletionItem]:
    try:
        body = ast.parse(Path(file).read_text("utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return
    for statement in body:
        for name in _topologies(statement):
            yield CompletionItem(f"{file}:{name}")


def _topologies(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement gives to a topology or to a function that makes one."""
    if isinstance(statement, ast.Assign) and _called(statement.value) == "Topology":
        yield from (one.id for one in statement.targets if isinstance(one, ast.Name))
    if isinstance(statement, ast.FunctionDef) and _named(statement.returns) == "Topology":
        yield statement.name


def _called(value: ast.expr) -> str:
    return _named(value.func) if isinstance(value, ast.Call) else ""


def _named(value: ast.expr | None) -> str:
    return ast.unparse(value).rpartition(".")[2] if value is not None else ""
