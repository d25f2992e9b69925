"""The code in the README, in the documentation and in notebooks runs."""

import ast
import json
import re
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from tests.docs.blocks import blocks_of, run, shorten
from tests.marks import others_are_slow

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if not {"_build", "notebooks"} & set(page.parts) and blocks_of(page)
]
LONG = ("latent_gaussian.md", "particles.md", "diagnosing.md", "recipes.md", "state_space.md")
"""Pages whose code takes some seconds or more."""
QUICK = [page for page in PAGES if page.name not in LONG]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    """Run in an empty folder, without a display, and without warnings of short chains."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
    matplotlib.pyplot.close("all") if "matplotlib.pyplot" in __import__("sys").modules else None


@pytest.mark.slow
def test_the_code_of_the_readme_runs_as_it_stands():
    names = run(README)
    posterior = names["idata"]["posterior"]
    assert posterior["mu"].shape == (4, 3000)
    assert abs(float(posterior["mu"].mean()) - 1.0) < 0.4  # the data were made with mu = 1


def test_the_readme_begins_with_an_ordinary_model():
    """Imports apart, the first block is short, and integrates latent variables out in one line."""
    code = blocks_of(README)[0].code
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith("import")]
    assert len(lines) <= 10
    assert len([line for line in lines if "apm." in line]) == 1


@pytest.mark.parametrize(
    "page", others_are_slow(QUICK, PAGES), ids=lambda page: page.relative_to(DOCS).as_posix()
)
def test_the_code_of_a_page_runs(page, monkeypatch):
    shorten(monkeypatch)
    np.random.seed(0)  # noqa: NPY002 (pages about code that uses it)
    run(page)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_code_of_a_notebook_runs(path, monkeypatch):
    """With short chains: the documentation executes notebooks as they are."""
    shorten(monkeypatch)
    run(path)


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.name)
def test_code_that_is_not_run_is_python_too(page):
    for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        ast.parse(code)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_stored_without_outputs(path):
    notebook = json.loads(path.read_text())
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], f"run: python examples/notebooks.py strip ({path.name})"
            assert cell["execution_count"] is None
    assert path.read_text().endswith("\n")
