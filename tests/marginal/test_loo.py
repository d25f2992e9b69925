"""LOO by group against integrals by brute force, of 100,000 draws each, in NumPy."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy.special import expit, gammaln

import pymc_apm as apm
from pymc_apm._compat import result_of
from tests.marginal.models import GROUP

N_DRAWS, N_BRUTE = 40, 100_000
RNG = np.random.default_rng(21)
GROUPS = np.tile(GROUP, 3) + np.repeat([0, 3, 6], 6)  # nine groups of 1 to 3
COUNTS = RNG.poisson(np.exp(0.5 + 0.8 * RNG.normal(size=9)[GROUPS]))
X = RNG.normal(size=GROUPS.size)
B = RNG.normal(size=(9, 2))
BITS = (RNG.random(GROUPS.size) < expit(B[GROUPS, 0] + B[GROUPS, 1] * X)).astype(int)


def counts(mu, sigma):
    z = pm.Normal("z", shape=9)
    pm.Poisson("y", pm.math.exp(mu + sigma * z[GROUPS]), observed=COUNTS)


def log_p_of_counts(mu, sigma, z):
    log_rate = mu + sigma * z[:, GROUPS, 0]
    return COUNTS * log_rate - np.exp(log_rate) - gammaln(COUNTS + 1.0)


def choices(mu, sigma):
    z = pm.Normal("z", shape=(9, 2))
    b = mu + sigma * z[GROUPS]
    pm.Bernoulli("y", logit_p=b[:, 0] + b[:, 1] * X, observed=BITS)


def log_p_of_choices(mu, sigma, z):
    b = mu + sigma * z[:, GROUPS]
    return -np.logaddexp(0.0, (1 - 2 * BITS) * (b[..., 0] + b[..., 1] * X))


def elpd_of(values, posterior):
    likelihood = xr.Dataset({"y": (("chain", "draw", "factor"), values)}, coords=posterior.coords)
    found = az.loo(result_of({"posterior": posterior, "log_likelihood": likelihood}))
    return float(found.elpd_loo if hasattr(found, "elpd_loo") else found.elpd)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "log_p"), [(counts, log_p_of_counts), (choices, log_p_of_choices)]
)
@pytest.mark.filterwarnings("ignore")
def test_loo_is_that_of_brute_force(build, log_p):
    """At given draws of the parameters. Few samples would be noticed: their noise biases LOO."""
    rng = np.random.default_rng(3)
    with pm.Model() as model:
        build(pm.Normal("mu"), pm.HalfNormal("sigma"))
    marginal = apm.marginalize(model, "z")
    draws = {"mu": rng.normal(0.3, 0.2, (2, N_DRAWS)), "sigma": rng.gamma(20, 0.04, (2, N_DRAWS))}
    posterior = xr.Dataset(
        {name: (("chain", "draw"), values) for name, values in draws.items()},
        coords={"chain": [0, 1], "draw": np.arange(N_DRAWS)},
    )
    exact = np.empty((2, N_DRAWS, 9))
    z = rng.normal(size=(N_BRUTE, 9, 2))
    starts = np.searchsorted(GROUPS, np.arange(9))
    for place in np.ndindex(2, N_DRAWS):
        logs = log_p(draws["mu"][place], draws["sigma"][place], z)
        exact[place] = np.log(np.exp(np.add.reduceat(logs, starts, axis=1)).mean(axis=0))
    idata = result_of({"posterior": posterior})
    found = apm.log_likelihood(idata, marginal, random_seed=1).log_likelihood["y"]
    error = elpd_of(found.values, posterior) - elpd_of(exact, posterior)
    assert abs(error) < 0.5
    assert np.abs(found.values - exact).mean() < 0.05
    one = apm.log_likelihood(idata, marginal, max_samples=2, random_seed=1).log_likelihood["y"]
    noisy = elpd_of(one.values, posterior) - elpd_of(exact, posterior)
    assert abs(noisy) > abs(error)
