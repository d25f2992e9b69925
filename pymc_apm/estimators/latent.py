"""Draws of latent variables that were integrated out, after sampling."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from numpy.typing import NDArray
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_apm._compat import compile_function
from pymc_apm.errors import ModelError
from pymc_apm.estimators.copies import of_parameters
from pymc_apm.validation import positive_integer

__all__ = ["LatentDraws", "sample_latent"]


class LatentDraws(NamedTuple):
    """How an estimator draws its latent variables.

    Attributes
    ----------
    u_shape : callable
        ``u_shape(samples)`` returns the shape of the standard normal numbers for some draws.
    build : callable
        ``build(u)`` returns the draws, along the first axis, and the log of their weights, with one
        column for each independent block if there are several.
    """

    u_shape: Callable[[int], tuple[int, ...]]
    build: Callable[[TensorVariable], tuple[TensorVariable, TensorVariable]]


def sample_latent(
    idata: Any,
    name: str,
    *,
    draws: int = 100,
    samples: int = 64,
    random_seed: int | np.random.Generator | None = None,
    model: pm.Model | None = None,
) -> xr.Dataset:
    """Draw the latent variables that an estimator integrated out, given draws of the parameters.

    For each of some draws of the parameters the proposal of the estimator is drawn from ``samples``
    times, and one of these is chosen with a probability in proportion to its weight. That is a draw
    from the posterior of the latent variables, up to an error that vanishes as ``samples`` grow and
    is small where ``effective_samples`` is not.

    Parameters
    ----------
    idata : InferenceData or DataTree
        What ``pm.sample`` returned.
    name : str
        The name of the estimator: that given to
        :func:`~pymc_apm.estimators.laplace_importance`.
    draws : int
        How many draws to make, for parameters spread evenly over the posterior draws.
    samples : int
        How many importance samples to choose each of them from.
    random_seed : int or Generator, optional
    model : Model, optional
        The model; the one whose context is open if not given.

    Returns
    -------
    Dataset
        With the dimension ``sample``: ``latent``, the draws; ``effective_samples``, the effective
        number of importance samples (the smallest of all groups); and the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> counts = np.array([1, 4, 2, 0])
    >>> with pm.Model() as model:
    ...     sd = pm.HalfNormal("sd")
    ...     log_lik = apm.estimators.laplace_importance(
    ...         "y", lambda f: pm.logp(pm.Poisson.dist(pm.math.exp(f)), counts), sd**2 * np.eye(4)
    ...     )
    ...     idata = pm.sample(50, tune=50, chains=1, progressbar=False)
    ...     latent = apm.estimators.sample_latent(idata, "y", draws=10)
    >>> latent["latent"].shape
    (10, 4)
    """
    model = pm.modelcontext(model)
    draws = positive_integer("draws of sample_latent", draws)
    samples = positive_integer("samples of sample_latent", samples)
    how: LatentDraws | None = getattr(
        getattr(model.named_vars.get(name), "tag", None), "apm_latent", None
    )
    if how is None:
        known = [term.name for term in model.potentials if hasattr(term.tag, "apm_latent")]
        raise ModelError(
            f"The model has no estimator {name!r} that integrates latent variables out. There is: "
            f"{', '.join(known) or 'none'}."
        )
    rng = np.random.default_rng(random_seed)
    shape = how.u_shape(samples)
    u = pt.tensor("u", dtype="float64", shape=shape)
    made = of_parameters(how.build(u), model, [u], f"The estimator {name!r}")
    upstream = set(ancestors(made))
    parameters = [rv for rv in model.root.free_RVs if rv in upstream]
    posterior = idata["posterior"]
    missing = [rv.name for rv in parameters if rv.name not in posterior]
    if missing:
        raise ModelError(
            f"The posterior has no draws of {', '.join(missing)}, on which {name!r} depends."
        )
    n_chains, n_draws = posterior.sizes["chain"], posterior.sizes["draw"]
    chosen = np.linspace(0, n_chains * n_draws - 1, draws).round().astype(int)
    chain, draw = np.divmod(chosen, n_draws)
    values = {rv.name: posterior[rv.name].values[chain, draw] for rv in parameters}

    placeholders = {rv: rv.type() for rv in parameters}
    outputs = clone_replace(made, replace=placeholders, rebuild_strict=False)
    function = compile_function([u, *placeholders.values()], outputs, calls_python=True)
    found, effective = [], np.empty(draws)
    for place in range(draws):
        point = [np.asarray(values[rv.name][place], dtype=rv.type.dtype) for rv in parameters]
        candidates, logs = function(rng.standard_normal(shape), *point)
        picked, numbers = pick(rng, logs.reshape(len(logs), -1))
        effective[place] = numbers.min()
        found.append(
            candidates[picked, np.arange(len(picked))] if logs.ndim > 1 else candidates[picked[0]]
        )
    latent = np.stack(found)
    dims = [f"latent_dim_{axis}" for axis in range(latent.ndim - 1)]
    data: dict[str, Any] = {
        "latent": (("sample", *dims), latent),
        "effective_samples": ("sample", effective),
    }
    for rv_name, value in values.items():
        others = [f"{rv_name}_dim_{axis}" for axis in range(value.ndim - 1)]
        data[rv_name] = (("sample", *others), value)
    return xr.Dataset(data, coords={"chain": ("sample", chain), "draw": ("sample", draw)})


def pick(
    rng: np.random.Generator, log_weights: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Choose a row of each column by its weight; return them, and the effective numbers of rows."""
    largest = log_weights.max(axis=0)
    if not np.isfinite(largest).all():
        raise ModelError(
            "The weights of all draws of the latent variables are zero, or not a number, for a "
            "draw of the parameters. Take more samples."
        )
    weights = np.exp(log_weights - largest)
    weights /= weights.sum(axis=0)
    uniform = rng.random(weights.shape[1])
    picked = np.minimum((weights.cumsum(axis=0) < uniform).sum(axis=0), len(weights) - 1)
    return picked, 1.0 / (weights**2).sum(axis=0)
