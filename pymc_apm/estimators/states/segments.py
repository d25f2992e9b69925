"""A particle filter in segments of time, each with random numbers of its own.

The filter is a chain of ops, each of which goes on from the particles that the one before left. As
the density of a model is computed in stages by what each part depends on, an update of the random
numbers of one segment begins there, and what is before is not computed again. So numbers are
updated segment by segment, each of which has little noise, where an update of all at once would
move them little.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable

from pymc_apm._compat import with_gradient
from pymc_apm.estimators.states.filter import Before
from pymc_apm.estimators.states.particle_op import ParticleFilter


@with_gradient
class FilterSegment(Op):
    """The log-estimate up to some row, and particles there, from those before.

    Parameters
    ----------
    whole : ParticleFilter
        The filter of all rows.
    start, stop : int
        The rows.
    """

    __props__ = ()
    calls_python = True

    def __init__(self, whole: ParticleFilter, start: int, stop: int) -> None:
        self.whole, self.start, self.stop = whole, start, stop

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def make_node(self, u: Variable, *others: Variable) -> Apply:
        """Make a node: u, particles, look-ahead and sums before; the other inputs of the filter."""
        particles, ahead, sums = pt.dmatrix("particles"), pt.dvector("ahead"), pt.dvector("sums")
        return Apply(self, [u, *others], [pt.dscalar("log_estimate"), particles, ahead, sums])

    @property
    def limit_input(self) -> int | None:
        """As that of the whole filter."""
        return self.whole.limit_input

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[list[Any]]) -> None:
        """Run the filter; where the estimate is zero already, there is nothing to do."""
        u, x, ahead, sums, table, *others = inputs
        args, bounds = self.whole.split(others)
        total, lost = map(float, sums)
        before = Before(np.array(x), np.array(ahead), total, lost, self.start == 0)
        if np.isfinite(total):
            rows = np.ascontiguousarray(table[self.start : self.stop + 1])
            _, before = self.whole.run_rows(self.start, u, rows, args, False, before, bounds)
        sums = np.array([before.total, before.lost])
        made = np.array(before.total + before.lost), before.states, before.ahead, sums
        for storage, value in zip(outputs, made, strict=True):
            storage[0] = value

    def vector_jacobian(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], gradients: Sequence[Variable]
    ) -> list[Variable]:
        """Refuse: there is no gradient."""
        return self.whole.vector_jacobian(inputs, outputs, gradients)


def bounds_of(n_rows: int, n_segments: int) -> list[tuple[int, int]]:
    """Return the first row of each segment, and the row after its last."""
    ends = np.linspace(0, n_rows, n_segments + 1).round().astype(int).tolist()
    return list(itertools.pairwise(ends))


def segmented_estimate(
    whole: ParticleFilter, us: Sequence[Variable], others: Sequence[Variable]
) -> TensorVariable:
    """Return the log-estimate of a filter, as a chain of segments.

    Parameters
    ----------
    whole : ParticleFilter
    us : sequence of Variable
        The random numbers of each segment.
    others : sequence of Variable
        The other inputs of the filter.
    """
    n_rows, n_points = sum(u.type.shape[0] for u in us), us[0].type.shape[2]
    log_estimate, state = pt.zeros(()), [pt.zeros((1, n_points)), pt.zeros(n_points), pt.zeros(2)]
    for u, (start, stop) in zip(us, bounds_of(n_rows, len(us)), strict=True):
        log_estimate, *state = FilterSegment(whole, start, stop)(u, *state, *others)
    return log_estimate
