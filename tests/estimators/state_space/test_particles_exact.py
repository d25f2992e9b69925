"""Whole runs with few particles against the exact posterior, and how fast u forgets."""

import pytest

pytestmark = pytest.mark.slow
