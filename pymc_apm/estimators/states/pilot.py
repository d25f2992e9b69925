"""Finding the guide of a pool: where states are given the data, at reference parameters.

A bootstrap filter tells about where states are. Pools of points there, by the backward recursion,
tell their means and covariances given all data, each time better; and as a pool has a gradient, the
mode of the posterior of the parameters is found with it. That is repeated until the guide no longer
changes. In the end it is made wide enough for parameters all over their posterior. Nothing of this
need be exact: a guide that is wrong makes the estimate noisier, never biased.
"""

import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.gradient import grad
from pytensor.tensor.variable import TensorVariable

from pymc_apm.errors import EstimatorError, see
from pymc_apm.estimators.reference import FAST, ParameterSpace, Position
from pymc_apm.estimators.states.bootstrap import bootstrap_moments
from pymc_apm.estimators.states.draw_op import draw_from
from pymc_apm.estimators.states.guide import (
    Floats,
    Guide,
    lattice,
    supports_of,
    tails_of,
    to_line,
)
from pymc_apm.estimators.states.pool import Pool, make_pool
from pymc_apm.estimators.states.specification import Specification

_log = logging.getLogger("pymc.apm")

PARTICLES = 500
"""Of the bootstrap filter."""

LONG = 2_000_000
"""Pairs of points from which on densities are compiled for real."""

N_PILOT = {1: 32, 2: 64, 3: 64}
"""Points of pilot pools, by the number of dimensions; 96 in more."""

ROUNDS = 4
"""How often at most the guide is made and the parameters are found with it."""

POLISH = 2
"""How often the guide is made again at the same parameters."""

SHIFTS = 8
"""Pools from which a guide of more than one dimension is made: one has few points with weight."""

N_ABOUT = 8
"""Parameters about the mode for which a guide is made too, so that it suits the posterior."""

N_NOISE, N_EACH = 16, 4
"""Estimates from which their noise is told, and for each of several parameters at the least."""

MANY = 20
"""From so many parameters on a guide is made for the mode alone: each takes some gradients."""

N_POINTS: dict[int, Sequence[int]] = {
    1: (16, 32, 64, 128),
    2: (32, 64, 128, 256),
    3: (64, 128, 256),
    4: (64, 128, 256, 512),
}
"""Numbers of points to choose from, by the number of dimensions; the last for more."""

LOW_NOISE = 0.1
"""The noise of the log-estimate, its standard deviation, that is aimed at."""

FAR_DOWN, FAR_NOISE = 4.0, 0.5
"""How much lower the log posterior is where noise is looked at too, and what it may be there."""

NOISY = 1.0
"""The noise from which on there is a warning."""

WIDTHS = {1: 2.0, 2: 1.4, 3: 1.1, 4: 0.7}
"""Default widths of guides, by the number of dimensions; 0.65 in more."""


class Pilot(NamedTuple):
    """What was found before sampling.

    Attributes
    ----------
    guide : Guide
    n_points : int
    noise : float
        The standard deviation of the log-estimate at the reference, and about it; the largest of
        all series.
    edge : float
        The largest share of a row's weight on the outermost points in any dimension.
    effective, reached : float
        The smallest effective number of points in a row, and of those that a transition reaches.
    """

    guide: Guide
    n_points: int
    noise: float
    edge: float
    effective: float
    reached: float


def default_width(n_dims: int) -> float:
    """Return the width of a guide if the user does not say."""
    return WIDTHS.get(n_dims, 0.65)


def find_guide(
    specification: Specification,
    width: float,
    n_points: int | None,
    reference: Mapping[str, Any] | None,
    rng: np.random.Generator,
) -> Pilot:
    """Find a guide, and how many points it takes if the user does not say."""
    search = _Search(specification, width, rng)
    space = ParameterSpace(search.expressions, specification.model, reference)
    position = space.start
    search.filter(space, position)
    for round_ in range(ROUNDS):
        for _ in range(POLISH):
            search.polish(space, [position])
        if reference is not None or position.size == 0:
            break
        position, moved = search.maximise(space, position)
        if not moved:
            break
        if round_ == 0:  # the start was a guess
            search.filter(space, position)
    else:
        search.polish(space, [position])
    near, far = [position], list[Position]()
    if reference is None and position.size:
        text = space.describe(position)
        _log.info("Reference of %s by pilot runs: %s", specification.name, text)
        about, far = search.about(space, position)
        near += about
        for _ in range(POLISH):
            search.polish(space, near)
    return search.finish(space, near, far, n_points)


class _Search:
    """The state of a search: a guide in shared variables, and functions of the parameters."""

    def __init__(self, specification: Specification, width: float, rng: np.random.Generator):
        n_rows, n_dims = len(specification.rows), specification.n_dims
        self.specification = specification
        self.width, self.rng = width, rng
        self.pilot_width = default_width(n_dims)
        self.supports = supports_of(specification)
        self.n_pilot = N_PILOT.get(n_dims, 96)
        mean, chol = np.zeros((n_rows, n_dims)), np.tile(np.eye(n_dims), (n_rows, 1, 1))
        self._mean = pytensor.shared(mean, shape=mean.shape)
        self._chol = pytensor.shared(chol, shape=chol.shape)
        # Not the same in each row, or paths that are far out in all of them may count. On a line
        # points are in the middle of their shares, where none is far out.
        is_line = n_dims == 1
        u = np.full(mean.shape, 0.5 / self.n_pilot) if is_line else rng.random(mean.shape)
        self._u = pytensor.shared(u, shape=mean.shape)
        self._guide = Guide(self._mean, self._chol, self.supports, tails_of(specification))
        pool = self._pool(self.n_pilot)
        gamma = grad(pool.estimates.sum(), pool.log_w)
        self.estimate = pool.estimates.sum()
        parts = specification.initial, specification.transition, specification.observation
        self._sizes = [len(part.closure) for part in parts]
        self.expressions: list[TensorVariable] = [self.estimate]
        for part in parts:
            self.expressions += part.closure.values()
        self._smooth = pool.states, gamma
        self._functions: dict[str, Any] = {}

    def _pool(self, n_points: int) -> Pool:
        n_pairs = len(self.specification.rows) * n_points**2
        kwargs = FAST if n_pairs < LONG else {"calls_python": True}
        return make_pool(self.specification, self._guide, self._u, n_points, kwargs)

    def _set(self, means: Floats, covs: Floats) -> None:
        self._mean.set_value(means)
        self._chol.set_value(self.pilot_width * _factors(covs))

    def filter(self, space: ParameterSpace, position: Position) -> None:
        """Make a guide by a bootstrap filter."""
        if "filter" not in self._functions:
            long = len(self.specification.rows) > 2000
            self._functions["filter"] = bootstrap_moments(
                self.specification,
                PARTICLES,
                self.rng,
                {"calls_python": True} if long else FAST,
                lambda states: to_line(states, self.supports),
            )
        values = iter(space.values(position)[1:])
        closures = [[next(values) for _ in range(size)] for size in self._sizes]
        self._set(*self._functions["filter"](*closures))

    def polish(self, space: ParameterSpace, positions: Sequence[Position]) -> None:
        """Make the guide again from the states given all data, by pools.

        It is about where they are with any of some parameters, the first of which are those that
        matter: where a pool at others fails, it does without.
        """
        if "smooth" not in self._functions:
            self._functions["smooth"] = space.function(self._smooth)
        centre = self._mean.get_value()
        (n_rows, n_dims), share = centre.shape, np.zeros(len(centre))
        means, covs = np.zeros((n_rows, n_dims)), np.zeros((n_rows, n_dims, n_dims))
        n_made, n_shifts = 0, 1 if n_dims == 1 else SHIFTS
        fixed = self._u.get_value()
        for position, shift in itertools.product(positions, range(n_shifts)):
            self._u.set_value(self.rng.random(centre.shape) if shift else fixed)
            states, gamma = self._functions["smooth"](position)
            is_first = position is positions[0] and shift == 0
            if not np.isfinite(gamma).all():
                if not is_first:
                    continue
                raise EstimatorError(
                    f"The estimate of {self.specification.label} is zero, or not a number, at "
                    f"{space.describe(position)}. Give a reference, parameters with which it is "
                    f"positive, or check the model. {see('state_space')}"
                )
            line = to_line(states, self.supports) - centre[:, None]
            means += np.einsum("rj,rjk->rk", gamma, line)
            covs += np.einsum("rj,rjk,rjl->rkl", gamma, line, line)
            share += (gamma**2).sum(axis=1)
            n_made += 1
        self._u.set_value(fixed)
        # Of all shifts of one pool: other parameters do not make points denser.
        means, covs, share = means / n_made, covs / n_made, share / (n_made * n_shifts)
        covs -= means[:, :, None] * means[:, None, :]
        means += centre
        # Where few points have weight, the states may be anywhere between them.
        doubt = np.minimum(share, 1.0) ** 2
        chol = self._chol.get_value()
        spacing = 4.0 / self.n_pilot ** (1.0 / n_dims)
        covs += (doubt * spacing**2)[:, None, None] * (chol @ chol.transpose(0, 2, 1))
        self._set(means, covs)

    def _posterior(self, space: ParameterSpace) -> Callable[[Position], tuple[float, Position]]:
        if "posterior" not in self._functions:
            self._functions["posterior"] = space.log_posterior(self.estimate)
        posterior: Callable[[Position], tuple[float, Position]] = self._functions["posterior"]
        return posterior

    def maximise(self, space: ParameterSpace, start: Position) -> tuple[Position, bool]:
        """Find parameters with the guide as it is, and say whether they are others."""
        from scipy.optimize import minimize  # takes long to import

        posterior = self._posterior(space)
        best: tuple[float, Position] = (-math.inf, start)

        def loss(position: Position) -> tuple[float, Position]:
            nonlocal best
            value, slope = posterior(position)
            if not (math.isfinite(value) and np.isfinite(slope).all()):
                return 1e15, np.zeros_like(position)
            if value > best[0]:
                best = value, position.copy()
            return -value, -slope

        before = posterior(start)[0]
        # Not too far in one go: the guide is good near to where it was made.
        bounds = [(value - 3.0, value + 3.0) for value in start]
        options = {"maxiter": 30, "maxfun": 60}
        minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        value, position = best
        return position, not value - before < 1.0

    def about(self, space: ParameterSpace, mode: Position) -> tuple[list[Position], list[Position]]:
        """Draw parameters from the posterior, by its curvature at the mode, and find its ends.

        These are as far as a chain may be expected to go along each axis: the posterior need not be
        normal. A standard deviation is 1 at most, and what the density does not depend on stays as
        it is.
        """
        if mode.size >= MANY:
            return [], []
        posterior, step = self._posterior(space), 1e-3
        slopes = np.array(
            [
                (posterior(mode - move)[1] - posterior(mode + move)[1]) / (2.0 * step)
                for move in step * np.eye(mode.size)
            ]
        )
        if not np.isfinite(slopes).all():
            return [], []
        curvatures, directions = np.linalg.eigh(0.5 * (slopes + slopes.T))
        sds = np.where(np.abs(curvatures) < 1e-9, 0.0, 1.0 / np.sqrt(np.maximum(curvatures, 1.0)))
        moves = (self.rng.standard_normal((N_ABOUT // 2, mode.size)) * sds) @ directions.T
        lowest, ends = posterior(mode)[0] - FAR_DOWN, []
        for axis in (directions * sds).T[sds > 0.0]:
            for move in (axis, -axis):
                further = (mode + distance * move for distance in (4.0, 3.0, 2.0, 1.0))
                end = next((p for p in further if posterior(p)[0] > lowest), None)
                ends += [] if end is None else [end]
        return [*(mode + moves), *(mode - moves)], ends

    def finish(
        self,
        space: ParameterSpace,
        near: Sequence[Position],
        far: Sequence[Position],
        n_points: int | None,
    ) -> Pilot:
        """Choose the number of points, and measure the noise, at some parameters."""
        n_dims = self.specification.n_dims
        self._chol.set_value(self._chol.get_value() * (self.width / self.pilot_width))
        guide = self._guide._replace(mean=self._mean.get_value(), chol=self._chol.get_value())
        choices = N_POINTS.get(n_dims, N_POINTS[4]) if n_points is None else [n_points]
        for chosen in choices:
            pool = self._pool(chosen)
            estimates = space.function([pool.estimates])
            noise = self._noise(estimates, near)
            if noise < LOW_NOISE and (not far or self._noise(estimates, far) < FAR_NOISE):
                break
        drawn = draw_from(pool, pt.as_tensor_variable(self.rng.random(len(guide.mean))))
        gamma = grad(pool.estimates.sum(), pool.log_w)
        outputs = [gamma, drawn.effective, drawn.reached]
        gamma, effective, reached = space.function(outputs)(near[0])
        places = (lattice(chosen, n_dims) + self._u.get_value()[:, None]) % 1.0
        is_outer = (np.abs(places - 0.5) > 0.5 - 1.0 / chosen).any(axis=2)
        edge = float((gamma * is_outer).sum(axis=1).max())
        pilot = Pilot(guide, chosen, noise, edge, float(effective.min()), float(reached.min()))
        _warn(self.specification, pilot)
        return pilot

    def _noise(self, estimates: Callable[..., Any], positions: Sequence[Position]) -> float:
        """Return the standard deviation of estimates: the root mean square over parameters."""
        variances, n_each = [], max(N_NOISE // len(positions), N_EACH)
        for position in positions:
            found = []
            for _ in range(n_each):
                self._u.set_value(self.rng.random(self._u.get_value().shape))
                found.append(estimates(position)[0])
            if np.isfinite(found).all():
                variances.append(np.var(found, axis=0, ddof=1))
            elif position is positions[0]:
                return math.inf
        return float(np.sqrt(np.mean(variances, axis=0)).max())


def _warn(specification: Specification, pilot: Pilot) -> None:
    """Put into words what makes an estimate noisy."""
    if pilot.noise < NOISY:
        return
    causes = []
    if pilot.edge > 0.02:
        causes.append(
            f"up to {pilot.edge:.0%} of the weight of a row is on its outermost points: give a "
            "larger width"
        )
    if pilot.reached < 2.0:
        causes.append(
            "a transition reaches less than two points, because it has a small standard deviation "
            "compared with the distance of points: give more points"
        )
    if pilot.effective < 2.0:
        causes.append(
            "less than two points have weight in some row, because its data tell much compared "
            "with the distance of points: give more points"
        )
    _log.warning(
        "The log-estimate of %s has a standard deviation of %.2g with %d points. It is unbiased, "
        "but chains will be slow. %s. %s",
        specification.name,
        pilot.noise,
        pilot.n_points,
        "; ".join(causes).capitalize() or "Give more points",
        see("state_space"),
    )


def _factors(covs: NDArray[np.float64]) -> Floats:
    """Return lower triangular factors of covariances, made positive definite if need be."""
    scale = np.sqrt(np.maximum(np.diagonal(covs, axis1=1, axis2=2), 1e-20))
    correlations = covs / scale[:, :, None] / scale[:, None, :]
    identity = np.eye(covs.shape[1])
    correlations = 0.98 * correlations + 0.02 * identity
    correlations[:, range(len(identity)), range(len(identity))] = 1.0
    return scale[:, :, None] * np.linalg.cholesky(correlations)
