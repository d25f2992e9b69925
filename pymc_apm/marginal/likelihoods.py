"""Log-likelihoods with the latent variables integrated out."""

import logging
import math
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray

from pymc_apm._compat import result_of
from pymc_apm.marginal.draws_given import WeightedDraws
from pymc_apm.marginal.latents import factor_dims, with_variables
from pymc_apm.marginal.record import record_of
from pymc_apm.validation import positive_integer, positive_number

__all__ = ["log_likelihood"]

_log = logging.getLogger("pymc.apm")

CHUNK = 512
"""How many draws are made at once."""

PILOT = 20
"""Draws of the parameters that tell how noisy the weights are."""


def log_likelihood(
    idata: Any,
    model: pm.Model | None = None,
    *,
    tolerance: float = 0.05,
    max_samples: int = 50_000,
    random_seed: int | np.random.Generator | None = None,
    extend_inferencedata: bool = True,
) -> Any:
    """Add the log-likelihood of each factor, with the latent variables integrated out.

    With these, ``az.loo`` leaves out a whole factor at a time, such as a group of a random-effects
    model, which is what new groups are predicted like, and ``az.compare`` compares models.

    They are estimated anew, by as many draws of the proposal as keep the error small: the noise of
    an estimated log-likelihood biases LOO by its variance, and ``tolerance`` bounds the sum of
    these variances over all factors.

    Parameters
    ----------
    idata : InferenceData or DataTree
        What ``pm.sample`` returned for the model.
    model : Model, optional
        A model made by :func:`pymc_apm.marginalize`; the one whose context is open if not given.
    tolerance : float
        The sum over factors of the variances of their estimated log-likelihoods, which is about the
        bias of LOO's elpd.
    max_samples : int
        How many draws to take at most. A warning says if more are wanted.
    random_seed : int or Generator, optional
    extend_inferencedata : bool
        Whether to add the group ``log_likelihood`` to ``idata`` and return it, instead of a new
        one.

    Returns
    -------
    InferenceData or DataTree
        With the group ``log_likelihood``: one variable, with the names of what was observed. Its
        attributes say how many ``samples`` were taken, and the ``monte_carlo_variance`` in total.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model(coords={"site": ["a", "b", "c", "d"]}) as model:
    ...     mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
    ...     log_rate = pm.Normal("log_rate", mu, sigma, dims="site")
    ...     y = pm.Poisson("y", pm.math.exp(log_rate), observed=[3, 0, 8, 2], dims="site")
    >>> with apm.marginalize(model, "log_rate"):
    ...     idata = pm.sample(50, tune=50, chains=1, progressbar=False)
    ...     idata = apm.log_likelihood(idata, random_seed=1)
    >>> dict(idata.log_likelihood["y"].sizes)
    {'chain': 1, 'draw': 50, 'site': 4}
    """
    model = pm.modelcontext(model)
    record = record_of(model)
    tolerance = positive_number("tolerance of apm.log_likelihood", tolerance)
    max_samples = positive_integer("max_samples of apm.log_likelihood", max_samples)
    rng = np.random.default_rng(random_seed)
    chunk = min(CHUNK, max_samples)
    source = WeightedDraws(record, model, idata, chunk)
    total = source.n_chains * source.n_draws
    variances = []
    for place in np.linspace(0, total - 1, min(PILOT, total)).round().astype(int):
        point = source.point(*divmod(int(place), source.n_draws))
        variances.append(relative_variance(source.draw(rng, point).log_weights))
    of_one = float(np.mean(np.sum(variances, axis=1)))
    n_chunks = max(math.ceil(of_one / tolerance / chunk), 1)
    most = max(max_samples // chunk, 1)
    if n_chunks > most:
        _log.warning(
            f"To have LOO's error below {tolerance:g}, log_likelihood would need "
            f"{n_chunks * chunk:,} draws for each estimate. It takes {most * chunk:,}, and the "
            f"error is about {of_one / (most * chunk):.2g}."
        )
        n_chunks = most
    estimates = np.array(
        [
            log_mean(np.concatenate([source.draw(rng, point).log_weights for _ in range(n_chunks)]))
            for point in source.points()
        ]
    )
    name = "_".join(record.observed) or "log_likelihood"
    factor, factor_coords = factor_dims(record)
    coords = {dim: source.posterior[dim].values for dim in ("chain", "draw")} | factor_coords
    values = estimates.reshape(source.n_chains, source.n_draws, -1)
    dataset = xr.Dataset({name: (("chain", "draw", factor), values)}, coords=coords)
    dataset[name].attrs = {
        "samples": n_chunks * chunk,
        "monte_carlo_variance": of_one / (n_chunks * chunk),
    }
    if extend_inferencedata:
        return with_variables(idata, "log_likelihood", dataset)
    return result_of({"log_likelihood": dataset})


def log_mean(log_weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logs of mean weights, of the draws along the first axis."""
    largest = log_weights.max(axis=0)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):
        result: NDArray[np.float64] = largest + np.log(np.exp(log_weights - largest).mean(axis=0))
    return result


def relative_variance(log_weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the variances of weights, in units of their squared means.

    Where all of them are zero they are as noisy as can be, as if one alone were not.
    """
    with np.errstate(invalid="ignore"):
        weights = np.exp(log_weights - log_mean(log_weights))
    result: NDArray[np.float64] = weights.var(axis=0, ddof=1)
    return np.where(np.isfinite(result), result, len(log_weights))
