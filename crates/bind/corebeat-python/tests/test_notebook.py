"""The notebook computes the results that it contains."""

import copy
from pathlib import Path

import nbclient
import nbformat

NOTEBOOK = Path(__file__).parents[1] / "examples" / "barrier.ipynb"


def outputs(notebook):
    """Texts and drawings of each cell."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[output.get("data") or output.get("text") for output in cell.outputs] for cell in cells]


def test_notebook_has_the_same_results_again(tmp_path, monkeypatch):
    # The kernel writes its history and its connection file there.
    monkeypatch.setenv("HOME", str(tmp_path))
    stored = nbformat.read(NOTEBOOK, as_version=4)
    run = copy.deepcopy(stored)
    for cell in run.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    nbclient.NotebookClient(run, timeout=100).execute()
    assert outputs(run) == outputs(stored) and any(outputs(run))
