"""How tests and doctests compile models: as little as they need."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import predefined_modes

import pymc_apm.steps.base
from pymc_apm.density.target import Target

# Steps run in Python unless a test, or who runs the tests, wants them compiled: to compile one may
# take ten seconds. `make test-compiled` runs the tests of the steps again with compiled ones.
os.environ.setdefault("PYMC_APM_COMPILE", "0")

TESTS = Path(__file__).parent / "tests"

FOLDERS_THAT_COMPILE = ("compiled", "diagnostics", "estimators", "statistical", "steps")
"""Where models are shared by many tests, or evaluated so often that code in Python is too slow."""

IN_PYTHON: dict[str, Any] = {"mode": "FAST_COMPILE", "cxx": ""}
"""Few rewrites, and no compiler: ten seconds less for a model, but an estimate takes 3 to 10 times
as long, so that it pays for up to some ten thousand of them.
"""

# PyTensor 2 has numpy add or multiply two arrays, but takes more of them number by number:
# sums and products are left as they were written.
predefined_modes["FAST_COMPILE"] = predefined_modes["FAST_COMPILE"].excluding(
    "local_add_canonizer", "local_mul_canonizer"
)


def compiles(item: pytest.Item) -> bool:
    """Say whether a test compiles models as users do."""
    if item.get_closest_marker("in_python"):
        return False
    folders = [TESTS / name for name in FOLDERS_THAT_COMPILE]
    has_marker = any(map(item.get_closest_marker, ("compiler", "slow")))
    return has_marker or any(map(item.path.is_relative_to, folders))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names of tests that are others in each process: two workers could not share them."""
    wrong = [item.nodeid for item in items if " at 0x" in item.nodeid.lower()]
    if wrong:
        raise pytest.UsageError(f"Names of tests have addresses in them: {', '.join(wrong)}")


TARGETS: dict[Any, Target] = {}


def shared_target(
    model: Any, variables: Any, initial_point: Any, compile_kwargs: Any = None
) -> Target:
    """Return the target of a model, compiled once for all steps on the same parameters.

    A target never changes, and takes longer to compile than most tests do anything else.
    """
    shapes = tuple((name, np.shape(value)) for name, value in initial_point.items())
    terms = (*model.basic_RVs, *model.potentials)
    flags = (pytensor.config.mode, pytensor.config.cxx, repr(compile_kwargs))
    key = (id(model), terms, tuple(variables), shapes, flags)
    if key not in TARGETS:
        TARGETS[key] = Target(model, variables, initial_point, compile_kwargs)
    return TARGETS[key]


@pytest.fixture(autouse=True)
def shared_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let steps share the targets of models; the targets keep the models alive."""
    monkeypatch.setattr(pymc_apm.steps.base, "Target", shared_target)


@pytest.fixture(autouse=True, scope="module")
def forgotten_targets() -> Iterator[None]:
    """Forget the targets of a module."""
    yield
    TARGETS.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a test and its fixtures with the flags that it needs.

    A fixture of a module is made with the flags of the first test that asks for it.
    """
    with pytensor.config.change_flags(**({} if compiles(item) else IN_PYTHON)):
        return (yield)
