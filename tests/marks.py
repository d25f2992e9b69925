"""Which cases of a test are slow ones."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def others_are_slow(quick: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Leave all cases but some to the slow tests."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]
