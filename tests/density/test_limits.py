"""Which terms of a log density may stop at a limit is seen in the graph."""

import math

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.raise_op import Assert

from pymc_apm.density.limits import find_limits, less, limit_at, new_limits
from pymc_apm.density.staging import Term, cut


class Stopping(Op):
    """Hands on its first input; its last one is the limit."""

    __props__ = ()
    limit_input = -1

    def make_node(self, x, limit):
        return Apply(self, [x, limit], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.array(inputs[0])


def limit():
    return pt.constant(np.array(-np.inf))


def found(*terms, others=()):
    return find_limits(list(terms), list(others))


x, y = pt.dvector("x"), pt.dvector("y")


def test_a_term_that_is_what_the_op_returns_has_a_limit():
    own, another = limit(), limit()
    estimate = Stopping()(x, own)
    for term in (estimate, estimate.sum(), Assert()(estimate, pt.eq(1, 1)), estimate.sum()[None]):
        assert found(term, y.sum(), others=[x]) == [own]
    both = found(estimate, Stopping()(y.sum(), another))
    assert both == [own, another]


@pytest.mark.parametrize(
    "change",
    [
        lambda e: 0.5 * e,
        lambda e: e.prod(),
        lambda e: e.max(),
        lambda e: pt.switch(e > 0.0, e, -1.0),
        lambda e: e[:1],
        lambda e: pt.cumsum(e),
    ],
    ids=["scaled", "product", "largest", "replaced", "part", "sums"],
)
def test_a_term_that_is_something_else_has_none(change):
    assert not found(change(Stopping()(x, limit())))


def test_what_is_used_elsewhere_has_none():
    own = limit()
    estimate = Stopping()(x, own)
    assert not found(estimate, -0.1 * estimate.sum())
    assert not found(estimate, others=[estimate[0]])
    assert not found(estimate, Stopping()(y, own))  # equal constants were put together
    assert not found(Stopping()(pt.switch(y > 0.0, x, own), own))
    assert not found(Stopping()(x, pt.dscalar("no constant")))


def test_nothing_else_is_computed_in_its_stages():
    """The other terms have to be known when the limit is set."""

    def limits_of(*terms):
        replace = new_limits(find_limits(list(terms), []))
        (variable,) = replace.values()
        values = pytensor.graph.replace.clone_replace(list(terms), replace=replace)
        inputs = {"x": x, "y": y}
        stages, _ = cut([Term("estimate", v) for v in values], inputs, (), [variable])
        places, number = [], 3
        for stage in stages:
            places.append(range(number, number + len(stage.results)))
            number += len(stage.results)
        return limit_at(variable, 2, list(zip(stages, places, strict=True)))

    term = Stopping()(pt.exp(x).sum(), limit())
    alone = limits_of(term, y.sum())
    assert alone is not None and alone.place == 2
    assert limits_of(term, pt.sin(x).sum()) is None


def test_the_limit_is_a_little_lower_than_it_would_be_without_rounding():
    assert less(-math.inf, 3.0) == -math.inf
    assert less(-math.inf, -math.inf) == -math.inf
    assert less(1.0, -math.inf) != -math.inf  # nothing more is asked for, or everything
    rng = np.random.default_rng(1)
    for prior, exact, estimate in 1e6 * rng.standard_normal((1000, 3)):
        height = (prior + exact) + estimate
        assert less(less(height, prior), exact) < estimate
        assert less(less(height, prior), exact) > estimate - 1e-4
