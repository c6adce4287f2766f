"""The notebooks of the examples, each run from its first cell to its last."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def outputs(notebook: Any) -> list[tuple[str, dict[str, Any]]]:
    """(source of the cell, data) of all that was displayed."""
    return [
        (cell.source, dict(output["data"]))
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "data" in output
    ]


@pytest.mark.parametrize("name", ["first_topology", "time_travel"])
def test_a_notebook_runs_from_end_to_end(name: str, tmp_path: Path) -> None:
    """Every cell runs, its own checks hold, and plots and live views are shown."""
    nbformat, nbclient = import_module("nbformat"), import_module("nbclient")
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # none is in the repository
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=where).execute()
    shown = outputs(notebook)
    plots = [data for source, data in shown if source.endswith(".plot()")]
    assert plots
    assert all("image/png" in data for data in plots)
    if name == "first_topology":
        (live,) = [data for source, data in shown if source.endswith("\nrunning")]
        assert "ended: caught_up" in live["text/html"]
        assert "<svg" in live["text/html"]
        texts = [
            o["text"] for cell in notebook.cells for o in cell.get("outputs", ()) if "text" in o
        ]
        assert any("the power went out" in text for text in texts)
