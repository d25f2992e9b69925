"""Integrals by brute force, from PyMC's own joint density, to compare estimates with."""

import numpy as np
import pymc as pm
from pymc.model.transform.conditioning import remove_value_transforms
from pymc.pytensorf import compile as compile_pymc

import pymc_apm as apm
from pymc_apm.marginal.record import record_of
from pymc_apm.randomness import randomness_of


def parameters_of(model, latents, seed):
    """Draw all other random variables of a model from the prior."""
    rvs = [rv for rv in model.free_RVs if rv.name not in latents]
    values = pm.draw(rvs, random_seed=seed) if rvs else []
    return {rv.name: np.asarray(value) for rv, value in zip(rvs, values, strict=True)}


def by_brute_force(model, latents, theta, n, seed):
    """Return log-likelihoods at draws of the latent variables from the prior.

    The mean of their exponentials is the integral. The density is PyMC's, at one draw at a time.
    """
    fixed = remove_value_transforms(pm.do(model, theta))
    rvs = [fixed[name] for name in latents]
    draws = pm.draw(rvs, draws=n, random_seed=seed)
    terms = [*fixed.observed_RVs, *fixed.potentials]
    log_p = compile_pymc(
        [fixed.rvs_to_values[rv] for rv in rvs],
        fixed.logp(vars=terms),
        mode="FAST_COMPILE",
        on_unused_input="ignore",
    )
    log_p.trust_input = True
    dtypes = [rv.type.dtype for rv in rvs]
    rows = zip(*draws, strict=True)
    found = np.array(
        [log_p(*map(np.asarray, row, dtypes)) for row in rows],
        dtype=np.float64,
    )
    return np.where(np.isnan(found), -np.inf, found)  # as PyMC's samplers take it


class Estimator:
    """The log-estimates of a marginalised model at some parameters, as a function of u."""

    def __init__(self, marginal, theta):
        self.model = pm.do(marginal, theta) if theta else marginal
        self.u = {v.name: v for v in self.model.data_vars if randomness_of(v) is not None}
        terms = [*self.model.observed_RVs, *self.model.potentials]
        with apm.clamped(self.model):
            others = [t for t in terms if not hasattr(t.tag, "apm_marginal")]
            rest = self.model.logp(vars=others) if others else np.array(0.0)
            graph = next(t for t in self.model.potentials if hasattr(t.tag, "apm_marginal"))
            graph = self.model.replace_rvs_by_values([graph])[0]
            self._function = compile_pymc([], [graph, rest + 0 * graph.sum()], mode="FAST_COMPILE")

    def fresh(self, rng):
        """Draw u, and return the log-estimates."""
        for variable in self.u.values():
            known = randomness_of(variable)
            variable.set_value(known.as_array(known.draw(rng)))
        return self()

    def __call__(self):
        """Return the log-estimates, and the sum of all other terms."""
        with apm.clamped(self.model):
            estimates, rest = self._function()
        return np.asarray(estimates), float(rest)


def z_score(first, second):
    """Compare the means of the exponentials of two samples of logs."""
    largest = max(first.max(), second.max())
    if not np.isfinite(largest):
        return np.inf
    first, second = np.exp(first - largest), np.exp(second - largest)
    error = np.sqrt(first.var() / len(first) + second.var() / len(second))
    difference = first.mean() - second.mean()
    return 0.0 if abs(difference) < 1e-9 * first.mean() else difference / error


def wrong_factors(marginal, theta, rng):
    """Return the factors whose randomness changes the estimate of another one."""
    estimator = Estimator(marginal, theta)
    structure = record_of(marginal).structure
    before, _ = estimator.fresh(rng)
    wrong = []
    for factor in range(len(structure.n_latents)):
        values = {name: variable.get_value() for name, variable in estimator.u.items()}
        for name, labels in structure.of_u.items():
            variable = estimator.u[f"{name}_u"]
            moved = np.where(labels == factor, 0.5 * (values[f"{name}_u"] + rng.random()), 0.0)
            variable.set_value(np.where(labels == factor, moved, values[f"{name}_u"]))
        after, _ = estimator()
        for name, value in values.items():
            estimator.u[name].set_value(value)
        changed = set(np.flatnonzero(after != before))
        if not changed <= {factor}:
            wrong.append(factor)
    return wrong
