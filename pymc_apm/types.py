"""The values that kernels, densities and chains hand to each other: numpy only."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatVector: TypeAlias = NDArray[np.float64]

Point: TypeAlias = dict[str, NDArray[Any]]
"""The values of all parameters of a model, as PyMC has them."""


class Cost(NamedTuple):
    """What it took to evaluate a log density, once or several times.

    Attributes
    ----------
    n_evals : int
        Estimates that were computed.
    n_theta_evals : int
        Values of the parameters for which they were.
    n_nan : int
        Estimates that were not a number.
    n_cubic : int
        Cubic operations, of those estimators that count theirs.
    """

    n_evals: int
    n_theta_evals: int
    n_nan: int
    n_cubic: int


FREE = Cost(0, 0, 0, 0)
"""Nothing was computed."""

ONE_EVALUATION = Cost(1, 0, 0, 0)


def plus(cost: Cost, other: Cost) -> Cost:
    """Add up two costs."""
    return Cost(
        cost.n_evals + other.n_evals,
        cost.n_theta_evals + other.n_theta_evals,
        cost.n_nan + other.n_nan,
        cost.n_cubic + other.n_cubic,
    )


class Evaluation(NamedTuple):
    """The log density at a point, with all that was computed on the way: an immutable value.

    Attributes
    ----------
    values : tuple
        The value of each input of the density, then what its stages computed.
    log_density : float
        The log density with respect to q(u); ``-inf`` where the prior or the estimate is zero.
    log_estimate : float
        The sum of the log-estimates alone.
    log_prior, log_exact : float
        The other parts of it: the prior, and the likelihood of observed variables.
    cost : Cost
        What it took to compute this.
    log_height : float
        What the log density at the next point has to exceed to be of use, where a kernel says so;
        see :func:`reaching`.
    """

    values: tuple[Any, ...]
    log_density: float
    log_estimate: float
    log_prior: float
    log_exact: float
    cost: Cost
    log_height: float


def cost_of(memo: Any) -> Cost:
    """Return the cost of the evaluation that a memo stems from; one estimate if it is not known."""
    return getattr(memo, "cost", ONE_EVALUATION)


def reaching(memo: Any, log_height: float) -> Any:
    """Return a memo that lets the log density be ``-inf`` wherever it is not above a height.

    So an estimator may stop where it cannot get there. This is for updates to which all that is
    below the height is the same, as it is to slice sampling.
    """
    if not isinstance(memo, Evaluation):
        return memo
    return Evaluation(*memo[:-1], log_height)  # a third of the time that _replace takes


class State(NamedTuple):
    """A point of the chain with its log density.

    Attributes
    ----------
    position : ndarray
        The variables that the kernel updates (for a joint proposal, a tuple of such arrays).
    log_density : float
        The log density at ``position``, as it was computed when the chain came here.
    memo : object
        What the log density wants to keep of that computation, an :class:`Evaluation` as a rule.
        Kernels hand it on; of its content they add up the cost alone, and slice updates put the
        height into it.
    """

    position: Any
    log_density: float
    memo: Any = None


LogDensity: TypeAlias = Callable[[Any, Any], tuple[float, Any]]
"""``log_density(position, memo) -> (value, new_memo)``; ``-inf`` where the density is zero."""


class FactorPlaces(NamedTuple):
    """Where all that belongs to the factors of one u is among the values of an evaluation.

    Attributes
    ----------
    n_factors : int
    u : int
        Where the factor of each number of u is.
    terms : list of (int, int)
        Where the log-estimates are that depend on u, and the factors of their elements.
    changed : list of (int, int)
        The same for u and all that is computed from it, in ascending order.
    """

    n_factors: int
    u: int
    terms: Sequence[tuple[int, int]]
    changed: Sequence[tuple[int, int]]


def summed(value: Any) -> float:
    """Return the sum of a number or of an array; +inf if one of its elements is that."""
    total = float(np.add.reduce(value, axis=None))  # np.sum takes longer to get there
    return math.inf if math.isnan(total) and np.any(np.equal(value, math.inf)) else total
