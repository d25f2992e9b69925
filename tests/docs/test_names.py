"""The reference has every public name, and no other; no page speaks of a name that is not there."""

import importlib
import inspect
import json
import re
from pathlib import Path

import pytest

import pymc_apm as apm
from pymc_apm import diagnostics, errors, kernels
from pymc_apm.steps import base
from pymc_apm.steps.statistics import dtypes_and_shapes

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "api"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PAGES = [page for page in PAGES if not {"_build", "notebooks"} & set(page.parts)]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


EXAMPLES_IN = ("pymc_apm", "pymc_apm.estimators")
"""Where every docstring has an example, which runs as a doctest."""


def public_names():
    """Return the full names of all that a user may import."""
    names = {f"pymc_apm.{name}" for name in apm.__all__ if not inspect.ismodule(getattr(apm, name))}
    names |= {f"pymc_apm.estimators.{name}" for name in apm.estimators.__all__}
    names |= {f"pymc_apm.kernels.{name}" for name in kernels.__all__}
    top_level = set(apm.__all__)
    names |= {f"pymc_apm.diagnostics.{n}" for n in diagnostics.__all__ if n not in top_level}
    for name, value in vars(errors).items():
        if inspect.isclass(value) and value.__module__ == errors.__name__:
            names.add(f"pymc_apm.errors.{name}")
    return names


def documented_names():
    text = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    return re.findall(r"^\.\. auto(?:function|class|exception|data):: (\S+)", text, re.MULTILINE)


def find(name):
    """Return what a dotted name stands for; of a function and a module, the function."""
    first, *parts = name.split(".")
    found = importlib.import_module(first)
    for part in parts:
        if not hasattr(found, part):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    return found


def test_every_public_name_is_documented():
    assert public_names() - set(documented_names()) == set()


@pytest.mark.parametrize("name", sorted(documented_names()))
def test_every_documented_name_exists_and_has_a_docstring(name):
    documented = find(name)
    if callable(documented) and not name.endswith(".LogDensity"):  # an alias of types
        assert inspect.getdoc(documented)


@pytest.mark.parametrize(
    "name", sorted(n for n in public_names() if n.rpartition(".")[0] in EXAMPLES_IN)
)
def test_every_docstring_has_an_example(name):
    assert ">>>" in inspect.getdoc(find(name))


def test_no_name_is_documented_twice():
    names = documented_names()
    assert len(names) == len(set(names))


@pytest.mark.parametrize("page", PAGES + NOTEBOOKS, ids=lambda page: page.name)
def test_every_name_that_a_page_uses_exists(page):
    text = page.read_text()
    if page.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    for name in set(re.findall(r"\bapm\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)", text)):
        find(f"pymc_apm.{name}")


def all_steps():
    classes = [apm.ExchangeMH]
    pending = [base.APMStep]
    while pending:
        pending += (subclasses := pending.pop().__subclasses__())
        classes += [step for step in subclasses if step.__name__ in apm.__all__]
    return classes


def test_every_statistic_is_documented():
    page = (REFERENCE / "statistics.md").read_text()
    documented = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    recorded = {name for step in all_steps() for name in step.stats_dtypes_shapes}
    assert documented == {*recorded, *dtypes_and_shapes({}, has_signs=True)}


@pytest.mark.parametrize("name", sorted(name for name in public_names() if ".kernels." not in name))
def test_every_parameter_is_documented(name):
    """Errors, results and models of data are made by the package, or have attributes."""
    documented = find(name)
    text = inspect.getdoc(documented)
    if "Parameters\n---" not in text:
        pytest.skip("takes no parameters that a user would give")
    given = set(inspect.signature(documented).parameters) - {"kwargs", "styles"}
    section = text.split("Parameters\n----------\n")[1].split("\n\n")
    said = set()
    for line in "\n".join(section).splitlines():
        if match := re.match(r"\*{0,2}(\w+(?:, \w+)*)(?: :|$)", line):
            said |= set(match[1].split(", "))
    assert given - said == set()
