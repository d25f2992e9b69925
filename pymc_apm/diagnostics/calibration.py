"""Simulation-based calibration: an estimator, a model and a sampler checked by simulated data.

Parameters are drawn from the prior, data are simulated from them, and the posterior of these data
is sampled. If all is right, the rank of a parameter among the draws of its posterior is uniform
(Cook, Gelman and Rubin 2006; Talts et al. 2018). A biased estimate, a wrong likelihood or a sampler
that does not converge makes other ranks.
"""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

from pymc_apm.diagnostics.compare import summary
from pymc_apm.diagnostics.points import Point, prior_points
from pymc_apm.diagnostics.runs import FloatArray, posterior_draws, refuse_signs
from pymc_apm.diagnostics.words import as_html, count, factor
from pymc_apm.errors import ModelError, add_context, describe_value, see
from pymc_apm.validation import positive_integer

FALSE_ALARM = 1e-3
"""How often a method that is right is said to be wrong."""

FEWEST = 20
"""Simulations below which nothing would be seen."""


class Calibration:
    """What :func:`calibrate` found.

    Attributes
    ----------
    calibrated : bool
        Whether all ranks are uniform, as far as can be seen, with a false alarm rate of 1 in 1000.
    table : DataFrame
        A row for each parameter: the mean of its ranks, from 0 to 1, and how many standard errors
        ``z_mean`` it is away from 1/2; ``z_spread``, the same for the mean squared distance
        of ranks from 1/2, positive if posteriors are too narrow; ``p_value`` of a
        Kolmogorov-Smirnov test; the least effective sample size ``ess`` of all posteriors.
    ranks : Dataset
        The ranks of each parameter, from 0 to 1, with the dimension ``draw`` for simulations and a
        ``chain`` of length one, which ArviZ likes.
    truths : list of dict
        The parameters of each simulation.
    limit : float
        The absolute value of a z from which on it counts.
    warnings, notes : list of str
    """

    def __init__(
        self,
        calibrated: bool,
        table: Any,
        ranks: Any,
        truths: list[Point],
        limit: float,
        warnings: list[str],
        notes: list[str],
    ) -> None:
        self.calibrated = calibrated
        self.table = table
        self.ranks = ranks
        self.truths = truths
        self.limit = limit
        self.warnings = warnings
        self.notes = notes

    def plot(self, **options: Any) -> Any:
        """Plot how far the ranks of each parameter are from uniform, by ArviZ.

        Returns
        -------
        What the function of ArviZ returns: axes (ArviZ 0.x) or a collection of plots (1.x).
        """
        from pymc_apm.plots.calibration import plot_calibration

        return plot_calibration(self.ranks, **options)

    @property
    def _title(self) -> str:
        return f"Calibration: {'no fault seen' if self.calibrated else 'NOT calibrated'}"

    def _formatted(self) -> Any:
        return self.table.map(lambda value: f"{value:.3g}")

    def __repr__(self) -> str:
        lines = [self._title, self._formatted().to_string()]
        lines += [f"Warning: {text}" for text in self.warnings]
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        return as_html(self._title, self._formatted().to_html(), self.warnings, self.notes)


def calibrate(
    build_model: Callable[[Any], pm.Model],
    simulate: Callable[[Point, np.random.Generator], Any],
    *,
    observed: Any,
    simulations: int = 100,
    draws: int = 1000,
    tune: int = 1000,
    n_ranked: int = 50,
    step: Callable[[], Any] | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    **options: Any,
) -> Calibration:
    """Check a model, its estimator and its sampler against simulated data.

    Parameters
    ----------
    build_model : callable
        ``build_model(data)`` returns the model of a data set, with its estimator.
    simulate : callable
        ``simulate(point, rng)`` returns a data set for a point, a dict with a value for each
        parameter. It must simulate what the likelihood says: also the exact model, not the
        estimate of it.
    observed : object
        Any data set that ``build_model`` takes, your own for example. Of its model the prior is
        used, and nothing else.
    simulations : int
        How many data sets to simulate.
    draws, tune : int
        The length of the chain for each of them.
    n_ranked : int
        How many of the draws a parameter is ranked among: evenly spaced ones, so few that they are
        as good as independent.
    step : callable, optional
        Makes the step; by default it is left to ``pm.sample``.
    random_seed : int or Generator, optional
    progressbar : bool
    **options
        For ``pm.sample``.

    Returns
    -------
    Calibration
        Print it, and look at ``plot()``. ``calibrated`` is the verdict.

    Notes
    -----
    For each parameter, the mean of the ranks, their spread and their whole distribution are
    tested. Ranks that are too large or too small on average mean that posteriors are on the wrong
    side; ranks near 0 and 1, that they are too narrow; ranks near 1/2, that they are too
    wide. Chains that have not converged do that too: their least effective sample size is in the
    table.

    Parameters are drawn from the priors as they are declared. What restricts them further, a
    :class:`pymc.Potential` or a transform such as ``ordered``, is not taken into account, and makes
    a right method look wrong.

    References
    ----------
    Talts, S., Betancourt, M., Simpson, D., Vehtari, A. and Gelman, A. (2018). Validating Bayesian
    inference algorithms with simulation-based calibration. arXiv:1804.06788.

    Cook, S. R., Gelman, A. and Rubin, D. B. (2006). Validation of software for Bayesian models
    using posterior quantiles. Journal of Computational and Graphical Statistics 15(3).

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> def build_model(y):
    ...     with pm.Model() as model:
    ...         mu = pm.Normal("mu")
    ...         u = apm.StandardNormal("u", shape=(8, 3))
    ...         log_weights = pm.logp(pm.Normal.dist(mu + u, 1.0), y)
    ...         apm.Potential("log_lik", apm.estimators.log_mean_exp(log_weights, axis=0))
    ...     return model
    >>> def simulate(point, rng):
    ...     return rng.normal(point["mu"], 2**0.5, size=3)
    >>> found = apm.calibrate(
    ...     build_model,
    ...     simulate,
    ...     observed=[0.0, 0.0, 0.0],
    ...     simulations=20,
    ...     draws=100,
    ...     tune=100,
    ...     n_ranked=10,
    ...     random_seed=1,
    ...     progressbar=False,
    ... )
    >>> found.calibrated
    True
    """
    positive_integer("simulations of calibrate", simulations, minimum=FEWEST)
    positive_integer("n_ranked of calibrate", n_ranked)
    positive_integer("draws of calibrate", draws, minimum=n_ranked)
    positive_integer("tune of calibrate", tune, minimum=0)
    rng = np.random.default_rng(random_seed)
    prior = _checked(build_model(observed))
    try:
        truths = prior_points(prior, simulations, rng)
    except NotImplementedError:
        raise ModelError(
            "calibrate draws parameters from the prior, but a prior of the model is flat."
        ) from None
    options = {"chains": 1, "cores": 1, "draws": draws, "tune": tune} | options
    found = []
    for truth in _tracked(truths, progressbar):
        try:
            model = _checked(build_model(simulate(truth, rng)))
            found.append(_ranked(model, truth, n_ranked, step, rng, options))
        except Exception as error:
            told = ", ".join(f"{name} = {describe_value(value)}" for name, value in truth.items())
            add_context(error, f"The data were simulated with {told}.")
            raise
    return _judged(found, truths, n_ranked)


def _checked(model: Any) -> pm.Model:
    if not isinstance(model, pm.Model):
        raise ModelError(
            "build_model of calibrate must return a pm.Model for a data set, but returned "
            f"{type(model).__name__}."
        )
    return model


def _tracked(points: list[Point], is_wanted: bool) -> Any:
    if not is_wanted:
        return points
    from rich.progress import track

    return track(points, description="Simulated data sets")


class _Ranks(NamedTuple):
    """Ranks by variable, each with the shape of the variable, and the least ESS of each."""

    ranks: dict[str, FloatArray]
    ess: dict[str, FloatArray]


def _ranked(
    model: pm.Model,
    truth: Point,
    n_ranked: int,
    step: Callable[[], Any] | None,
    rng: np.random.Generator,
    options: dict[str, Any],
) -> _Ranks:
    """Sample the posterior of a data set, and rank the parameters that it was made with."""
    with model:
        idata = pm.sample(
            step=None if step is None else step(),
            random_seed=int(rng.integers(2**31)),
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
            **options,
        )
    refuse_signs(idata, "calibrate")
    ranks, ess = {}, {}
    for variable in posterior_draws(idata, list(truth)):
        values = variable.values  # chains, draws, elements
        every = np.linspace(0, values.shape[1] - 1, n_ranked).astype(int)
        among = values[0, every]
        here = np.ravel(truth[variable.name])
        below = (among < here).sum(axis=0)
        # Ties, of discrete parameters, are broken at random; so is the place within a step.
        ties = (among == here).sum(axis=0)
        place = below + rng.random(here.size) * (ties + 1)
        shape = np.shape(truth[variable.name])
        ranks[variable.name] = (place / (n_ranked + 1)).reshape(shape)
        ess[variable.name] = np.array(
            [summary(values[..., i])["ess_bulk"] for i in range(here.size)]
        ).reshape(shape)
    return _Ranks(ranks, ess)


def _judged(found: list[_Ranks], truths: list[Point], n_ranked: int) -> Calibration:
    import pandas

    ranks = {name: np.array([one.ranks[name] for one in found]) for name in found[0].ranks}
    ess = {name: np.array([one.ess[name] for one in found]) for name in found[0].ess}
    rows = {}
    for name, values in ranks.items():
        for index in np.ndindex(values.shape[1:]):
            label = f"{name}[{', '.join(map(str, index))}]" if index else name
            at = (slice(None), *index)
            rows[label] = _tested(values[at]) | {"ess": float(np.nanmin(ess[name][at]))}
    table = pandas.DataFrame.from_dict(rows, orient="index")
    each = FALSE_ALARM / (3 * len(rows))
    limit = -NormalDist().inv_cdf(0.5 * each)
    wrong = table[
        (table["z_mean"].abs() > limit)
        | (table["z_spread"].abs() > limit)
        | (table["p_value"] < each)
    ]
    low = float(np.mean([min(np.nanmin(e) for e in one.ess.values()) < n_ranked for one in found]))
    detectable = limit / math.sqrt(12 * len(found)) / 0.282  # of a normal posterior
    return Calibration(
        wrong.empty,
        table,
        _as_dataset(ranks),
        truths,
        limit,
        [*_on_ranks(wrong, limit), *_on_ess(low, n_ranked)],
        [
            f"{count(len(found), 'simulation')}, ranks among {count(n_ranked, 'draw')}: a |z| "
            f"above {limit:.1f} comes from a method that is right once in {1 / FALSE_ALARM:.0f} "
            "calibrations.",
            f"Posteriors that are off by {factor(detectable)} of their standard deviations would "
            "have been seen.",
        ],
    )


def _as_dataset(ranks: dict[str, FloatArray]) -> Any:
    """Lay ranks out as ArviZ has draws: one chain, a draw for each simulation."""
    import xarray

    dims = {
        name: ["chain", "draw", *(f"{name}_dim_{i}" for i in range(values.ndim - 1))]
        for name, values in ranks.items()
    }
    dataset = xarray.Dataset({name: (dims[name], values[None]) for name, values in ranks.items()})
    return dataset.assign_coords({dim: np.arange(n) for dim, n in dataset.sizes.items()})


def _tested(ranks: FloatArray) -> dict[str, float]:
    """Test whether ranks are uniform: by their mean, their spread and all that there is."""
    from scipy import stats  # which takes long to import

    n = len(ranks)
    return {
        "mean": float(ranks.mean()),
        "z_mean": float((ranks.mean() - 0.5) * math.sqrt(12 * n)),
        "z_spread": float((np.mean((ranks - 0.5) ** 2) - 1 / 12) * math.sqrt(180 * n)),
        "p_value": float(stats.kstest(ranks, "uniform").pvalue),
    }


def _on_ranks(wrong: Any, limit: float) -> list[str]:
    found = []
    for name, row in wrong.iterrows():
        if abs(row["z_mean"]) > limit:
            side = "small" if row["z_mean"] > 0 else "large"
            text = f"draws of the posterior are too {side}"
        elif abs(row["z_spread"]) > limit:
            text = f"posteriors are too {'narrow' if row['z_spread'] > 0 else 'wide'}"
        else:
            text = "ranks are not uniform"
        found.append(f"{name}: {text}. Look at plot(). {see('diagnosing')}")
    return found


def _on_ess(share: float, n_ranked: int) -> list[str]:
    if share == 0.0:
        return []
    return [
        f"In {100 * share:.0f}% of the simulations the effective sample size is below {n_ranked}, "
        "the number of draws that a parameter is ranked among: ranks are too often near 0 and 1 "
        "then. Take more draws, or a smaller n_ranked."
    ]
