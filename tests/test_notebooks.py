"""The notebooks are those of the tutorials' pages, and run from the first cell to the last."""

import importlib.util
import json
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


def script():
    spec = importlib.util.spec_from_file_location("notebooks", DOCS / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NAMES = script().PAGES


def code_of(name):
    cells = json.loads((DOCS / "notebooks" / f"{name}.ipynb").read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_its_page(name):
    written = (DOCS / "notebooks" / f"{name}.ipynb").read_text()
    assert written == script().notebook(name), "run: python docs/notebooks.py"
    assert f"(../notebooks/{name}.ipynb)" in (DOCS / "tutorials" / f"{name}.md").read_text()


def test_no_notebook_is_without_a_page():
    assert sorted(path.stem for path in (DOCS / "notebooks").iterdir()) == sorted(NAMES)


def test_cells_have_the_form_of_notebooks():
    whole = json.loads(script().notebook(NAMES[0]))
    assert (whole["nbformat"], whole["nbformat_minor"]) == (4, 5)
    kinds = [cell["cell_type"] for cell in whole["cells"]]
    assert kinds[:2] == ["markdown", "code"]
    assert len({cell["id"] for cell in whole["cells"]}) == len(kinds)
    assert all(cell["source"] for cell in whole["cells"])


@pytest.mark.slow
@pytest.mark.lax_promotion
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for number, code in enumerate(code_of(name)):
        exec(compile(code, f"{name}.ipynb, cell of code {number}", "exec"), namespace)
