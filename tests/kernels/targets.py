"""Exact joint targets of (theta, u), and the checks that a kernel leaves them invariant.

A target is the image of independent standard normal numbers z under a map that can be inverted:
first theta, then u given theta. So exact draws are one call, and whether chains still have the
target's distribution is the question whether their z are still independent N(0, 1): one set of
checks for all targets. In each of them f_hat is an unbiased estimate of the density of theta.

The log-estimates are written with numbers and loops alone, so that Numba can compile them: what
runs the kernels, Python or compiled code, runs the same targets (:mod:`tests.kernels.runs`).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special, stats


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

    @property
    def number(self) -> int:
        """By which :func:`log_estimate` knows the target."""
        return LOG_ESTIMATES.index(self.log_estimate)


def normal_score(probability: np.ndarray) -> np.ndarray:
    return special.ndtri(np.clip(probability, 1e-15, 1.0 - 1e-15))


def log_estimate_of_toy(theta, u):
    total = 0.0
    for i in range(theta.size):
        total += theta[i] * (theta[i] + u[i])
    return -total


def toy(dim: int) -> Joint:
    """Section 1 of the paper's demonstrations: theta ~ N(0, I) and u ~ N(-theta, I)."""
    return Joint(
        f"toy{dim}",
        "normal",
        dim,
        dim,
        lambda z: (z[:, :dim], z[:, dim:] - z[:, :dim]),
        lambda theta, u: np.column_stack([theta, u + theta]),
        log_estimate_of_toy,
    )


def gaussian_u(name, n_theta, theta_from_normal, theta_to_normal, shift, log_estimate) -> Joint:
    """Any theta with one Gaussian u ~ N(shift(theta), 1); see :func:`shifted`."""

    def from_normal(z):
        theta = theta_from_normal(z[:, :n_theta])
        return theta, z[:, n_theta:] + shift(theta)[:, None]

    def to_normal(theta, u):
        return np.column_stack([theta_to_normal(theta), u - shift(theta)[:, None]])

    return Joint(name, "normal", n_theta, 1, from_normal, to_normal, log_estimate)


def shifted(log_density, shift, u):
    """Return the log of f_hat = p(theta) exp(s u - s^2/2)."""
    return log_density + shift * u[0] - 0.5 * shift * shift


def log_gamma2(theta):
    return math.log(theta[0]) - theta[0] if theta[0] > 0.0 else -math.inf


def gamma2_from_normal(z):
    return special.gammaincinv(2.0, special.ndtr(z))


def gamma2_to_normal(theta):
    return normal_score(special.gammainc(2.0, theta))


def log_estimate_of_skewed(theta, u):
    if not theta[0] > 0.0:
        return -math.inf
    return shifted(log_gamma2(theta), math.log(theta[0]), u)


def skewed() -> Joint:
    """Draw theta > 0 from Gamma(2, 1), and u from N(log theta, 1)."""
    theta_maps = gamma2_from_normal, gamma2_to_normal
    shift = lambda theta: np.log(theta[:, 0])  # noqa: E731
    return gaussian_u("skewed", 1, *theta_maps, shift, log_estimate_of_skewed)


def log_estimate_of_bounded(theta, u):
    if not 0.0 < theta[0] < 1.0:
        return -math.inf
    return shifted(math.log(theta[0]), 3.0 * theta[0], u)


def bounded() -> Joint:
    """Draw theta in (0, 1) from Beta(2, 1), whose density is highest at an edge."""
    return gaussian_u(
        "bounded",
        1,
        lambda z: np.sqrt(special.ndtr(z)),
        lambda theta: normal_score(theta**2),
        lambda theta: 3.0 * theta[:, 0],
        log_estimate_of_bounded,
    )


CORRELATED = np.array([[1.0, 0.0], [1.8, 0.6]])
"""The Cholesky factor of a covariance whose correlation is 0.95."""


def log_estimate_of_correlated(theta, u):
    first = theta[0]
    second = (theta[1] - 1.8 * first) / 0.6
    return shifted(-0.5 * (first * first + second * second), theta[0] - theta[1], u)


def correlated() -> Joint:
    """Two correlated Gaussian parameters, and u that depends on their difference."""
    inverse = np.linalg.inv(CORRELATED)
    return gaussian_u(
        "correlated",
        2,
        lambda z: z @ CORRELATED.T,
        lambda theta: theta @ inverse.T,
        lambda theta: theta[:, 0] - theta[:, 1],
        log_estimate_of_correlated,
    )


def log_estimate_of_banana(theta, u):
    bend = 2.0 * (theta[1] - theta[0] ** 2)
    return shifted(-0.5 * (theta[0] ** 2 + bend * bend), theta[0], u)


def banana() -> Joint:
    """Two parameters along a parabola, and u that depends on the first."""
    return gaussian_u(
        "banana",
        2,
        lambda z: np.column_stack([z[:, 0], z[:, 0] ** 2 + 0.5 * z[:, 1]]),
        lambda theta: np.column_stack([theta[:, 0], 2.0 * (theta[:, 1] - theta[:, 0] ** 2)]),
        lambda theta: theta[:, 0],
        log_estimate_of_banana,
    )


def log_estimate_of_heavy(theta, u):
    return shifted(-1.5 * math.log1p(0.5 * theta[0] ** 2), math.atan(theta[0]), u)


def heavy() -> Joint:
    """Draw theta from a t distribution with two degrees of freedom, which has no variance."""

    def from_normal(z):
        lower, upper = special.ndtr(z), special.ndtr(-z)
        return (lower - upper) / np.sqrt(2.0 * lower * upper)

    def to_normal(theta):
        root = np.sqrt(2.0 + theta**2)
        tail = 1.0 / (root * (root + np.abs(theta)))  # the smaller one of the two
        return -np.sign(theta) * special.ndtri(tail)

    def shift(theta):
        return np.arctan(theta[:, 0])

    return gaussian_u("heavy", 1, from_normal, to_normal, shift, log_estimate_of_heavy)


def log_estimate_of_counts(theta, u):
    k, x = theta[0], theta[1]
    if k < 0.0 or k != math.floor(k):
        return -math.inf
    log_density = k * math.log(3.0) - math.lgamma(k + 1.0) - 0.5 * (x - 0.5 * k) ** 2
    return shifted(log_density, x, u)


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

    shift = lambda theta: theta[:, 1]  # noqa: E731
    return gaussian_u("counts", 2, from_normal, to_normal, shift, log_estimate_of_counts)


def log_estimate_of_powers(theta, u):
    value = log_gamma2(theta)
    product = u[0] * (1.0 - u[1])
    if value == -math.inf or product <= 0.0:
        return -math.inf
    return value + 2.0 * math.log1p(theta[0]) + theta[0] * math.log(product)


def powers() -> Joint:
    """Skewed theta and bounded u: Gamma(2, 1), Beta(1 + theta, 1) and its mirror image."""

    def from_normal(z):
        theta = gamma2_from_normal(z[:, :1])
        v = special.ndtr(z[:, 1:]) ** (1.0 / (1.0 + theta))
        return theta, np.column_stack([v[:, 0], 1.0 - v[:, 1]])

    def to_normal(theta, u):
        v = np.column_stack([u[:, 0], 1.0 - u[:, 1]])
        return np.column_stack([gamma2_to_normal(theta), normal_score(v ** (1.0 + theta))])

    return Joint("powers", "uniform", 1, 2, from_normal, to_normal, log_estimate_of_powers)


def log_estimate_of_tilted(theta, u):
    t = theta[0]
    log_mean = math.log(math.expm1(t) / t) if t != 0.0 else 0.0
    value = -0.125 * t * t
    for i in range(u.size):
        value += t * u[i] - log_mean
    return value


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

    name = f"tilted{n_u}"
    return Joint(name, "uniform", 1, n_u, from_normal, to_normal, log_estimate_of_tilted)


def log_estimate_of_triangle(theta, u):
    return 0.0 if 0.0 < u[0] < theta[0] < 1.0 else -math.inf


def triangle() -> Joint:
    """A constant on 0 < u < theta < 1: an estimate that is zero or not, with hard edges."""

    def from_normal(z):
        theta = np.sqrt(special.ndtr(z[:, :1]))
        return theta, theta * special.ndtr(z[:, 1:])

    def to_normal(theta, u):
        return normal_score(np.column_stack([theta**2, u / theta]))

    return Joint("triangle", "uniform", 1, 1, from_normal, to_normal, log_estimate_of_triangle)


def log_estimate_of_two_pieces(theta, u):
    if 0.0 < theta[0] < 0.05:
        return shifted(math.log(10.0), theta[0], u)
    if 0.7 < theta[0] < 1.0:
        return shifted(-math.log(0.6), theta[0], u)
    return -math.inf


def two_pieces() -> Joint:
    """Draw theta from (0, 0.05) or from (0.7, 1), with probability 1/2 each."""

    def from_normal(z):
        v = special.ndtr(z)
        return np.where(v < 0.5, 0.1 * v, 0.4 + 0.6 * v)

    def to_normal(theta):
        return normal_score(np.where(theta < 0.5, 10.0 * theta, (theta - 0.4) / 0.6))

    shift = lambda theta: theta[:, 0]  # noqa: E731
    return gaussian_u("two_pieces", 1, from_normal, to_normal, shift, log_estimate_of_two_pieces)


def log_of_humps(theta, size):
    return -0.5 * theta[0] ** 2 + (2.0 * math.log(size) if size > 0.0 else -math.inf)


def log_estimate_of_normal_humps(theta, u):
    return log_of_humps(theta, abs(u[0]))


def log_estimate_of_uniform_humps(theta, u):
    return log_of_humps(theta, abs(2.0 * u[0] - 1.0))


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

    estimates = {
        "normal": log_estimate_of_normal_humps,
        "uniform": log_estimate_of_uniform_humps,
    }
    return Joint(f"two_humps_{kind}", kind, 1, 1, from_normal, to_normal, estimates[kind])


def log_estimate_of_rate(theta, y):
    """What is known exactly of a rate and of data, whose normaliser is not: the prior."""
    return log_gamma2(theta)


JOINTS = {
    joint.name: joint
    for joint in [
        *[toy(1), toy(2), skewed(), bounded(), two_pieces(), correlated(), counts()],
        *[banana(), heavy()],
        *[powers(), tilted(1), tilted(2), triangle(), two_humps("normal"), two_humps("uniform")],
    ]
}


LOG_ESTIMATES = (
    *(log_estimate_of_toy, log_estimate_of_skewed, log_estimate_of_bounded),
    *(log_estimate_of_two_pieces, log_estimate_of_correlated, log_estimate_of_counts),
    *(log_estimate_of_powers, log_estimate_of_tilted, log_estimate_of_triangle),
    *(log_estimate_of_normal_humps, log_estimate_of_uniform_humps, log_estimate_of_rate),
    *(log_estimate_of_banana, log_estimate_of_heavy),
)


def one_for_all(functions, number=0):
    """Return a function that is told the number of the target, so that it is compiled once."""
    first = functions[0]
    if len(functions) == 1:
        return lambda target, theta, u: first(theta, u)
    others = one_for_all(functions[1:], number + 1)

    def log_estimate(target, theta, u):
        if target == number:
            return first(theta, u)
        return others(target, theta, u)

    return log_estimate


log_estimate = one_for_all(LOG_ESTIMATES)


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


def frozen(*values: float) -> np.ndarray:
    """Return a vector that raises when somebody writes to it."""
    vector = np.array(values, dtype=float)
    vector.setflags(write=False)
    return vector
