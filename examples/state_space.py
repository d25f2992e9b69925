"""State-space models: what the pool estimator costs, and what chains make of it.

    python examples/state_space.py [--only TEXT,TEXT,...] [--save FILE]

prints, for stochastic volatility on the exchange rates that come with the package ``particles``
(GBP against USD, 750 days): effective draws per second of ``pm.sample()`` without options, of NUTS
on parameters and states together, and of particle marginal Metropolis-Hastings by ``particles``,
which is given a good proposal; then how they depend on the length of a series, there and for an
autoregression plus noise, beside the exact likelihood by Kalman's filter; the noise of the estimate
in one to five dimensions; what a gradient takes beside a value, and a particle filter beside one
that is written by hand; what goes wrong where u is not a part of the chain; what particle
filters save by stopping early; last, how quickly u forgets under each of its updates.
"""

import argparse
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from common import Record, save
from pytensor.graph.replace import clone_replace

import pymc_apm as apm
from pymc_apm.estimators.states.particle_op import ParticleFilter

OPTIONS = {"chains": 1, "cores": 1, "random_seed": 1, "progressbar": False}
QUIET = {"compute_convergence_checks": False}

#: What a part finds, in words and as records of the file that is written.
Found = Iterator[tuple[str, Record]]


def exchange_rates() -> np.ndarray:
    from particles import datasets

    return np.asarray(datasets.GBP_vs_USD_9798().data, dtype=float)


def priors() -> tuple[Any, Any, Any]:
    return pm.Normal("mu", 0, 2), pm.Uniform("rho", -1, 1), pm.HalfNormal("sigma", 1)


def volatility(y: np.ndarray, points: int | None = None) -> pm.Model:
    with pm.Model() as model:
        mu, rho, sigma = priors()
        apm.estimators.state_space(
            "returns",
            y,
            initial=pm.Normal.dist(mu, sigma / pt.sqrt(1 - rho**2)),
            transition=lambda x: pm.Normal.dist(mu + rho * (x - mu), sigma),
            observation=lambda x: pm.Normal.dist(0, pt.exp(x / 2)),
            points=points,
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


def ended(
    method: str, draws: dict[str, np.ndarray], seconds: float, first_seconds: float = 0.0
) -> tuple[str, Record]:
    """Return what came of a run: effective draws of the slowest parameter, a second of clock time.

    Some runs are timed twice: at the first time all has to be compiled.
    """
    effective = min(float(az.ess(values)) for values in draws.values())
    record: Record = {
        "method": method,
        "draws": int(next(iter(draws.values())).size),
        "effective": effective,
        "per_second": effective / seconds,
        "first_per_second": effective / first_seconds if first_seconds else None,
        "means": {name: float(values.mean()) for name, values in draws.items()},
        "sds": {name: float(values.std()) for name, values in draws.items()},
    }
    text = f"{method:34} {effective:7.0f} effective draws, {effective / seconds:8.2f} per second"
    if seconds != first_seconds > 0.0:
        text += f", {effective / first_seconds:.2f} with all that is compiled"
    means = [f"{v} {record['means'][v]:.3f} ({record['sds'][v]:.3f})" for v in draws]
    return f"{text}; {', '.join(means)}", record


def run(method: str, model: pm.Model, draws: int, times: int = 2) -> tuple[str, Record]:
    seconds = []
    with model:
        for _ in range(times):
            began = time.perf_counter()
            idata = pm.sample(draws, tune=500, **OPTIONS, **QUIET)
            seconds.append(time.perf_counter() - began)
    names = ("mu", "rho", "sigma")
    chains = {name: idata.posterior[name].values for name in names}
    return ended(method, chains, seconds[-1], seconds[0])


def pool() -> Found:
    yield run("pm.sample()", volatility(exchange_rates()), 4000)


def joint() -> Found:
    model = volatility_with_states(exchange_rates())
    yield run("NUTS on parameters and states", model, 500, times=1)


def particle_metropolis() -> Found:
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
    yield ended("PMMH of particles, 200 of them", draws, seconds)


# How it depends on the length of a series, and the number of dimensions


def simulated_volatility(n: int) -> np.ndarray:
    rng = np.random.default_rng(2)
    x = np.full(n, -1.0)
    for t in range(1, n):
        x[t] = -1.0 + 0.95 * (x[t - 1] + 1.0) + 0.25 * rng.normal()
    return np.exp(x / 2) * rng.normal(size=n)


def kalman(y: np.ndarray) -> pm.Model:
    """The autoregression plus noise with its exact likelihood, and a u that does nothing."""

    def step(observed: Any, mean: Any, variance: Any, a: Any, s: Any) -> Any:
        whole = variance + 1
        log_density = -0.5 * (pt.log(2 * np.pi * whole) + (observed - mean) ** 2 / whole)
        mean, variance = mean + variance / whole * (observed - mean), variance / whole
        return a * mean, a**2 * variance + s**2, log_density

    from pytensor import scan

    with pm.Model() as model:
        a, s = autoregression_priors()
        u = apm.StandardNormal("u", shape=1)
        start = [pt.zeros(()), s**2 / (1 - a**2), None]
        steps = scan(step, [pt.as_tensor(y)], start, [a, s], return_updates=False)
        apm.Potential("y", steps[-1].sum() + 0.0 * u.sum())
    return model


def length() -> Found:
    for n in (100, 1000, 10_000):
        y, by_pool = autoregression(n)
        models = {
            "volatility": volatility(simulated_volatility(n)),
            "autoregression": by_pool,
            "autoregression, exact likelihood": kalman(y),
        }
        for name, model in models.items():
            with model:
                idata = pm.sample(2000, tune=700, **(OPTIONS | {"chains": 2}), **QUIET)
            names = [variable.name for variable in model.free_RVs]
            record: Record = {
                "model": name,
                "rows": n,
                "effective": min(float(az.ess(idata.posterior[name].values)) for name in names),
                "estimates": float(idata.sample_stats["n_evals"].sum()),
            }
            record["per_1000"] = 1000 * record["effective"] / record["estimates"]
            text = f"{name:32} {n:6} rows: "
            if name != "autoregression, exact likelihood":
                (likelihood,) = model.potentials
                record["noise"] = float(likelihood.tag.apm_states.source.noise)
                text += f"noise {record['noise']:.5f}, "
            yield f"{text}{record['per_1000']:.0f} effective draws for 1000 estimates", record


def moving(n_dims: int, points: int = 64) -> pm.Model:
    """A vector autoregression plus noise, 100 rows."""
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
            transition=lambda x: pm.MvNormal.dist(
                a * x + 0.1 * pt.dot(np.eye(n_dims, k=1), x), s**2 * np.eye(n_dims)
            ),
            observation=lambda x: pm.Normal.dist(x, 1.0),
            points=points,
        )
    return model


def dimensions() -> Found:
    rng = np.random.default_rng(4)
    for n_dims in (1, 2, 3, 4, 5):
        model = moving(n_dims)
        noise = []
        with apm.clamped(model):
            variables = [model["y_u"], model["a"], model["s"]]
            inputs = [variable.type() for variable in variables]
            replace = dict(zip(variables, inputs, strict=True))
            estimate = pm.compile(inputs, clone_replace([model["y"]], replace)[0])
            for at in ((0.8, 0.95), (0.76, 0.88), (0.84, 1.02)):
                values = tuple(map(np.array, at))
                shape = variables[0].get_value().shape
                noise.append(np.std([estimate(rng.random(shape), *values) for _ in range(100)]))
        text = f"{n_dims} dimensions, 64 points: noise {noise[0]:.4f}, at most {max(noise):.4f}"
        yield text, {"dimensions": n_dims, "noise": noise[0], "largest": max(noise)}


def divergences() -> Found:
    with moving(5):
        step = [apm.APMIndependenceU(), pm.NUTS()]
        idata = pm.sample(300, tune=300, step=step, **OPTIONS, **QUIET)
    divergent = int(idata.sample_stats["diverging"].sum())
    accepted = float(idata.sample_stats["u_accepted"].mean())
    text = f"five dimensions, NUTS: {divergent} of 300 divergent, fresh u accepted {accepted:.2f}"
    yield text, {"divergent": divergent, "accepted": accepted}


# What a value and a gradient take


def cpu_times(functions: dict[str, Callable[[], Any]], repeats: int = 60) -> dict[str, float]:
    """Return medians of the CPU time of some functions, which are run in turn."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            began = time.process_time()
            function()
            taken[name].append(time.process_time() - began)
    return {name: float(np.median(times[1:])) for name, times in taken.items()}


def simulated(n: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    x = np.zeros(n)
    for t in range(1, n):
        x[t] = 0.9 * x[t - 1] + 0.4 * rng.normal()
    return np.exp(x / 2) * rng.normal(size=n)


def gradient() -> Found:
    from pytensor.compile.mode import Mode, get_mode

    y = simulated(750)

    def heavy(points: int) -> pm.Model:
        with pm.Model() as model:
            rho, sigma = pm.Uniform("rho", -1, 1), pm.HalfNormal("sigma", 1)
            apm.estimators.state_space(
                "returns",
                y,
                initial=pm.Normal.dist(0, 1),
                transition=lambda x: pm.StudentT.dist(nu=5, mu=rho * x, sigma=sigma),
                observation=lambda x: pm.Normal.dist(0, pt.exp(x / 2)),
                points=points,
            )
        return model

    models = {
        "volatility, 16 points": volatility(y, 16),
        "volatility, 32 points": volatility(y, 32),
        "with Student's t, 16 points": heavy(16),
        "five dimensions, 64 points": moving(5),
    }
    modes = {"Numba": get_mode("NUMBA"), "C": Mode(linker="cvm", optimizer="fast_run")}
    for name, model in models.items():
        start = [model.initial_point()[variable.name] for variable in model.value_vars]
        for compiler, mode in modes.items():
            with apm.clamped(model):
                outputs = [model.logp(), model.dlogp()]
                value = pm.compile(model.value_vars, outputs[0], mode=mode)
                both = pm.compile(model.value_vars, outputs, mode=mode)
                took = cpu_times({"value": partial(value, *start), "both": partial(both, *start)})
            ratio = took["both"] / took["value"]
            yield (
                f"{name}, {compiler}: value {1e3 * took['value']:.2f} ms, value and gradient "
                f"{1e3 * took['both']:.2f} ms, {ratio:.2f} times",
                {"model": name, "compiler": compiler, "ratio": ratio},
            )


# What a particle filter takes


def by_hand() -> Callable[..., float]:
    """A sorted bootstrap filter with stratified resampling, for one model, compiled by Numba."""
    import math

    import numba

    @numba.njit(error_model="numpy")
    def run(u: Any, y: Any, a: float, s: float) -> float:
        n_times, _, n = u.shape
        x, kept, weights = np.empty(n), np.empty(n), np.empty(n)
        log_estimate = 0.0
        for t in range(n_times):
            for j in range(n):
                if t == 0:
                    x[j] = s / math.sqrt(1.0 - a * a) * u[0, 1, j]
                else:
                    x[j] = a * kept[j] + s * u[t, 1, j]
            x.sort()
            largest = -np.inf
            for j in range(n):
                weights[j] = -0.5 * (y[t] - x[j]) ** 2 - 0.5 * math.log(2.0 * math.pi)
                largest = max(largest, weights[j])
            total = 0.0
            for j in range(n):
                weights[j] = math.exp(weights[j] - largest)
                total += weights[j]
            log_estimate += largest + math.log(total / n)
            k, below = 0, weights[0]
            for j in range(n):
                level = (j + 0.5 * math.erfc(-u[t, 0, j] * math.sqrt(0.5))) / n * total
                while below < level and k + 1 < n:
                    k += 1
                    below += weights[k]
                kept[j] = x[k]
        return log_estimate

    return run


def filters() -> Found:
    hand, rng = by_hand(), np.random.default_rng(6)
    for points in (100, 1000):
        y, model = autoregression(1000, points, "particles")
        with apm.clamped(model):
            variables = [model["y_u"], model["a"], model["s"]]
            inputs = [variable.type() for variable in variables]
            replace = dict(zip(variables, inputs, strict=True))
            package = pm.compile(inputs, clone_replace([model["y"]], replace)[0])
            us = [rng.standard_normal(variables[0].get_value().shape) for _ in range(40)]
            values = np.array(0.9), np.array(1.0)
            found = package(us[0], *values), hand(us[0], y, *values)
            np.testing.assert_allclose(*found, rtol=1e-12)

            def each(run: Callable[..., Any], us: list[np.ndarray] = us) -> Callable[[], Any]:
                left = iter(us)
                return lambda: run(next(left))

            took = cpu_times(
                {
                    "by hand": each(lambda u, y=y: hand(u, y, 0.9, 1.0)),
                    "package": each(lambda u, run=package, at=values: run(u, *at)),
                },
                len(us),
            )
        ratio = took["package"] / took["by hand"]
        yield (
            f"1000 rows, {points} particles: {1e3 * took['package']:.2f} ms, by hand "
            f"{1e3 * took['by hand']:.2f} ms, {ratio:.2f} times",
            {"particles": points, "ratio": ratio},
        )


# What goes wrong where u is not a part of the chain

N_STEPS = 20_000


def autoregression_priors() -> tuple[Any, Any]:
    return pm.Uniform("a", 0, 1), pm.HalfNormal("s", 2)


def autoregression(
    n: int, points: int | None = None, method: Any = "auto"
) -> tuple[np.ndarray, pm.Model]:
    rng = np.random.default_rng(1)
    x, y = rng.normal() / np.sqrt(1 - 0.9**2), np.empty(n)
    for t in range(n):
        x = 0.9 * x + rng.normal() if t else x
        y[t] = x + rng.normal()
    with pm.Model() as model:
        a, s = autoregression_priors()
        apm.estimators.state_space(
            "y",
            y,
            initial=pm.Normal.dist(0, s / pt.sqrt(1 - a**2)),
            transition=lambda x: pm.Normal.dist(a * x, s),
            observation=lambda x: pm.Normal.dist(x, 1),
            method=method,
            points=points,
        )
    return y, model


def exact_moments(y: np.ndarray) -> dict[str, tuple[float, float]]:
    """By Kalman's filter, on a grid of both parameters at once."""
    grids = {"a": np.linspace(0, 1, 402)[1:-1], "s": np.linspace(0, 3, 401)[1:]}
    a, s = np.meshgrid(*grids.values(), indexing="ij")
    mean, variance = np.zeros_like(a), s**2 / (1 - a**2)
    log_density = -0.5 * (s / 2) ** 2
    for t, observed in enumerate(y):
        if t:
            mean, variance = a * mean, a**2 * variance + s**2
        whole = variance + 1
        log_density -= 0.5 * (np.log(whole) + (observed - mean) ** 2 / whole)
        mean, variance = mean + variance / whole * (observed - mean), variance / whole
    weights = np.exp(log_density - log_density.max())
    moments = {}
    for axis, (name, grid) in enumerate(grids.items()):
        marginal = weights.sum(axis=1 - axis) / weights.sum()
        centre = float(marginal @ grid)
        moments[name] = centre, float(np.sqrt(marginal @ (grid - centre) ** 2))
    return moments


def random_walk(model: pm.Model, u: str, seed: int) -> dict[str, np.ndarray]:
    """Metropolis, and what becomes of the random numbers of the estimate.

    ``u`` is "fixed" for the whole chain; "shared", drawn afresh in each step for both points;
    "separate", drawn afresh for each point; or "proposed" together with the parameters, and kept
    if they are accepted, which is right.
    """
    rng = np.random.default_rng(seed)
    numbers = model["y_u"]
    log_density = model.compile_logp()

    def refresh() -> None:
        numbers.set_value(rng.standard_normal(numbers.type.shape))

    refresh()
    scale = np.array([1.3, 0.35])  # twice the posterior standard deviations, or so
    names = ("a_interval__", "s_log__")
    position = np.array([1.9, -0.4])
    draws = np.empty((N_STEPS, 2))
    with apm.clamped(model):

        def at(position: np.ndarray) -> float:
            return float(log_density(dict(zip(names, position, strict=True))))

        current = at(position)
        for step in range(N_STEPS):
            proposal = position + scale * rng.standard_normal(2)
            if u in ("shared", "separate"):
                refresh()
                current = at(position)
            if u in ("proposed", "separate"):
                refresh()
            proposed = at(proposal)
            if np.log(rng.random()) < proposed - current:
                position, current = proposal, proposed
            draws[step] = position
    return {"a": 1 / (1 + np.exp(-draws[:, 0])), "s": np.exp(draws[:, 1])}


def errors(
    name: str, exact: dict[str, tuple[float, float]], chains: dict[str, Any]
) -> tuple[str, Record]:
    """Return how far the means of chains are from the truth."""
    text = f"{name:44}"
    record: Record = {"method": name}
    for parameter, (mean, sd) in exact.items():
        values = np.asarray(chains[parameter])
        error = values.mean() - mean
        z = error / (values.std() / np.sqrt(float(az.ess(values))))
        ratio = values.std() / sd
        record |= {f"{parameter}_error": float(error / sd), f"{parameter}_z": float(z)}
        record[f"{parameter}_sd"] = float(ratio)
        text += f"{parameter}: bias {error / sd:+.2f} sd, z {z:+.1f}, sd {ratio:.2f};  "
    return text, record


def wrong() -> Found:
    y, model = autoregression(100, 20, "particles")
    exact = exact_moments(y)
    with model:
        idata = pm.sample(5000, tune=1000, **(OPTIONS | {"chains": 4}), **QUIET)
    yield errors(
        "refreshed by conditional SMC: pm.sample()",
        exact,
        {name: idata.posterior[name].values for name in exact},
    )
    for name, u in (
        ("proposed with the parameters", "proposed"),
        ("drawn afresh in each step", "shared"),
        ("drawn afresh for each point", "separate"),
    ):
        chains = [random_walk(model, u, seed) for seed in range(4)]
        yield errors(name, exact, {p: np.stack([c[p][1000:] for c in chains]) for p in exact})
    for seed in range(4):
        chain = random_walk(model, "fixed", seed)
        found = {p: chain[p][None, 1000:] for p in exact}
        yield errors(f"fixed for a whole chain, number {seed + 1}", exact, found)


# What particle filters save by stopping early


def moving_rate(n_rows: int, **options: Any) -> pm.Model:
    rng = np.random.default_rng(1)
    x, y = 0.0, np.empty(n_rows)
    for t in range(n_rows):
        x = 0.9 * x + 0.3 * rng.normal()
        y[t] = rng.poisson(np.exp(2 + x))
    with pm.Model() as model:
        c, a, s = pm.Normal("c", 2, 1), pm.Uniform("a", 0, 1), pm.HalfNormal("s", 1)
        apm.estimators.state_space(
            "y",
            y,
            initial=pm.Normal.dist(0, s / pt.sqrt(1 - a**2)),
            transition=lambda x: pm.Normal.dist(a * x, s),
            observation=lambda x: pm.Poisson.dist(pt.exp(c + x)),
            method="particles",
            **options,
        )
    return model


def outbreak(**options: Any) -> pm.Model:
    rng = np.random.default_rng(3)
    population, susceptible, infected = 763, 760, 3
    cases = np.full(30, np.nan)
    for day in range(1, 30):
        new = rng.binomial(susceptible, 1 - np.exp(-1.2 * infected / population))
        gone = rng.binomial(infected, 1 - np.exp(-0.5))
        susceptible, infected = susceptible - new, infected + new - gone
        cases[day] = rng.poisson(0.7 * new + 0.1)
    with pm.Model() as model:
        beta, gamma = pm.LogNormal("beta", 0, 0.5), pm.LogNormal("gamma", -0.7, 0.5)
        share = pm.Beta("share", 4, 4)

        def transition(S: Any, I: Any, new: Any, dt: Any) -> Any:  # noqa: E741
            infected = pm.Binomial.dist(S, 1 - pt.exp(-beta * I / population * dt))
            recovered = pm.Binomial.dist(I, 1 - pt.exp(-gamma * dt))
            return {"S": S - infected, "I": I + infected - recovered, "new": new + infected}

        apm.estimators.state_space(
            "cases",
            cases,
            initial={"S": 760, "I": 3, "new": 0},
            transition=transition,
            observation=lambda new: pm.Poisson.dist(share * new + 0.1),
            substeps=2,
            accumulate="new",
            sort_by=lambda I: I,  # noqa: E741
            **options,
        )
    return model


def early() -> Found:
    makers: dict[str, Callable[..., pm.Model]] = {
        "counts, 20 rows": lambda **options: moving_rate(20, **options),
        "counts, 100 rows": lambda **options: moving_rate(100, **options),
        "epidemic, 30 rows": outbreak,
    }
    numbers: list[int] = []  # rows of each run of a filter: clocks say less
    run_rows = ParticleFilter.run_rows

    def counted(*arguments: Any) -> Any:
        made = run_rows(*arguments)
        numbers.append(made[0].n_times)
        return made

    for name, make in makers.items():
        rows = {}
        for choice in ("check", True):  # all rows, and those up to where it stops
            with make(early_exit=choice), patch.object(ParticleFilter, "run_rows", counted):
                for draws in (1, 201):
                    numbers.clear()
                    pm.sample(draws, tune=200, **OPTIONS, **QUIET)
                    rows[choice, draws] = sum(numbers)
        tuning, all_draws = (rows[True, draws] / rows["check", draws] for draws in (1, 201))
        text = f"{name:18} {tuning:.3f} of the rows in tuning, {all_draws:.3f} of all"
        yield text, {"model": name, "tuning": tuning, "all": all_draws}


def mixing() -> Found:
    """Run updates of u alone, at the parameters that made the data."""
    n, n_segments = 1000, 20
    rng = np.random.default_rng(1)
    x, y = 0.0, np.empty(n)
    for t in range(n):
        x = 0.9 * x + rng.normal()
        y[t] = x + rng.normal()
    updates: dict[str, tuple[str, int, int]] = {
        "conditional SMC": ("auto", 1, 1000),
        "slices, all of u": ("slice", 1, 4000),
        "slices, 20 segments": ("slice", n_segments, 1000),
        "independence, 20 segments": ("independence", n_segments, 2000),
    }
    for name, (u_update, segments, draws) in updates.items():
        with pm.Model():
            pm.Normal("idle")  # a chain has to have a parameter
            apm.estimators.state_space(
                "y",
                y,
                initial=pm.Normal.dist(0, 1 / np.sqrt(1 - 0.9**2)),
                transition=lambda x: pm.Normal.dist(0.9 * x, 1),
                observation=lambda x: pm.Normal.dist(x, 1),
                method="particles",
                points=100,
                segments=segments,
            )
            step = apm.APMSlice(u_update=u_update)
            idata = pm.sample(draws, tune=200, step=step, **OPTIONS, **QUIET)
        stats = idata["sample_stats"]
        updates_each = draws / float(az.ess(stats["log_estimate"].values, method="mean"))
        # An update of one segment runs the filter from there on.
        runs = float(stats["n_evals"].mean()) * (segments + 1) / (2 * segments)
        text = f"{name:26} {updates_each:6.1f} updates of u, {runs * updates_each:6.1f} filters"
        yield text, {"update": name, "updates": updates_each, "filters": runs * updates_each}


PARTS: dict[str, Callable[[], Found]] = {
    "pool": pool,
    "joint": joint,
    "particles": particle_metropolis,
    "length": length,
    "dimensions": dimensions,
    "divergences": divergences,
    "gradient": gradient,
    "filter": filters,
    "wrong": wrong,
    "early": early,
    "mixing": mixing,
}


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="run the parts with one of these in their names")
    parser.add_argument(
        "--save",
        type=Path,
        help="write what is found to this file of JSON, beside what other parts found",
    )
    parser.set_defaults(seed=OPTIONS["random_seed"])
    arguments = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore")
    for name, part in PARTS.items():
        if not any(text in name for text in arguments.only.split(",")):
            continue
        made = {"part": name, "pymc": version("pymc")}
        records = []
        for text, record in part():
            print(text, flush=True)
            records.append(made | record)
        save(arguments, records, add=True, instead_of=lambda r, of=made: of.items() <= r.items())


if __name__ == "__main__":
    main()
