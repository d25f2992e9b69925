"""How tests and doctests compile models: as little as they need."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytensor
import pytest

# Steps run in Python unless a test, or who runs the tests, wants them compiled: to compile one may
# take ten seconds. `make test-compiled` runs the tests of the steps again with compiled ones.
os.environ.setdefault("PYMC_APM_COMPILE", "0")

TESTS = Path(__file__).parent / "tests"

FOLDERS_THAT_COMPILE = ("compiled", "diagnostics", "estimators", "statistical", "steps")
"""Where models are shared by many tests, or evaluated so often that code in Python is too slow."""

AS_FOR_USERS: dict[str, Any] = {}

QUICKLY: dict[str, Any] = {"gcc__cxxflags": f"{pytensor.config.gcc__cxxflags} -O1".strip()}
"""The same code, by C (PyMC 5) or Numba (PyMC 6), but the C compiler optimises less."""

IN_PYTHON: dict[str, Any] = {"mode": "FAST_COMPILE", "cxx": ""}
"""Few rewrites, and no compiler: ten seconds less for a model, but an estimate takes 3 to 10 times
as long, so that it pays for up to some ten thousand of them.
"""


def flags(item: pytest.Item) -> dict[str, Any]:
    """Return the flags of PyTensor for a test."""
    if item.get_closest_marker("slow"):
        return AS_FOR_USERS
    folders = [TESTS / name for name in FOLDERS_THAT_COMPILE]
    if item.get_closest_marker("compiler") or any(map(item.path.is_relative_to, folders)):
        return QUICKLY
    return IN_PYTHON


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a test and its fixtures with the flags that it needs.

    A fixture of a module is made with the flags of the first test that asks for it.
    """
    with pytensor.config.change_flags(**flags(item)):
        return (yield)
