"""The plan of the house: which room of the package may import which.

A room is a folder or a module of ``pymc_apm``. The tables below are the rule, and are read from top
to bottom: a room imports only rooms above it, so there are no cycles.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "pymc_apm"

MAY_IMPORT = {
    "errors": set(),
    "types": set(),
    "deprecated": {"errors"},
    "validation": {"errors"},
    "_compat": {"errors"},
    # Update rules: numbers in, numbers out.
    "kernels": {"types"},
    "adaptive": {"kernels", "types"},
    # How a model is declared: knows no sampler.
    "stream_generator": {"kernels", "types"},
    "randomness": {"errors", "kernels", "types", "validation"},
    "claims": {"_compat", "errors", "randomness"},
    "black_box": {
        *("_compat", "errors", "kernels", "randomness", "stream_generator", "types", "validation"),
    },
    "signs": {"_compat", "errors"},
    "potential": {"_compat", "black_box", "claims", "errors", "randomness", "signs", "validation"},
    # The log density: knows no update rule.
    "density": {
        *("_compat", "black_box", "claims", "errors", "potential", "randomness", "signs", "types"),
    },
    "compiled": {"_compat", "adaptive", "density", "errors", "kernels", "randomness", "types"},
    "estimators": {
        *("_compat", "black_box", "compiled", "density", "deprecated", "errors", "kernels"),
        *("potential", "randomness", "types", "validation"),
    },
    # From an ordinary model to one with estimates.
    "marginal": {
        *("_compat", "density", "errors", "estimators", "potential", "randomness", "validation"),
    },
    # PyMC's protocol.
    "steps": {
        *("_compat", "adaptive", "black_box", "claims", "compiled", "density", "deprecated"),
        *("errors", "estimators", "kernels", "potential", "randomness", "signs", "types"),
        "validation",
    },
    "diagnostics": {
        *("_compat", "claims", "density", "errors", "kernels", "randomness", "signs", "steps"),
        *("types", "validation"),
    },
    "plots": {"_compat", "diagnostics", "errors", "types", "validation"},
    # Runs that survive: PyMC's public interface, files, executors.
    "runs": {
        *("_compat", "adaptive", "claims", "diagnostics", "errors", "potential", "randomness"),
        *("signs", "steps", "types", "validation"),
    },
    "_hooks": {
        *("_compat", "claims", "diagnostics", "errors", "potential", "randomness", "signs"),
        "steps",
    },
}
"""The plan. The package itself, ``__init__``, may import every room but those in `LATE`."""

NEVER_AT_THE_TOP = {
    *("compiled", "matplotlib", "pandas", "arviz", "arviz_stats"),
    *("zarr", "google_crc32c"),
}
"""What is imported where it is used, inside a function, because it takes long."""

LATE = {("diagnostics", "plots")}
"""Imports against the order, inside functions: ``EstimatorTuning.plot`` draws a figure."""

NUMERIC = {"numpy", "scipy"}
ONLY = {"kernels": NUMERIC, "adaptive": NUMERIC, "types": NUMERIC}
"""All that these rooms import from elsewhere, the standard library apart."""

ONLY_IN = {
    "numba": {"compiled", "estimators", "_compat", "black_box"},
    "matplotlib": {"plots"},
    "zarr": {"runs"},
    "google_crc32c": {"runs"},
    "cloudpickle": {"runs"},
}
"""Packages that other rooms do not know."""

SAME_ROOM = {"kinds": "randomness", "numba_box": "black_box"}
"""Modules that are part of a room under another name."""

TOLERATED = {("density", "kernels.stream")}
"""What still breaks the rule: how a stream settles."""


class Import(NamedTuple):
    """What is imported, by its full name, and whether that happens inside a function."""

    name: str
    is_late: bool


def imports_in(node: ast.AST, is_late: bool = False) -> Iterator[Import]:
    """Find all imports; those for type checkers alone count as late."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, is_late) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (Import(f"{child.module}.{alias.name}", is_late) for alias in child.names)
        is_for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from imports_in(child, is_late or is_function or is_for_types)


def room_of(module: str) -> str:
    """Return the room of a module, which is named from the package on: ``kernels.slice``."""
    first = module.split(".")[0]
    return SAME_ROOM.get(first, first)


def broken_rules(module: str, source: str) -> Iterator[str]:
    """Say what in the source of a module is against the plan."""
    room = room_of(module)
    for name, is_late in imports_in(ast.parse(source)):
        package, _, inside = name.partition(".")
        what = room_of(inside) if package == PACKAGE.name else package
        if what in NEVER_AT_THE_TOP - {room} and not is_late:
            yield f"{module} imports {name} at the top, not where it is used"
        if package != PACKAGE.name:
            if what in sys.stdlib_module_names:
                continue
            if what not in ONLY.get(room, {what}) or room not in ONLY_IN.get(what, {room}):
                yield f"{module} imports {name}, which {room} must not know"
        elif room in MAY_IMPORT and what in MAY_IMPORT and what != room:
            is_tolerated = any((room, inside.rsplit(".", i)[0]) in TOLERATED for i in (0, 1))
            is_allowed = what in MAY_IMPORT[room] or (is_late and (room, what) in LATE)
            if not is_allowed and not is_tolerated:
                yield f"{module} imports {name}: {room} must not know {what}"


def modules() -> dict[str, Path]:
    """Return all modules of the package, named from the package on."""
    paths = {path.relative_to(PACKAGE).with_suffix(""): path for path in PACKAGE.rglob("*.py")}
    return {".".join(p for p in name.parts if p != "__init__"): at for name, at in paths.items()}


MODULES = modules()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module or "__init__")
def test_a_module_imports_only_what_its_room_may_know(module):
    assert not list(broken_rules(module, MODULES[module].read_text()))


def test_every_module_is_in_a_room():
    assert {room_of(module) for module in MODULES} - {""} <= set(MAY_IMPORT)


def test_rooms_import_only_rooms_above_them():
    rooms = list(MAY_IMPORT)
    for place, room in enumerate(rooms):
        assert MAY_IMPORT[room] <= set(rooms[:place]), room


def test_nothing_is_tolerated_that_does_not_happen():
    found = {
        (room_of(module), name.removeprefix("pymc_apm.").rpartition(".")[0])
        for module, path in MODULES.items()
        for name, _ in imports_in(ast.parse(path.read_text()))
    }
    assert TOLERATED <= found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("kernels.slice", "import pymc as pm"),
        ("kernels.slice", "def f():\n    from pytensor.tensor import dot"),
        ("kernels.slice", "from pymc_apm.errors import ModelError"),
        ("adaptive.slice", "from pymc_apm.density.target import Target"),
        ("density.target", "from pymc_apm.kernels.slice import linear_slice"),
        ("density.target", "from pymc_apm.kernels import slice"),
        ("potential", "from pymc_apm.steps import APMSlice"),
        ("steps.base", "from pymc_apm.compiled.program import Program"),
        ("steps.base", "from pymc_apm import diagnostics"),
        ("diagnostics.tune", "from pymc_apm.plots.tuning import plot"),
        ("diagnostics.report", "def f():\n    import matplotlib"),
        ("plots.trace", "import matplotlib.pyplot as plt"),
        ("adaptive.tuning", "if True:\n    import numba"),
        ("", "from pymc_apm.compiled.program import Program"),
    ],
)
def test_an_import_against_the_plan_is_noticed(module, source):
    assert len(list(broken_rules(module, source))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("kernels.slice", "import math\nimport numpy as np\nfrom scipy.special import ndtri"),
        ("steps.blocks", "def f():\n    from pymc_apm.compiled.program import Program"),
        ("diagnostics.tune", "def f():\n    from pymc_apm.plots.tuning import plot"),
        ("plots.trace", "def f():\n    import matplotlib.pyplot as plt"),
    ],
)
def test_an_import_within_the_plan_is_not(module, source):
    assert not list(broken_rules(module, source))
