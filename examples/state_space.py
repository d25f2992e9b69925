"""State-space models: what the pool estimator costs, and what chains make of it.

    python examples/state_space.py [--only TEXT]

prints, for stochastic volatility on the exchange rates that come with the package ``particles``
(GBP against USD, 750 days): effective draws per second of ``pm.sample()`` without options, of NUTS
on parameters and states together, and of particle marginal Metropolis-Hastings by ``particles``,
which is given a good proposal; then how they depend on the length of a series, and the noise of the
estimate in one to five dimensions.
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

OPTIONS = {"chains": 1, "cores": 1, "random_seed": 1, "progressbar": False}
QUIET = {"compute_convergence_checks": False}


def exchange_rates() -> np.ndarray:
    from particles import datasets

    return np.asarray(datasets.GBP_vs_USD_9798().data, dtype=float)


def priors() -> tuple[Any, Any, Any]:
    return pm.Normal("mu", 0, 2), pm.Uniform("rho", -1, 1), pm.HalfNormal("sigma", 1)


def volatility(y: np.ndarray) -> pm.Model:
    with pm.Model() as model:
        mu, rho, sigma = priors()
        apm.estimators.state_space(
            "returns",
            y,
            initial=pm.Normal.dist(mu, sigma / pt.sqrt(1 - rho**2)),
            transition=lambda x: pm.Normal.dist(mu + rho * (x - mu), sigma),
            observation=lambda x: pm.Normal.dist(0, pt.exp(x / 2)),
        )
    return model


def volatility_with_states(y: np.ndarray) -> pm.Model:
    with pm.Model() as model:
        mu, rho, sigma = priors()
        noise = pm.Normal("noise", shape=len(y))

        def step(noise: Any, x: Any, mu: Any, rho: Any, sigma: Any) -> Any:
            return mu + rho * (x - mu) + sigma * noise

        from pytensor import scan

        first = mu + sigma / pt.sqrt(1 - rho**2) * noise[0]
        rest = scan(step, sequences=noise[1:], outputs_info=first, non_sequences=[mu, rho, sigma])
        x = pt.concatenate([first[None], rest if not isinstance(rest, tuple) else rest[0]])
        pm.Normal("returns", 0, pt.exp(x / 2), observed=y)
    return model


def report(name: str, idata: Any, seconds: float) -> None:
    draws = {variable: idata.posterior[variable].values for variable in ("mu", "rho", "sigma")}
    effective = min(float(az.ess(values)) for values in draws.values())
    means = [f"{v} {values.mean():.3f} ({values.std():.3f})" for v, values in draws.items()]
    text = f"{effective:7.0f} effective draws, {effective / seconds:8.2f} per second"
    print(f"{name:34} {text}; {', '.join(means)}", flush=True)


def run(name: str, model: pm.Model, draws: int, tune: int, **options: Any) -> None:
    with model:
        pm.sample(5, tune=5, **OPTIONS, **QUIET, **options)  # what is compiled is kept
        began = time.perf_counter()
        idata = pm.sample(draws, tune=tune, **OPTIONS, **QUIET, **options)
        seconds = time.perf_counter() - began
    report(name, idata, seconds)


def pool() -> None:
    model = volatility(exchange_rates())
    run("pm.sample(), with compilation", model, 4000, 1000)
    run("pm.sample(), once compiled", model, 4000, 1000)


def joint() -> None:
    run("NUTS on parameters and states", volatility_with_states(exchange_rates()), 500, 500)


def particle_metropolis() -> None:
    from particles import distributions as dists
    from particles import mcmc, state_space_models

    class Volatility(state_space_models.StateSpaceModel):
        def PX0(self) -> Any:
            return dists.Normal(self.mu, self.sigma / np.sqrt(1 - self.rho**2))

        def PX(self, t: int, xp: Any) -> Any:
            return dists.Normal(self.mu + self.rho * (xp - self.mu), self.sigma)

        def PY(self, t: int, xp: Any, x: Any) -> Any:
            return dists.Normal(0.0, np.exp(x / 2))

    class Prior(dists.StructDist):
        def logpdf(self, theta: Any) -> Any:
            return np.squeeze(super().logpdf(theta))  # NumPy no longer takes an array for a number

    prior = Prior(
        {
            "mu": dists.Normal(0, 2),
            "rho": dists.Uniform(-1, 1),
            "sigma": dists.Gamma(2.0, 2.0),
        }
    )
    start = np.zeros(1, dtype=prior.dtype)
    for name, value in (("mu", -1.73), ("rho", 0.23), ("sigma", 0.62)):
        start[name] = value
    np.random.seed(1)  # noqa: NPY002 (the package draws from there)
    chain = mcmc.PMMH(
        ssm_cls=Volatility,
        prior=prior,
        data=exchange_rates(),
        Nx=200,
        niter=900,
        adaptive=False,
        rw_cov=np.diag([0.074, 0.204, 0.098]) ** 2 * 2.38**2 / 3,
        theta0=start,
    )
    began = time.perf_counter()
    chain.run()
    seconds = time.perf_counter() - began
    draws = {name: np.asarray(chain.chain.theta[name])[None] for name in ("mu", "rho", "sigma")}
    effective = min(float(az.ess(values)) for values in draws.values())
    text = f"{effective:7.0f} effective draws, {effective / seconds:8.2f} per second"
    print(f"{'PMMH of particles, 200 of them':34} {text}", flush=True)


def length() -> None:
    rng = np.random.default_rng(2)
    for n in (100, 1000, 10_000):
        x, y = np.empty(n), np.empty(n)
        x[0] = -1.0
        for t in range(1, n):
            x[t] = -1.0 + 0.95 * (x[t - 1] + 1.0) + 0.25 * rng.normal()
        y = np.exp(x / 2) * rng.normal(size=n)
        model = volatility(y)
        with model:
            idata = pm.sample(1500, tune=700, **OPTIONS, **QUIET)
        names = ("mu", "rho", "sigma")
        effective = min(float(az.ess(idata.posterior[name].values)) for name in names)
        evaluations = float(idata.sample_stats["n_evals"].sum())
        noise = model["returns"].tag.apm_states.source.noise
        print(
            f"{n:6} rows: noise {noise:.5f}, {1000 * effective / evaluations:.0f} effective draws "
            "for 1000 estimates"
        )


def dimensions() -> None:
    for n_dims in (1, 2, 3, 5):
        rng = np.random.default_rng(3)
        matrix = 0.8 * np.eye(n_dims) + 0.1 * np.eye(n_dims, k=1)
        x = np.zeros((100, n_dims))
        for t in range(1, 100):
            x[t] = matrix @ x[t - 1] + rng.normal(size=n_dims)
        with pm.Model() as model:
            a, s = pm.Uniform("a", -1, 1), pm.HalfNormal("s", 1)
            apm.estimators.state_space(
                "y",
                x + rng.normal(size=x.shape),
                initial=pm.MvNormal.dist(np.zeros(n_dims), 2 * np.eye(n_dims)),
                transition=lambda x, a=a, s=s, n=n_dims: pm.MvNormal.dist(
                    a * x + 0.1 * pt.dot(np.eye(n, k=1), x), s**2 * np.eye(n)
                ),
                observation=lambda x: pm.Normal.dist(x, 1.0),
                points=64,
            )
        print(f"{n_dims} dimensions, 64 points: noise {model['y'].tag.apm_states.source.noise:.4f}")


PARTS: dict[str, Callable[[], None]] = {
    "pool": pool,
    "joint": joint,
    "particles": particle_metropolis,
    "length": length,
    "dimensions": dimensions,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="run the parts with this in their names")
    chosen = parser.parse_args().only
    logging.getLogger("pymc").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore")
    for name, part in PARTS.items():
        if chosen in name:
            part()
