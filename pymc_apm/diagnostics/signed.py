"""Expectations from draws whose estimates may be negative.

A chain on the absolute value of an estimate, with the sign s of the estimate recorded, has for
every function h of the parameters

    E[h | data] = E[s h] / E[s],

where the expectations on the right are averages over draws of the chain. The noise of the ratio
grows as the mean sign falls: with a mean sign of 0.1, a hundred draws are worth one.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_apm._compat import result_of
from pymc_apm.diagnostics.runs import FloatArray, posterior_draws, posterior_of, sign_of
from pymc_apm.diagnostics.words import as_html, count, percent
from pymc_apm.errors import ModelError, see

QUANTILES = (0.05, 0.5, 0.95)
"""Which quantiles the summary has."""

LOW = 0.1
"""A mean sign below this is near zero."""

SURE = 5.0
"""So many standard errors from zero a mean sign has to be for a ratio with it to be normal."""

MINIMUM_DRAWS = 4
"""ArviZ has nothing to say about chains of fewer draws."""


class Expectation(NamedTuple):
    """An expectation and its Monte Carlo standard error.

    Attributes
    ----------
    mean, mcse : float or ndarray
    """

    mean: Any
    mcse: Any


class SignedPosterior:
    """A posterior whose draws have signs, as :func:`signed` returns it.

    Attributes
    ----------
    sign : ndarray
        The sign of each draw, with the shape (chain, draw).
    mean_sign, mcse_sign : float
        The mean of the signs and its Monte Carlo standard error.
    n_effective : float
        How many of the draws the signs leave, the number of draws times the square of the mean
        sign: what is left if draws are independent. The autocorrelation of the chain comes on top,
        see the column ``ess`` of the table.
    table : DataFrame
        A row for each element of each parameter: ``mean``, ``sd``, the quantiles, the Monte Carlo
        standard errors ``mcse_mean`` and ``mcse_sd``, ``ess``, which is the number of
        independent draws without signs that would have the same ``mcse_mean``, and ``r_hat`` of
        the chain on the absolute value.
    warnings : list of str
        What is wrong, in words; empty if nothing is.
    """

    def __init__(self, idata: Any, var_names: Any = None, coords: Any = None) -> None:
        import pandas

        sign = sign_of(idata)
        if sign is None:
            raise ModelError(
                "The run has no statistic 'sign': no estimate of the model was declared to have "
                "one, by apm.Potential(..., sign=...), and averages of its draws are right as "
                "they are."
            )
        self._posterior = posterior_of(idata)
        if sign.shape != (self._posterior.sizes["chain"], self._posterior.sizes["draw"]):
            raise ModelError(
                f"The signs are those of {sign.shape} chains and draws, but the posterior has "
                f"{(self._posterior.sizes['chain'], self._posterior.sizes['draw'])}: select from "
                "both groups alike."
            )
        self.sign = sign
        self.mean_sign, self.mcse_sign = float(sign.mean()), _mcse(sign)
        self.n_effective = sign.size * self.mean_sign**2
        self.warnings = list(sign_warnings(self.mean_sign, self.mcse_sign))
        self._draws = posterior_draws(idata, var_names, coords)
        rows = [
            {"variable": label, **self._row(draws.values[..., element].astype(np.float64))}
            for draws in self._draws
            for element, label in enumerate(draws.labels)
        ]
        self.table = pandas.DataFrame(rows).set_index("variable")

    def expectation(self, function: Callable[[Any], Any]) -> Expectation:
        """Return the posterior expectation of a function of the parameters.

        Parameters
        ----------
        function : callable
            ``function(posterior)`` returns what to average, an array of xarray with the dimensions
            chain and draw, and maybe more, from the group of the posterior: for example
            ``lambda posterior: posterior["mu"] > 0``.
        """
        import xarray

        values = function(self._posterior)
        is_array = isinstance(values, xarray.DataArray)
        if not (is_array and {"chain", "draw"} <= set(values.dims)):
            raise ModelError(
                "The function given to expectation must return an array of xarray with the "
                f"dimensions chain and draw, but it returned {type(values).__name__}."
            )
        array = values.transpose("chain", "draw", ...).values.astype(np.float64)
        flat = array.reshape(*array.shape[:2], -1)
        found = [self._mean(flat[..., i]) for i in range(flat.shape[-1])]
        shape = array.shape[2:]
        means, errors = (np.array(column).reshape(shape) for column in zip(*found, strict=True))
        return Expectation(*(x if shape else float(x) for x in (means, errors)))

    def resample(self, random_seed: Any = None) -> Any:
        """Return a posterior without signs, for figures.

        Each draw with a negative sign is taken out together with the draw with a positive sign
        that is nearest to it, in the parameters of the table, each in units of its standard
        deviation. What is left are ordinary draws. As their number grows they come from the
        posterior, but not exactly so, least of all in many dimensions and with a low mean sign:
        numbers are to be taken from the table or from :meth:`expectation`.

        Parameters
        ----------
        random_seed : int or Generator, optional
            In which order the negative draws are taken out.

        Returns
        -------
        InferenceData or DataTree
            The group ``posterior``, with one chain.
        """
        keep = self._kept(np.random.default_rng(random_seed))
        stacked = self._posterior.transpose("chain", "draw", ...)
        chains, draws = np.unravel_index(keep, self.sign.shape)
        import xarray

        index = {
            "chain": xarray.DataArray(chains, dims="draw"),
            "draw": xarray.DataArray(draws, dims="draw"),
        }
        chosen = stacked.isel(index).drop_vars(["chain", "draw"], errors="ignore")
        chosen = chosen.expand_dims(chain=[0]).assign_coords(draw=np.arange(len(keep)))
        return result_of({"posterior": chosen.transpose("chain", "draw", ...)})

    def _kept(self, rng: np.random.Generator) -> NDArray[np.int64]:
        from scipy.spatial import cKDTree

        signs = self.sign.ravel()
        positive, negative = np.flatnonzero(signs > 0), np.flatnonzero(signs < 0)
        if len(positive) <= len(negative):
            raise ModelError(
                f"{count(len(negative), 'draw')} of {count(len(signs), 'draw')} have a negative "
                f"sign: there is nothing left to show. {see('series')}"
            )
        columns = [draws.values.reshape(len(signs), -1) for draws in self._draws]
        values = np.concatenate(columns, axis=1).astype(np.float64)
        spread = values.std(axis=0)
        values = values / np.where(spread > 0, spread, 1.0)
        tree = cKDTree(values[positive])
        is_left = np.ones(len(positive), dtype=bool)
        for number in rng.permutation(negative):
            n_nearest = 8
            while True:
                n_nearest = min(n_nearest, len(positive))
                _, found = tree.query(values[number], k=n_nearest)
                found = np.atleast_1d(found)
                found = found[is_left[found]]
                if len(found):
                    is_left[found[0]] = False
                    break
                n_nearest *= 4
        return positive[is_left]

    def _mean(self, values: FloatArray) -> tuple[float, float]:
        mean = float((self.sign * values).mean() / self.mean_sign) if self.mean_sign else np.nan
        return mean, self._error(values - mean)

    def _error(self, centred: FloatArray) -> float:
        """Return the standard error of a ratio of means, by the delta method."""
        return _mcse(self.sign * centred) / abs(self.mean_sign) if self.mean_sign else np.nan

    def _row(self, values: FloatArray) -> dict[str, float]:
        mean, mcse_mean = self._mean(values)
        variance, _ = self._mean((values - mean) ** 2)
        sd = np.sqrt(variance) if variance > 0 else np.nan
        row = {"mean": mean, "sd": sd}
        for probability, value in zip(QUANTILES, self._quantiles(values), strict=True):
            row[f"{100 * probability:g}%"] = value
        return row | {
            "mcse_mean": mcse_mean,
            "mcse_sd": self._error((values - mean) ** 2 - variance) / (2.0 * sd),
            "ess": (sd / mcse_mean) ** 2 if mcse_mean else np.nan,
            "r_hat": _r_hat(values),
        }

    def _quantiles(self, values: FloatArray) -> FloatArray:
        """Return quantiles of the signed distribution function, made monotone."""
        if not self.mean_sign > 0:
            return np.full(len(QUANTILES), np.nan)
        ordered, place = np.unique(values.ravel(), return_inverse=True)
        below = np.cumsum(np.bincount(place, self.sign.ravel())) / self.sign.sum()
        # A running maximum from the left and a minimum from the right enclose every monotone fit.
        upper = np.maximum.accumulate(below)
        lower = np.minimum.accumulate(below[::-1])[::-1]
        places = np.searchsorted(0.5 * (upper + lower), QUANTILES)
        return ordered[np.minimum(places, len(ordered) - 1)]

    def _title(self) -> str:
        return (
            f"Mean sign {self.mean_sign:.3g} (MCSE {self.mcse_sign:.2g}): of "
            f"{count(self.sign.size, 'draw')} the signs leave {self.n_effective:,.0f}"
        )

    def __repr__(self) -> str:
        lines = [self._title(), self.table.to_string(float_format="{:.4g}".format)]
        return "\n".join([*lines, *(f"Warning: {text}" for text in self.warnings)])

    def _repr_html_(self) -> str:
        table = self.table.to_html(float_format="{:.4g}".format)
        return as_html(self._title(), table, self.warnings, [])


def signed(
    idata: Any, var_names: str | Sequence[str] | None = None, coords: Any = None
) -> SignedPosterior:
    """Summarise a run whose estimates may be negative, with their signs taken into account.

    The chain of such a run samples with the absolute value of the estimate. The expectation of a
    function h under the posterior is E[sign h] / E[sign], not the mean of h over the draws, which
    is wrong wherever signs are negative.

    Parameters
    ----------
    idata : InferenceData or DataTree
        What ``pm.sample`` returned, of a model with ``apm.Potential(..., sign=...)``.
    var_names : str or list of str, optional
        The parameters to summarise; all if not given.
    coords : dict, optional
        Labels to select along dimensions of the parameters.

    Returns
    -------
    SignedPosterior
        A table and the mean sign; expectations of other functions by its method ``expectation``;
        draws without signs, for figures, by ``resample``. A :class:`UserWarning` is issued where
        the mean sign is near zero.

    References
    ----------
    Lyne, A.-M., Girolami, M., Atchadé, Y., Strathmann, H. and Simpson, D. (2015). On Russian
    roulette estimates for Bayesian inference with doubly-intractable likelihoods.
    doi:10.1214/15-STS523.

    Jacob, P. E. and Thiery, A. H. (2015). On nonnegative unbiased estimators.
    doi:10.1214/15-AOS1311.

    Examples
    --------
    An estimate, 1 - theta u / 2, that is negative now and then:

    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> import pytensor.tensor as pt
    >>> with pm.Model():
    ...     theta = pm.Normal("theta", 2, 1)
    ...     u = apm.StandardNormal("u")
    ...     estimate = 1 - 0.5 * theta * u
    ...     log_abs = pm.math.log(pm.math.abs(estimate))
    ...     log_lik = apm.Potential("log_lik", log_abs, sign=pt.sign(estimate))
    ...     idata = pm.sample(draws=500, tune=200, chains=2, cores=1, random_seed=1, quiet=True)
    >>> posterior = apm.signed(idata)
    >>> bool(posterior.mean_sign < 1), list(posterior.table.index)
    (True, ['theta'])
    """
    found = SignedPosterior(idata, var_names, coords)
    for text in found.warnings:
        warnings.warn(text, UserWarning, stacklevel=2)
    return found


def sign_warnings(mean_sign: float, mcse_sign: float) -> Sequence[str]:
    """Return, in words, that a mean sign is near zero; an empty list if it is not."""
    if mean_sign >= LOW and not mean_sign < SURE * mcse_sign:
        return []
    if mean_sign < -SURE * mcse_sign:
        return [
            f"The mean sign of the estimates is {mean_sign:.2g}, with a Monte Carlo standard error "
            f"of {mcse_sign:.2g}: the estimate has a negative mean, and is not one of a "
            f"likelihood. Look for an error in it, or in its sign. {see('series')}"
        ]
    return [
        f"The mean sign of the estimates is {mean_sign:.2g}, with a Monte Carlo standard error of "
        f"{mcse_sign:.2g}: positive and negative draws cancel, and of all draws only "
        f"{percent(max(mean_sign, 0.0) ** 2)} count. Make the estimate less noisy, by more terms, "
        "more samples for each of them or a better approximation to start from, until it is rarely "
        f"negative; more draws alone help little. {see('series')}"
    ]


def mean_sign_of(idata: Any) -> tuple[float, float] | None:
    """Return the mean sign of a run and its standard error; None if it has no signs."""
    sign = sign_of(idata)
    return None if sign is None else (float(sign.mean()), _mcse(sign))


def _mcse(values: FloatArray) -> float:
    import arviz

    if values.shape[1] < MINIMUM_DRAWS:
        return np.nan
    if np.ptp(values) == 0.0:
        return 0.0
    return float(np.squeeze(arviz.mcse(np.ascontiguousarray(values))))


def _r_hat(values: FloatArray) -> float:
    import arviz

    if values.shape[0] < 2 or values.shape[1] < MINIMUM_DRAWS:
        return np.nan
    return float(np.squeeze(arviz.rhat(np.ascontiguousarray(values))))
