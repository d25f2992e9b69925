"""Small models, and ops that no compiler can look into, for the tests."""

from collections import Counter
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_apm as apm

PYTHON = {"mode": "FAST_COMPILE"}
"""Options for the compiler where the backend does not matter: nothing is compiled, it is fast."""

QUIET = {"progressbar": False, "compute_convergence_checks": False}

SETUP_RUNS = 2
"""How often everything is computed where a chain starts: once, and once more to compare."""


class PythonOp(Op):
    """A Python function whose result has the type of its first argument, as an op."""

    __props__ = ("function",)

    def __init__(self, function):
        self.function = function

    def make_node(self, *inputs):
        inputs = [pt.as_tensor_variable(x) for x in inputs]
        return Apply(self, inputs, [inputs[0].type()])

    def perform(self, node, inputs, outputs):
        output = node.outputs[0].type
        outputs[0][0] = np.array(self.function(*inputs), dtype=output.dtype)


class Calls(Counter):
    """Counts how often the ops that it makes are computed."""

    def counted(self, label, x):
        """Hand ``x`` on through an op that counts its calls under a label."""

        def count(value):
            self[label] += 1
            return value

        return PythonOp(count)(x)


class Run(NamedTuple):
    """What a chain that was run by hand left behind: its last point and its statistics."""

    point: dict
    stats: list

    def total(self, name):
        return sum(stat[name] for stat in self.stats)


def run(step, point, n_draws, seed=0, n_tune=0):
    """Run one chain of one step, without the rest of ``pm.sample``."""
    step.set_rng(np.random.default_rng(seed))
    stats = []
    for draw in range(n_tune + n_draws):
        if draw == n_tune:
            step.stop_tuning()
        point, [stat] = step.step(point)
        stats.append(stat)
    return Run(point, stats)


def toy_gaussian(dim=5):
    """Return a model whose posterior is N(0, I), with a likelihood estimated by a single draw.

    The estimate N(0 | theta + u, 1) has the mean N(0 | theta, 2) over u, and the prior is N(0, 2).
    """
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, np.sqrt(2.0), shape=dim)
        u = apm.StandardNormal("u", shape=dim)
        apm.Potential("log_lik", -0.5 * pt.sum((theta + u) ** 2))
    return model


def uniform_toy():
    """Return a model of one parameter whose estimator takes uniform randomness."""
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardUniform("u", shape=3)
        apm.Potential("log_lik", -((theta + u) ** 2).sum())
    return model


def mixed_toy():
    """Return a model with randomness of both kinds, ``u`` normal and ``v`` uniform."""
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=2)
        u = apm.StandardNormal("u", shape=2)
        v = apm.StandardUniform("v", shape=(2, 2))
        apm.Potential("log_lik", -((theta + u) ** 2).sum() - (theta * v).sum())
    return model
