"""Estimates for many u at once: hundreds of times as fast as one after the other."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import _vectorize_node, vectorize_graph
from pytensor.raise_op import CheckAndRaise

from pymc_apm.estimators.laplace.ops import LaplaceDraw
from tests.models import PYTHON


@_vectorize_node.register(LaplaceDraw)
def _vectorize_draw(op, node, *inputs):
    """Draw the samples of all u together, as it draws those of one."""
    *fit, u = inputs
    n_u, n_samples, size = u.shape[0], *u.shape[-2:]
    if u.type.ndim == 4:
        u = u.swapaxes(0, 1)
        drawn = op(*fit, u.reshape((2, n_u * n_samples, size)))
    else:
        drawn = op(*fit, u.reshape((n_u * n_samples, size)))
    return drawn.reshape((n_u, n_samples, size)).owner


class Batches:
    """The log-estimate of a model as a function of its parameters and of many u.

    The graph is that of the model, without the check that somebody updates u. Nothing is compiled.
    """

    def __init__(self, model: pm.Model, name: str = "y") -> None:
        term, self.u = model[name], model[f"{name}_u"]
        while isinstance(term.owner.op, CheckAndRaise):
            term = term.owner.inputs[0]
        us = pt.tensor("us", dtype="float64", shape=(None, *self.u.type.shape))
        (log_estimates,) = vectorize_graph([term], replace={self.u: us})
        self._function = pytensor.function(
            [us, *model.free_RVs], log_estimates, on_unused_input="ignore", **PYTHON
        )
        self._names = [rv.name for rv in model.free_RVs]

    def draw(self, n_draws: int, seed: int = 1) -> np.ndarray:
        """Draw many u."""
        randomness, rng = self.u.tag.apm_randomness, np.random.default_rng(seed)
        return np.array([randomness.as_array(randomness.draw(rng)) for _ in range(n_draws)])

    def at(self, us: np.ndarray, point: Mapping[str, Any]) -> np.ndarray:
        """Return the log-estimate for each u, summed over factors."""
        found = self._function(us, *(np.asarray(point[name], float) for name in self._names))
        return found.reshape(len(us), -1).sum(axis=1)

    def estimates(self, n_draws: int, point: Mapping[str, Any]) -> np.ndarray:
        """Return many independent estimates, on the natural scale."""
        return np.exp(self.at(self.draw(n_draws), point))
