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

IN_PYTHON: dict[str, Any] = {"mode": "FAST_COMPILE", "cxx": ""}
"""Few rewrites, and no compiler: ten seconds less for a model, but an estimate takes 3 to 10 times
as long, so that it pays for up to some ten thousand of them.
"""


def compiles(item: pytest.Item) -> bool:
    """Say whether a test compiles models as users do."""
    folders = [TESTS / name for name in FOLDERS_THAT_COMPILE]
    has_marker = any(map(item.get_closest_marker, ("compiler", "slow")))
    return has_marker or any(map(item.path.is_relative_to, folders))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a test and its fixtures with the flags that it needs.

    A fixture of a module is made with the flags of the first test that asks for it.
    """
    with pytensor.config.change_flags(**({} if compiles(item) else IN_PYTHON)):
        return (yield)
