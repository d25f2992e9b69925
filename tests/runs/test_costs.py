"""A store costs little time and little memory, whatever is written to it."""

import pytest

from tests.runs import costs

pytestmark = [pytest.mark.slow, pytest.mark.compiler]


def test_draws_of_microseconds_cost_at_most_a_tenth_more():
    plain, stored, _ = costs.of_quick_draws(200_000, repetitions=2)
    # The tenth, and what it takes to make and to open a store, which does not depend on the draws.
    assert stored < 1.1 * plain + 0.5


def test_memory_does_not_grow_with_what_is_written():
    grown, written = costs.growth_of_memory(300)
    assert written > 290
    assert grown < 100
