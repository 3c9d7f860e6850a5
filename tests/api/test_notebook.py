"""The notebook runs from its first cell to its last with the Python API alone, and is stored without outputs."""

import os
import re

import nbformat
from helpers.cli import ROOT
from nbclient import NotebookClient

FILE = ROOT / "examples" / "quickstart.ipynb"
CHOICE, QUICK = "EPOCHS, SEEDS = 12, [1993, 1994]", "EPOCHS, SEEDS = 1, [1993]"


def test_notebook_is_stored_without_outputs_and_installs_first():
    notebook = nbformat.read(FILE, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert "pip install" in code[0].source and 10 <= len(notebook.cells) <= 16
    text = "\n".join(cell.source for cell in code)
    assert not re.search(r"^!|subprocess|pilot-tal", text, re.MULTILINE)
    assert os.path.getsize(FILE) < 20_000


def test_every_cell_runs(tmp_path, monkeypatch):
    notebook = nbformat.read(FILE, as_version=4)
    assert CHOICE in notebook.cells[2].source
    for cell in notebook.cells:
        cell.source = cell.source.replace(CHOICE, QUICK)
    for name, value in {"PYTHONPATH": ROOT, "OMP_NUM_THREADS": 1, "JUPYTER_PLATFORM_DIRS": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    work = tmp_path / "work"
    work.mkdir()
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(work)}})
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "\n".join(output.get("text", "") for output in outputs)
    assert "error:" not in printed and "Traceback" not in printed, printed
    assert re.search(r"\d+ of \d+ new photographs are right", printed)
    tables = "".join(output.get("data", {}).get("text/html", "") for output in outputs)
    assert "simplecil" in tables and "plda" in tables and "4 finished" in tables
    for name in ("model/README.md", "model/vit.safetensors", "report/index.html"):
        assert (work / name).is_file(), printed
    assert len(list(work.glob("runs/*/run.json"))) == 4
