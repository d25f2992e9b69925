"""Exact joint targets of (theta, u), and the checks that a kernel leaves them invariant.

A target is the image of independent standard normal numbers z under a map that can be inverted:
first theta, then u given theta. So exact draws are one call, and whether chains still have the
target's distribution is the question whether their z are still independent N(0, 1): one set of
checks for all targets. In each of them f_hat is an unbiased estimate of the density of theta.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

from pymc_apm.kernels import State


class Joint(NamedTuple):
    """A joint distribution of theta and u, with u of the given kind under q(u)."""

    name: str
    kind: str
    n_theta: int
    n_u: int
    from_normal: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    to_normal: Callable[[np.ndarray, np.ndarray], np.ndarray]
    log_estimate: Callable[[np.ndarray, np.ndarray], float]

    @property
    def dim(self) -> int:
        return self.n_theta + self.n_u


def normal_score(probability: np.ndarray) -> np.ndarray:
    return special.ndtri(np.clip(probability, 1e-15, 1.0 - 1e-15))


def toy(dim: int) -> Joint:
    """Section 1 of the paper's demonstrations: theta ~ N(0, I) and u ~ N(-theta, I)."""
    return Joint(
        f"toy{dim}",
        "normal",
        dim,
        dim,
        lambda z: (z[:, :dim], z[:, dim:] - z[:, :dim]),
        lambda theta, u: np.column_stack([theta, u + theta]),
        lambda theta, u: -float(np.dot(theta, theta) + np.dot(u, theta)),
    )


def gaussian_u(name, n_theta, theta_from_normal, theta_to_normal, log_density, shift) -> Joint:
    """Any theta with one Gaussian u ~ N(shift(theta), 1): f_hat = p(theta) exp(s u - s^2/2)."""

    def from_normal(z):
        theta = theta_from_normal(z[:, :n_theta])
        return theta, z[:, n_theta:] + shift(theta)[:, None]

    def to_normal(theta, u):
        return np.column_stack([theta_to_normal(theta), u - shift(theta)[:, None]])

    def log_estimate(theta, u):
        value = log_density(theta)
        if value == -math.inf:
            return value
        s = float(shift(theta[None])[0])
        return value + s * float(u[0]) - 0.5 * s * s

    return Joint(name, "normal", n_theta, 1, from_normal, to_normal, log_estimate)


def log_gamma2(theta):
    return math.log(theta[0]) - float(theta[0]) if theta[0] > 0.0 else -math.inf


def gamma2_from_normal(z):
    return special.gammaincinv(2.0, special.ndtr(z))


def gamma2_to_normal(theta):
    return normal_score(special.gammainc(2.0, theta))


def skewed() -> Joint:
    """Draw theta > 0 from Gamma(2, 1), and u from N(log theta, 1)."""
    theta_maps = gamma2_from_normal, gamma2_to_normal
    return gaussian_u("skewed", 1, *theta_maps, log_gamma2, lambda theta: np.log(theta[:, 0]))


def bounded() -> Joint:
    """Draw theta in (0, 1) from Beta(2, 1), whose density is highest at an edge."""
    return gaussian_u(
        "bounded",
        1,
        lambda z: np.sqrt(special.ndtr(z)),
        lambda theta: normal_score(theta**2),
        lambda theta: math.log(theta[0]) if 0.0 < theta[0] < 1.0 else -math.inf,
        lambda theta: 3.0 * theta[:, 0],
    )


CORRELATED = np.array([[1.0, 0.0], [1.8, 0.6]])
"""The Cholesky factor of a covariance whose correlation is 0.95."""


def correlated() -> Joint:
    """Two correlated Gaussian parameters, and u that depends on their difference."""
    inverse = np.linalg.inv(CORRELATED)
    precision = inverse.T @ inverse
    return gaussian_u(
        "correlated",
        2,
        lambda z: z @ CORRELATED.T,
        lambda theta: theta @ inverse.T,
        lambda theta: -0.5 * float(theta @ precision @ theta),
        lambda theta: theta[:, 0] - theta[:, 1],
    )


def counts() -> Joint:
    """An integer k ~ Poisson(3) and a real x ~ N(k/2, 1) for theta, and u ~ N(x, 1)."""

    def from_normal(z):
        k = stats.poisson.ppf(special.ndtr(z[:, 0]), 3.0)
        return np.column_stack([k, 0.5 * k + z[:, 1]])

    def to_normal(theta):  # the jumps of the distribution function are filled at random
        k = np.rint(theta[:, 0])
        fill = np.random.default_rng(11).random(len(k))
        below = stats.poisson.cdf(k - 1.0, 3.0)
        score = normal_score(below + fill * (stats.poisson.cdf(k, 3.0) - below))
        return np.column_stack([score, theta[:, 1] - 0.5 * k])

    def log_density(theta):
        k, x = float(theta[0]), float(theta[1])
        if k < 0.0 or k != int(k):
            return -math.inf
        return k * math.log(3.0) - math.lgamma(k + 1.0) - 0.5 * (x - 0.5 * k) ** 2

    return gaussian_u("counts", 2, from_normal, to_normal, log_density, lambda theta: theta[:, 1])


def powers() -> Joint:
    """Skewed theta and bounded u: Gamma(2, 1), Beta(1 + theta, 1) and its mirror image."""

    def from_normal(z):
        theta = gamma2_from_normal(z[:, :1])
        v = special.ndtr(z[:, 1:]) ** (1.0 / (1.0 + theta))
        return theta, np.column_stack([v[:, 0], 1.0 - v[:, 1]])

    def to_normal(theta, u):
        v = np.column_stack([u[:, 0], 1.0 - u[:, 1]])
        return np.column_stack([gamma2_to_normal(theta), normal_score(v ** (1.0 + theta))])

    def log_estimate(theta, u):
        value = log_gamma2(theta)
        product = float(u[0] * (1.0 - u[1]))
        if value == -math.inf or product <= 0.0:
            return -math.inf
        return value + 2.0 * math.log1p(theta[0]) + float(theta[0]) * math.log(product)

    return Joint("powers", "uniform", 1, 2, from_normal, to_normal, log_estimate)


def tilted(n_u: int) -> Joint:
    """Draw theta from N(0, 4), and u on the unit cube with density proportional to exp(theta u).

    The density of u is positive at all edges of the cube: a wrong rule there shows.
    """

    def from_normal(z):
        theta = 2.0 * z[:, :1]
        return theta, np.log1p(special.ndtr(z[:, 1:]) * np.expm1(theta)) / theta

    def to_normal(theta, u):
        v = np.expm1(theta * u) / np.expm1(theta)
        return np.column_stack([0.5 * theta, normal_score(v)])

    def log_estimate(theta, u):
        t = float(theta[0])
        log_mean = math.log(math.expm1(t) / t) if t != 0.0 else 0.0
        return -0.125 * t * t + t * float(u.sum()) - n_u * log_mean

    return Joint(f"tilted{n_u}", "uniform", 1, n_u, from_normal, to_normal, log_estimate)


def triangle() -> Joint:
    """A constant on 0 < u < theta < 1: an estimate that is zero or not, with hard edges."""

    def from_normal(z):
        theta = np.sqrt(special.ndtr(z[:, :1]))
        return theta, theta * special.ndtr(z[:, 1:])

    def to_normal(theta, u):
        return normal_score(np.column_stack([theta**2, u / theta]))

    return Joint(
        "triangle",
        "uniform",
        1,
        1,
        from_normal,
        to_normal,
        lambda theta, u: 0.0 if 0.0 < u[0] < theta[0] < 1.0 else -math.inf,
    )


def two_pieces() -> Joint:
    """Draw theta from (0, 0.05) or from (0.7, 1), with probability 1/2 each."""

    def from_normal(z):
        v = special.ndtr(z)
        return np.where(v < 0.5, 0.1 * v, 0.4 + 0.6 * v)

    def to_normal(theta):
        return normal_score(np.where(theta < 0.5, 10.0 * theta, (theta - 0.4) / 0.6))

    def log_density(theta):
        if 0.0 < theta[0] < 0.05:
            return math.log(10.0)
        return -math.log(0.6) if 0.7 < theta[0] < 1.0 else -math.inf

    return gaussian_u(
        "two_pieces", 1, from_normal, to_normal, log_density, lambda theta: theta[:, 0]
    )


def two_humps(kind: str) -> Joint:
    """Draw theta from N(0, 1), and u from two humps: f_hat is zero in the middle of q(u).

    The humps are u^2 times N(0, 1), or (2u - 1)^2 times U(0, 1).
    """

    def from_normal(z):
        v = 2.0 * special.ndtr(z[:, 1:]) - 1.0
        if kind == "normal":
            return z[:, :1], np.sign(v) * np.sqrt(2.0 * special.gammaincinv(1.5, np.abs(v)))
        return z[:, :1], 0.5 + 0.5 * np.cbrt(v)

    def to_normal(theta, u):
        if kind == "normal":
            v = np.sign(u) * special.gammainc(1.5, 0.5 * u**2)
        else:
            v = (2.0 * u - 1.0) ** 3
        return np.column_stack([theta, normal_score(0.5 + 0.5 * v)])

    def log_estimate(theta, u):
        size = abs(float(u[0] if kind == "normal" else 2.0 * u[0] - 1.0))
        return -0.5 * float(theta[0]) ** 2 + (2.0 * math.log(size) if size > 0.0 else -math.inf)

    return Joint(f"two_humps_{kind}", kind, 1, 1, from_normal, to_normal, log_estimate)


JOINTS = {
    joint.name: joint
    for joint in [
        *[toy(1), toy(2), skewed(), bounded(), two_pieces(), correlated(), counts()],
        *[powers(), tilted(1), tilted(2), triangle(), two_humps("normal"), two_humps("uniform")],
    ]
}


class Chain(NamedTuple):
    """A point of a chain on a joint target, with the log-estimate as it was computed there."""

    theta: np.ndarray
    u: np.ndarray
    value: float


Update = Callable[[Any, Joint, Chain], Chain]
"""``update(rng, joint, chain)``: a kernel applied to theta, to u or to both."""


def on_theta(kernel) -> Update:
    """Apply ``kernel(rng, state, log_density)`` to theta while u stays."""

    def update(rng, joint, chain):
        def log_density(theta, memo):
            return joint.log_estimate(theta, chain.u), memo

        state, _ = kernel(rng, State(chain.theta, chain.value), log_density)
        return Chain(state.position, chain.u, state.log_density)

    return update


def on_u(kernel) -> Update:
    """Apply ``kernel(rng, state, log_density)`` to u while theta stays."""

    def update(rng, joint, chain):
        def log_density(u, memo):
            return joint.log_estimate(chain.theta, u), memo

        state, _ = kernel(rng, State(chain.u, chain.value), log_density)
        return Chain(chain.theta, state.position, state.log_density)

    return update


def run_chains(rng, joint: Joint, updates: list[Update], n_chains: int, n_rounds: int):
    """Start independent chains from exact draws, and return their z before and after.

    The log-estimate is computed for the start alone: from there on chains live on what the kernels
    hand back, so that a wrong one shows.
    """
    before = rng.standard_normal((n_chains, joint.dim))
    thetas, us = joint.from_normal(before)
    after_theta, after_u = np.empty_like(thetas), np.empty_like(us)
    for i in range(n_chains):
        chain = Chain(thetas[i], us[i], joint.log_estimate(thetas[i], us[i]))
        for _ in range(n_rounds):
            for update in updates:
                chain = update(rng, joint, chain)
        after_theta[i], after_u[i] = chain.theta, chain.u
    return joint.to_normal(thetas, us), joint.to_normal(after_theta, after_u)


def n_checks(joint: Joint) -> int:
    return 5 * joint.dim + joint.dim * (joint.dim - 1) // 2


def p_values(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    """Test that the rows of ``after`` are independent draws from N(0, I), as ``before`` are.

    The null distributions are exact, or as good as exact at thousands of chains. The drift is
    the paired difference: far more sensitive than the moments where a chain moves little.
    """
    n_chains, dim = after.shape
    p = {}

    def two_sided(sum_of_terms, variance):
        return 2.0 * float(stats.norm.sf(abs(sum_of_terms) / math.sqrt(variance)))

    for i in range(dim):
        x, start = after[:, i], before[:, i]
        p[f"mean of z{i}"] = two_sided(x.sum(), n_chains)
        square = float(np.dot(x, x))
        tails = stats.chi2.cdf(square, n_chains), stats.chi2.sf(square, n_chains)
        p[f"variance of z{i}"] = 2.0 * float(min(tails))
        p[f"distribution of z{i}"] = float(stats.kstest(x, "norm", method="asymp").pvalue)
        for name, change in [("z", x - start), ("square of z", x * x - start * start)]:
            moved = float(change.std()) > 1e-9
            p[f"drift of {name}{i}"] = (
                two_sided(change.sum(), n_chains * change.var()) if moved else 1.0
            )
        for j in range(i):
            p[f"product of z{j} and z{i}"] = two_sided(np.dot(after[:, j], x), n_chains)
    return p


class Scripted:
    """A generator whose draws are written down in advance; it fails when asked for more."""

    def __init__(self, random=(), standard_normal=(), standard_exponential=()):
        self.uniforms = list(random)
        self.normals = [np.asarray(draw, dtype=float) for draw in standard_normal]
        self.exponentials = list(standard_exponential)

    def random(self, size=None):
        draw = self.uniforms.pop(0)
        assert size is None or np.shape(draw) == (size,)
        return draw

    def standard_normal(self, size):
        draw = self.normals.pop(0)
        assert draw.shape == (size,)
        return draw

    def standard_exponential(self):
        return self.exponentials.pop(0)

    @property
    def exhausted(self) -> bool:
        return not (self.uniforms or self.normals or self.exponentials)


class Recorder:
    """A log density that writes down where it was evaluated, and gives each value its own memo."""

    def __init__(self, function):
        self.function, self.positions, self.memos_given = function, [], []

    def __call__(self, position, memo):
        self.positions.append(position)
        self.memos_given.append(memo)
        return self.function(position), ("memo of evaluation", len(self.positions))

    @property
    def last_memo(self):
        return ("memo of evaluation", len(self.positions))


def at(path, position: np.ndarray, direction: np.ndarray, z: float) -> np.ndarray:
    """Return the point at ``z`` on a path."""
    out = np.full_like(position, np.nan)
    path(position, direction, z, out)
    return out


def frozen(*values: float) -> np.ndarray:
    """Return a vector that raises when somebody writes to it."""
    vector = np.array(values, dtype=float)
    vector.setflags(write=False)
    return vector
