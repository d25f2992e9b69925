"""Ten models with latent variables: ``apm.marginalize`` against NUTS on the joint model.

    python examples/marginal.py                      # all: a table of z-scores
    python examples/marginal.py eight_schools zip    # some
    python examples/marginal.py --draws 500 --chains 2
    python examples/marginal.py --overhead           # against a model written by hand

Each model is written as users write it, and sampled twice: as it is, by NUTS, and with its latent
variables integrated out, by what ``pm.sample()`` chooses for the marginalised model. Both have the
same posterior. The table has the largest difference between the two, over means and variances
of all parameters, in units of its Monte Carlo standard error.
"""

import argparse
import logging
import time
import warnings
from collections.abc import Callable
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_apm as apm

GROUPS, SIZE = 12, 5
GROUP = np.repeat(np.arange(GROUPS), SIZE)


def random_intercept(rng: np.random.Generator) -> list[str]:
    """Add counts with an effect of their group."""
    y = rng.poisson(np.exp(0.5 + 0.7 * rng.normal(size=GROUPS)[GROUP]))
    mu, sigma = pm.Normal("mu", 0, 2), pm.HalfNormal("sigma", 1)
    z = pm.Normal("z", shape=GROUPS)
    pm.Poisson("y", pm.math.exp(mu + sigma * z[GROUP]), observed=y)
    return ["z"]


def random_slopes(rng: np.random.Generator) -> list[str]:
    """Add yes or no, with an intercept and a slope of each group that are correlated."""
    x = rng.normal(size=GROUP.size)
    b = rng.multivariate_normal([0, 0], [[0.5, 0.3], [0.3, 0.5]], size=GROUPS)[GROUP]
    y = rng.random(GROUP.size) < 1 / (1 + np.exp(-(0.3 + b[:, 0] + (1 + b[:, 1]) * x)))
    beta = pm.Normal("beta", 0, 2, shape=2)
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0))
    z = pm.Normal("z", shape=(GROUPS, 2))  # as NUTS wants it
    effect = pt.dot(z, chol.T)
    eta = beta[0] + effect[GROUP, 0] + (beta[1] + effect[GROUP, 1]) * x
    pm.Bernoulli("y", logit_p=eta, observed=y.astype(int))
    return ["z"]


def mixed_logit(rng: np.random.Generator) -> list[str]:
    """Add choices among three alternatives, by persons with tastes of their own."""
    x = rng.normal(size=(GROUP.size, 3, 2))
    taste = np.array([1.0, -0.5]) + 0.7 * rng.normal(size=(GROUPS, 2))
    utility = (x * taste[GROUP][:, None]).sum(-1) + rng.gumbel(size=(GROUP.size, 3))
    mean, sd = pm.Normal("mean", 0, 2, shape=2), pm.HalfNormal("sd", 1, shape=2)
    z = pm.Normal("z", shape=(GROUPS, 2))
    eta = (x * (mean + sd * z)[GROUP][:, None]).sum(-1)
    pm.Categorical("y", logit_p=eta, observed=utility.argmax(-1))
    return ["z"]


def zip(rng: np.random.Generator) -> list[str]:
    """Add counts of which some are zero for another reason."""
    y = np.where(rng.random(60) < 0.6, rng.poisson(3.0, size=60), 0)
    p, rate = pm.Beta("p", 2, 2), pm.Gamma("rate", 2, 1)
    is_on = pm.Bernoulli("is_on", p, shape=60)
    pm.Poisson("y", pt.switch(is_on, rate, 1e-9), observed=y)
    return ["is_on"]


def measurement_error(rng: np.random.Generator) -> list[str]:
    """Add a regression on a covariate that was measured with an error."""
    x = rng.normal(size=50)
    alpha, beta, sigma = pm.Normal("alpha"), pm.Normal("beta"), pm.HalfNormal("sigma", 1)
    mu, sd = pm.Normal("mu"), pm.HalfNormal("sd", 2)
    truth = pm.Normal("truth", mu, sd, shape=50)
    pm.Normal("measured", truth, 0.5, observed=x + 0.5 * rng.normal(size=50))
    y = 0.5 + x + 0.5 * rng.normal(size=50)
    pm.Normal("y", alpha + beta * truth, sigma, observed=y)
    return ["truth"]


def student_effects(rng: np.random.Generator) -> list[str]:
    """Add effects of groups with heavy tails."""
    y = 1.0 + rng.standard_t(3, size=GROUPS)[GROUP] + rng.normal(size=GROUP.size)
    mu, scale, sigma = pm.Normal("mu", 0, 3), pm.HalfNormal("scale", 2), pm.HalfNormal("sigma", 2)
    z = pm.StudentT("z", nu=4, shape=GROUPS)
    pm.Normal("y", mu + scale * z[GROUP], sigma, observed=y)
    return ["z"]


def frailty(rng: np.random.Generator) -> list[str]:
    """Add times of events, with a frailty of each group."""
    y = rng.exponential(1 / (0.5 * rng.gamma(2.0, 0.5, size=GROUPS)[GROUP]))
    rate, shape = pm.Gamma("rate", 2, 2), pm.Gamma("shape", 4, 2)
    z = pm.Gamma("z", shape, shape, shape=GROUPS)
    pm.Exponential("y", rate * z[GROUP], observed=y)
    return ["z"]


def overdispersion(rng: np.random.Generator) -> list[str]:
    """Add counts with a gamma rate of their own: together, negative binomial."""
    y = rng.poisson(4.0 * rng.gamma(2.0, 0.5, size=60))
    mu, shape = pm.Gamma("mu", 2, 0.5), pm.Gamma("shape", 2, 1)
    rate = pm.Gamma("rate", shape, shape / mu, shape=60)
    pm.Poisson("y", rate, observed=y)
    return ["rate"]


def eight_schools(rng: np.random.Generator) -> list[str]:
    """Add the effects of coaching in eight schools (Rubin, 1981)."""
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
    z = pm.Normal("z", shape=8)
    pm.Normal("y", mu + tau * z, sigma, observed=y)
    return ["z"]


def missing_data(rng: np.random.Generator) -> list[str]:
    """Add a regression on a covariate of which a third is missing."""
    x = rng.normal(1.0, 1.0, size=60)
    y = 0.5 + x + 0.7 * rng.normal(size=60)
    alpha, beta, sigma = pm.Normal("alpha"), pm.Normal("beta"), pm.HalfNormal("sigma", 1)
    mu, sd = pm.Normal("mu"), pm.HalfNormal("sd", 2)
    covariate = pm.Normal("x", mu, sd, observed=np.where(rng.random(60) < 0.33, np.nan, x))
    pm.Normal("y", alpha + beta * covariate, sigma, observed=y)
    return ["x_unobserved"]


MODELS: dict[str, Callable[[np.random.Generator], list[str]]] = {
    build.__name__: build
    for build in (
        *(random_intercept, random_slopes, mixed_logit, zip, measurement_error),
        *(student_effects, frailty, overdispersion, eight_schools, missing_data),
    )
}


def z_scores(first: Any, second: Any) -> dict[str, float]:
    """Compare means and variances of all parameters of two posteriors."""
    found = {}
    for name in second.data_vars:
        one, other = (
            data[name].values.reshape(*data[name].shape[:2], -1) for data in (first, second)
        )
        for column in range(one.shape[2]):
            pair = [np.ascontiguousarray(draws[..., column]) for draws in (one, other)]
            if np.ptp(pair[0]) < 1e-9:  # a correlation of 1
                continue
            squares = [(draws - draws.mean()) ** 2 for draws in pair]
            for label, (before, after) in (("mean", pair), ("variance", squares)):
                error = np.hypot(*(float(np.squeeze(az.mcse(x))) for x in (before, after)))
                found[f"{label} of {name}[{column}]"] = (after.mean() - before.mean()) / error
    return found


def least_ess(posterior: Any) -> float:
    """Return the smallest effective number of draws of any parameter."""
    found = []
    for name in posterior.data_vars:
        values = posterior[name].values
        for column in values.reshape(*values.shape[:2], -1).transpose(2, 0, 1):
            if np.ptp(column) > 1e-9:
                found.append(float(np.squeeze(az.ess(np.ascontiguousarray(column)))))
    return min(found)


def compare(name: str, draws: int, chains: int, seed: int) -> None:
    """Sample a model both ways, and print a line of the table."""
    with pm.Model() as model:
        latents = MODELS[name](np.random.default_rng(1))
    quiet = {"chains": chains, "cores": 1, "random_seed": seed, "progressbar": False}
    start = time.perf_counter()
    joint = pm.sample(draws, tune=1000, model=model, target_accept=0.95, **quiet)
    middle = time.perf_counter()
    marginal = apm.marginalize(model, latents)
    idata = pm.sample(2 * draws, tune=1000, model=marginal, **quiet)
    end = time.perf_counter()
    scores = z_scores(joint.posterior, idata.posterior)
    reference = joint.posterior[list(idata.posterior.data_vars)]
    divergent = int(joint.sample_stats["diverging"].sum())
    worst = max(scores, key=lambda label: abs(scores[label]))
    print(
        f"{name:18} {len(scores):3} comparisons, largest |z| {abs(scores[worst]):4.1f} "
        f"({worst}); {middle - start:4.0f} s and {end - middle:4.0f} s; "
        f"NUTS: {divergent} divergences, ESS {least_ess(reference):.0f}; "
        f"marginal: ESS {least_ess(idata.posterior):.0f}",
        flush=True,
    )
    if name == "eight_schools":
        for label, data in (("NUTS", joint.posterior), ("marginal", idata.posterior)):
            means = {key: float(data[key].mean()) for key in ("mu", "tau")}
            print(f"  {label}: mu {means['mu']:.2f}, tau {means['tau']:.2f}", flush=True)


def overhead() -> None:
    """Print the time of an estimate, relative to that of the same model written by hand."""
    counts = np.random.default_rng(1).poisson(3.0, size=30)
    models = []
    for is_by_hand in (False, True):
        with pm.Model() as model:
            mu, sigma = pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 1)
            if is_by_hand:
                u = apm.StandardNormal("u", shape=(64, 30))
                log_weights = pm.logp(pm.Poisson.dist(pt.exp(mu + sigma * u)), counts)
                apm.Potential("log_lik", apm.estimators.log_mean_exp(log_weights, axis=0))
            else:
                effect = pm.Normal("effect", mu, sigma, shape=30)
                pm.Poisson("y", pt.exp(effect), observed=counts)
        if not is_by_hand:
            model = apm.marginalize(model, ["effect"], samples=64, proposal="prior")
        models.append(model)
    ratios = []
    for seed in range(5):
        seconds = []
        for model in models:
            options = {"chains": 1, "cores": 1, "random_seed": seed, "progressbar": False}
            step = apm.APMSlice(compile=False, model=model)
            start = time.process_time()
            idata = pm.sample(2000, tune=0, step=step, model=model, **options)
            taken = time.process_time() - start
            seconds.append(taken / float(idata.sample_stats["n_evals"].sum()))
        ratios.append(seconds[0] / seconds[1])
    print(f"marginalised / by hand, time of an estimate: {np.median(ratios):.2f} ({ratios})")


def main() -> None:
    """Run the comparison."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("models", nargs="*", choices=[*MODELS, []], default=[])
    options.add_argument("--draws", type=int, default=2000, help="draws of NUTS for each chain")
    options.add_argument("--chains", type=int, default=4)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--overhead", action="store_true", help="time an estimate instead")
    arguments = options.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    if arguments.overhead:
        overhead()
        return
    for name in arguments.models or MODELS:
        compare(name, arguments.draws, arguments.chains, arguments.seed)


if __name__ == "__main__":
    main()
