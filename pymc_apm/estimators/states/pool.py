"""The pool estimator of the likelihood of a state-space model.

It is that of an embedded hidden Markov model (Neal, Beal and Roweis, 2003) on a randomly shifted
lattice: with points x_t^j, j = 1, ..., N, in each row t that have the density q_t each,

    alpha_1(j) = p(x_1^j) g(y_1 | x_1^j) / (N q_1(x_1^j))
    alpha_t(j) = g(y_t | x_t^j) / (N q_t(x_t^j)) sum over i of alpha_(t-1)(i) f(x_t^j | x_(t-1)^i)

and the estimate is the sum of alpha_T. It is linear in each row's points given those of all others,
which are independent, so that its mean is the likelihood, whatever N and the guide are.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_apm.errors import ModelError
from pymc_apm.estimators.states.guide import Guide, make_points
from pymc_apm.estimators.states.normal_pool import NormalPool, normal_transitions
from pymc_apm.estimators.states.pool_op import pool_forward
from pymc_apm.estimators.states.specification import Specification


class Pool(NamedTuple):
    """A pool of points with its weights, all functions of parameters and ``u``.

    Attributes
    ----------
    estimates : TensorVariable
        The log-estimate of each series.
    states : TensorVariable
        The points, (rows, points, numbers of a state).
    log_w : TensorVariable
        The logs of their weights without those of transitions, (rows, points).
    log_alpha : TensorVariable
        The logs of their forward weights, but for a constant of each row.
    """

    estimates: TensorVariable
    states: TensorVariable
    log_w: TensorVariable
    log_alpha: TensorVariable


def make_pool(
    specification: Specification,
    guide: Guide,
    u: TensorVariable,
    n_points: int,
    compile_kwargs: Mapping[str, Any] | None = None,
) -> Pool:
    """Build the graph of the estimator.

    Parameters
    ----------
    specification : Specification
    guide : Guide
    u : TensorVariable
        Uniform numbers, (rows, numbers of a state).
    n_points : int
    compile_kwargs : dict, optional
        See :func:`pool_forward`.
    """
    rows = specification.rows
    states, log_density = make_points(guide, u, n_points)
    is_first = np.flatnonzero(rows.is_first)
    if specification.is_fixed_start:
        # All points of a first row are the same, with the density of one that is drawn from there.
        start = specification.fixed_start()
        states = pt.set_subtensor(states[is_first], start[:, None, :])
        log_density = pt.set_subtensor(log_density[is_first], math.log(n_points))
    log_w = specification.log_observation(states) - log_density
    if not specification.is_fixed_start:
        log_initial = specification.log_initial(states[is_first])
        log_w = pt.inc_subtensor(log_w[is_first], log_initial)
    log_w = pt.specify_shape(log_w, (len(rows), n_points))
    normal = normal_transitions(specification, states)
    if normal is None:
        estimates, log_alpha = pool_forward(specification, log_w, states, compile_kwargs)
    else:
        constants = [pt.as_tensor_variable(rows.is_first), pt.as_tensor_variable(rows.series)]
        all_log_w = pt.specify_shape(log_w + normal.log_factor, log_w.type.shape)
        estimates, log_alpha = NormalPool()(
            all_log_w, normal.where, *constants, normal.centres, states
        )
        estimates = pt.specify_shape(estimates, (rows.n_series,))
    return Pool(estimates, states, log_w, log_alpha)


def check_suits(specification: Specification) -> None:
    """Check that the pool estimator can be made for a model."""
    for part in (specification.transition, specification.initial):
        discrete = part.with_atoms()
        if discrete:
            raise ModelError(
                f"The pool estimator of {specification.label} takes continuous states alone, but "
                f"the {part.label} makes {', '.join(discrete)} of counts, or rounds or clips it, "
                "so that single values have positive probability."
            )
    if specification.n_dims > MANY_DIMS:
        raise ModelError(
            f"The states of {specification.label} have {specification.n_dims} numbers, but the "
            f"pool estimator is for at most {MANY_DIMS}: a lattice in so many dimensions has too "
            "few points in each of them."
        )
    specification.transition_density()
    if specification.is_fixed_start:
        variables = set(ancestors([specification.fixed_start()]))
        of_model = [rv.name for rv in specification.model.root.free_RVs if rv in variables]
        if of_model:
            raise ModelError(
                f"initial of {specification.label} is a function of {', '.join(of_model)}. The "
                "pool estimator takes fixed numbers, or a distribution, which may depend on "
                "parameters."
            )
    else:
        specification.log_initial(pt.tensor3("states"))


MANY_DIMS = 6
"""The largest number of dimensions of a state."""
