"""Random effects that are integrated out, and random effects that are sampled: one posterior.

The estimate is that of ``laplace_importance`` with groups, and NUTS on the joint model what it is
compared with.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from tests.statistical.checks import assert_not_exact, mcse
from tests.steps.models import sample

BOUND = 4.0
"""Standard errors: the chance that any of 21 correct results is further off is 1 in 750."""

N_GROUPS, N_TIMES = 12, 4
TIME = np.tile(np.linspace(-1.0, 1.0, N_TIMES), N_GROUPS)
GROUP = np.repeat(np.arange(N_GROUPS), N_TIMES)


def make_counts() -> np.ndarray:
    rng = np.random.default_rng(1)
    intercept, slope = rng.standard_normal((2, N_GROUPS)) * [[0.7], [0.5]]
    return rng.poisson(np.exp(0.2 + intercept[GROUP] + (0.3 + slope[GROUP]) * TIME))


COUNTS = make_counts()


def declare(n_effects: int):
    """Declare the parameters, and return the fixed part and the standard deviations."""
    beta = pm.Normal("beta", 0.0, 1.0, shape=2)
    sd = pm.HalfNormal("sd", 1.0, shape=n_effects)
    return beta[0] + beta[1] * TIME, sd


def log_rate(fixed, effects):
    """Add the effects, of shape (group,) or (group, 2), to the fixed part."""
    effects = effects[GROUP]
    return fixed + (effects if effects.ndim == 1 else effects[:, 0] + effects[:, 1] * TIME)


def joint(n_effects: int) -> pm.Model:
    with pm.Model() as model:
        fixed, sd = declare(n_effects)
        effects = sd * pm.Normal("z", shape=(N_GROUPS, n_effects))
        effects = effects[:, 0] if n_effects == 1 else effects
        pm.Poisson("y", pt.exp(log_rate(fixed, effects)), observed=COUNTS)
    return model


def estimated(n_effects: int, power: float = 2.0) -> pm.Model:
    """Build the same without the effects; a power other than 2 is a covariance that is wrong."""
    with pm.Model() as model:
        fixed, sd = declare(n_effects)

        def log_lik(effects):
            return pm.logp(pm.Poisson.dist(pt.exp(log_rate(fixed, effects))), COUNTS)

        cov = sd[0] ** power if n_effects == 1 else pt.diag(sd**power)
        apm.estimators.laplace_importance("y", log_lik, cov, groups=GROUP, samples=2)
    return model


def draws_of(idata) -> list[np.ndarray]:
    """Return the draws of each parameter, of shape (chain, draw)."""
    both = np.concatenate([idata.posterior[name].values for name in ("beta", "sd")], axis=2)
    return list(np.moveaxis(both, 2, 0))


@pytest.fixture(scope="module")
def references():
    """Return draws of the joint model by NUTS, by the number of effects of a group."""
    runs = {}
    for n_effects in (1, 2):
        model = joint(n_effects)
        with model:
            step = pm.NUTS(target_accept=0.95)
        runs[n_effects] = draws_of(
            sample(model, step, draws=1500, tune=1000, chains=4, random_seed=1)
        )
    return runs


def differences(draws, reference) -> np.ndarray:
    """Return differences of means in units of the standard errors of both."""
    return np.array(
        [
            (one.mean() - other.mean()) / np.hypot(mcse(one), mcse(other))
            for one, other in zip(draws, reference, strict=True)
        ]
    )


def assert_agrees(scores: np.ndarray) -> None:
    assert np.abs(scores).max() < BOUND, f"differences in standard errors: {np.round(scores, 1)}"


METHODS = {
    "SS+SS": (lambda: None, 2000),
    "SS+MH": (lambda: apm.APMMetropolis(), 3000),
    "PM MH": (lambda: apm.PseudoMarginalMH(), 3000),
}


def run(model, make_step, draws):
    with model:
        step = make_step()
    return draws_of(sample(model, step, draws=draws, tune=1000, chains=4, random_seed=2))


@pytest.mark.slow
@pytest.mark.parametrize("n_effects", [1, 2])
@pytest.mark.parametrize("name", METHODS)
def test_the_posterior_is_that_of_the_joint_model(name, n_effects, references):
    draws = run(estimated(n_effects), *METHODS[name])
    assert_agrees(differences(draws, references[n_effects]))


@pytest.mark.slow
def test_a_standard_deviation_in_the_place_of_a_variance_is_noticed(references):
    """Negative control."""
    draws = run(estimated(1, power=1.0), *METHODS["SS+SS"])
    assert_not_exact(differences(draws, references[1]), assert_agrees)
