"""Draws of states from a pool, by the backward recursion, as an op that calls Python."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable

from pymc_apm.estimators.states import forward
from pymc_apm.estimators.states.normal_pool import NormalPool
from pymc_apm.estimators.states.pool import Pool
from pymc_apm.estimators.states.pool_op import Pool as PoolOp
from pymc_apm.estimators.states.pool_op import chunks


class Drawn(NamedTuple):
    """Which point of each row was drawn, and what goes with it.

    Attributes
    ----------
    smoothed : TensorVariable
        A path given all data.
    filtered : TensorVariable
        Of each row by itself, given the data up to it.
    score : TensorVariable
        The log density of the data of each row given those before.
    effective : TensorVariable
        The effective number of points of each row, by their weights given the data up to it.
    reached : TensorVariable
        The effective number of points of each row that the transition from the path reaches; that
        of all points in the first row.
    """

    smoothed: TensorVariable
    filtered: TensorVariable
    score: TensorVariable
    effective: TensorVariable
    reached: TensorVariable


def draw_from(pool: Pool, u: TensorVariable) -> Drawn:
    """Draw states from a pool, by a uniform number ``u`` for each row."""
    node = pool.log_alpha.owner
    return Drawn(*PoolDraws(node.op)(u, pool.log_alpha, *node.inputs))


class PoolDraws(Op):
    """Draws from a pool.

    Parameters
    ----------
    pool : PoolOp or NormalPool
        The op that runs the forward recursion.
    """

    __props__ = ("pool",)
    calls_python = True

    def __init__(self, pool: PoolOp | NormalPool) -> None:
        self.pool = pool

    def make_node(self, u: Variable, log_alpha: Variable, *others: Variable) -> Apply:
        """Make a node: uniform numbers, ``log_alpha``, and the inputs of a pool."""
        outputs = [pt.lvector("smoothed"), pt.lvector("filtered")]
        outputs += [pt.dvector("score"), pt.dvector("effective"), pt.dvector("reached")]
        return Apply(self, [u, log_alpha, *others], outputs)

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[list[Any]]) -> None:
        """Run the backward recursion."""
        u, log_alpha, log_w, points, is_first, _, *others = inputs
        log_w = np.ascontiguousarray(log_w)
        is_last = np.append(is_first[1:], True)
        filtered = np.array([forward.choose(row, v) for row, v in zip(log_alpha, u, strict=True)])
        smoothed, score = filtered.copy(), np.empty(len(log_w))
        reached = np.full(len(log_w), float(log_w.shape[1]))
        score[0] = forward.log_sum_exp(log_w[0])
        for start, stop in reversed(chunks(*log_w.shape)):
            chunk = np.ascontiguousarray(self.pool.transitions(start, stop, points, *others))
            forward.draw_chunk(chunk, is_last, start, log_alpha, u, smoothed, reached)
            forward.predict_chunk(chunk, log_w, is_first, start, log_alpha, score)
        weights = np.exp(log_alpha)
        effective = weights.sum(axis=1) ** 2 / (weights**2).sum(axis=1)
        made = smoothed, filtered, score, effective, reached
        for storage, value in zip(outputs, made, strict=True):
            storage[0] = value
