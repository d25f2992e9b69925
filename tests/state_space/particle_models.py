"""State-space models with a likelihood that is known: for the particle filter."""

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy import stats

import pymc_apm as apm

Y = np.array([0.5, -1.2, np.nan, 0.3, 0.8])


def ar(y=Y, points=4, **options):
    """Return AR(1) plus noise, as in ``linear.py``, with a flat prior."""
    with pm.Model() as model:
        a, s = (
            pm.Uniform("a", -1, 1, default_transform=None),
            pm.HalfFlat("s", default_transform=None),
        )
        apm.estimators.state_space(
            "y",
            y,
            initial=lambda: pm.Normal.dist(0.0, s / pt.sqrt(1.0 - a**2)),
            transition=lambda x: pm.Normal.dist(a * x, s),
            observation=lambda x: pm.Normal.dist(x, 0.7),
            method="particles",
            points=points,
            **options,
        )
    return model


POPULATION, INFECTED = 10, 2
CASES = np.array([np.nan, 2.0, 1.0, np.nan, 3.0])


def sir(cases=CASES, points=4, **options):
    """Return an epidemic in a small population, in two steps between any two observations."""
    with pm.Model() as model:
        beta = pm.LogNormal("beta", 0.0, 0.7)

        def transition(S, I, new, dt):  # noqa: E741
            infected = pm.Binomial.dist(S, 1.0 - pt.exp(-beta * I / POPULATION * dt))
            recovered = pm.Binomial.dist(I, 1.0 - pt.exp(-0.6 * dt))
            return {"S": S - infected, "I": I + infected - recovered, "new": new + infected}

        apm.estimators.state_space(
            "cases",
            cases,
            initial={"S": POPULATION - INFECTED, "I": INFECTED, "new": 0},
            transition=transition,
            observation=lambda new: pm.Poisson.dist(0.7 * new + 0.1),
            **{"substeps": 2, "accumulate": "new", "sort_by": lambda I: I} | options,  # noqa: E741
            points=points,
        )
    return model


def sir_log_likelihood(beta, cases=CASES, substeps=2, tilt=None):
    """Return the log-likelihood of the epidemic by the forward algorithm.

    With ``tilt`` = (t, i) plus the log of the mean of state number i at time t, given the data.
    """
    n, dt = POPULATION + 1, 1.0 / substeps
    alpha = np.zeros((n, n, n))
    alpha[POPULATION - INFECTED, INFECTED, 0] = 1.0
    total = 0.0
    for t, observed in enumerate(cases):
        for _ in range(substeps if t else 0):
            moved = np.zeros_like(alpha)
            for s, i, new in np.argwhere(alpha):
                p = 1.0 - math.exp(-beta * i / POPULATION * dt)
                infected = stats.binom.pmf(np.arange(s + 1), s, p)
                recovered = stats.binom.pmf(np.arange(i + 1), i, 1.0 - math.exp(-0.6 * dt))
                for k, p_k in enumerate(infected):
                    for j, p_j in enumerate(recovered):
                        moved[s - k, i + k - j, new + k] += alpha[s, i, new] * p_k * p_j
            alpha = moved
        if not math.isnan(observed):
            alpha *= stats.poisson.pmf(observed, 0.7 * np.arange(n) + 0.1)
        if tilt is not None and tilt[0] == t:
            alpha *= np.indices(alpha.shape)[tilt[1]]
        total += math.log(alpha.sum())
        alpha /= alpha.sum()
        fresh = np.zeros_like(alpha)
        fresh[:, :, 0] = alpha.sum(2)
        alpha = fresh
    return total


CHAIN = np.array([[0.8, 0.15, 0.05], [0.1, 0.7, 0.2], [0.3, 0.3, 0.4]])
FIRST = np.array([0.5, 0.3, 0.2])
SEEN = np.array([0.2, 1.9, 2.5, -0.3])


def hidden_markov(y=SEEN, points=3):
    """Return a hidden Markov model with three states, seen with noise."""
    with pm.Model() as model:
        sd = pm.HalfFlat("sd", default_transform=None)
        matrix = pt.as_tensor_variable(CHAIN)
        apm.estimators.state_space(
            "y",
            y,
            initial=pm.Categorical.dist(FIRST),
            transition=lambda x: pm.Categorical.dist(matrix[x]),
            observation=lambda x: pm.Normal.dist(x, sd),
            points=points,
        )
    return model


def hidden_markov_log_likelihood(sd, y=SEEN, tilt=None):
    """Return its log-likelihood by the forward algorithm.

    With ``tilt`` plus the log of the mean of the state at that time, given the data; NaN is
    missing.
    """
    alpha, total = FIRST, 0.0
    for t, observed in enumerate(y):
        alpha = alpha if t == 0 else alpha @ CHAIN
        if not math.isnan(observed):
            alpha = alpha * stats.norm.pdf(observed, np.arange(3), sd)
        if tilt == t:
            alpha = alpha * np.arange(3)
        total += math.log(alpha.sum())
        alpha = alpha / alpha.sum()
    return total
