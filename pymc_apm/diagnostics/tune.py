"""How many particles, or importance draws? Measure several numbers of them, propose one.

With more of them, an estimate is less noisy and costs more. For methods that propose u
independently, a good compromise is known: a standard deviation of log f_hat of about 1.2 (Doucet et
al. 2015), between 0.92 and 1.81, which are best where theta itself would mix at once and where it
takes a random walk on many parameters. Slice updates of u tolerate more noise, how much depends on
the model: short pilot runs tell.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm

from pymc_apm.diagnostics.advice import HEAVY_TAIL, TOLERATED_SD, largest_sd, typical_sd
from pymc_apm.diagnostics.compare import summary
from pymc_apm.diagnostics.efficiency import TARGET_SD, size_factor
from pymc_apm.diagnostics.points import Points, choose_points, pilot_points, pilot_run
from pymc_apm.diagnostics.probe import Probe
from pymc_apm.diagnostics.report import measure
from pymc_apm.diagnostics.runs import posterior_draws, statistic
from pymc_apm.diagnostics.words import as_html
from pymc_apm.errors import ModelError
from pymc_apm.steps import APMSlice
from pymc_apm.validation import one_of, positive_integer, positive_number

FEW = 100
"""Below this effective sample size of a pilot run, its efficiency is hardly known."""


class EstimatorTuning:
    """What :func:`tune_estimator` found.

    Attributes
    ----------
    table : DataFrame
        A row for each size: the typical ``sd`` of log f_hat, with its Monte Carlo error
        ``sd_error``, the ``largest_sd`` at any point, and the typical tail index ``khat``; the
        seconds of an evaluation at new parameters and at a new u; for ``method="slice"``, the least
        effective sample size ``ess`` of the pilot run, the ``seconds`` that its evaluations take,
        and the ratio of the two.
    method : str
    proposal : int
        The size proposed.
    target_sd : float
        The sd of log f_hat aimed at, by ``method="independence"``.
    warnings, advice : list of str
    """

    def __init__(
        self,
        table: Any,
        method: str,
        proposal: int,
        target_sd: float,
        warnings: list[str],
        advice: list[str],
    ) -> None:
        self.table = table
        self.method = method
        self.proposal = proposal
        self.target_sd = target_sd
        self.warnings = warnings
        self.advice = advice

    def plot(self, ax: Any = None, figsize: Any = None) -> Any:
        """Plot noise, and cost or efficiency, against the size.

        Parameters
        ----------
        ax : two axes, optional
        figsize : (float, float), optional

        Returns
        -------
        ndarray of axes
        """
        from pymc_apm.plots.tuning import plot_tuning

        return plot_tuning(self, ax, figsize)

    def _formatted(self) -> Any:
        return self.table.map(lambda value: f"{value:.3g}")

    def __repr__(self) -> str:
        lines = [f"Tuning of the estimator, method={self.method!r}", self._formatted().to_string()]
        lines += [f"Warning: {text}" for text in self.warnings]
        return "\n".join([*lines, *self.advice])

    def _repr_html_(self) -> str:
        return as_html(
            f"Tuning of the estimator, method={self.method!r}",
            self._formatted().to_html(),
            self.warnings,
            self.advice,
        )


def tune_estimator(
    build_model: Callable[[int], pm.Model],
    sizes: Sequence[int] = (4, 16, 64, 256),
    method: Literal["independence", "slice"] = "independence",
    *,
    idata: Any = None,
    points: Any = None,
    target_sd: float = TARGET_SD,
    draws: int = 2000,
    n_points: int = 4,
    pilot_draws: int = 500,
    step: Callable[[], Any] | None = None,
    random_seed: Any = None,
    compile_kwargs: dict[str, Any] | None = None,
) -> EstimatorTuning:
    """Choose the number of particles, or importance draws, of an estimator.

    Parameters
    ----------
    build_model : callable
        ``build_model(size)`` returns the model whose estimator has that many of them. The
        parameters must be the same for all sizes.
    sizes : sequence of int
        The sizes to measure.
    method : {"independence", "slice"}
        Whether u will be proposed independently (:class:`~pymc_apm.PseudoMarginalMH`, or
        ``u_update="independence"``) or updated by slice sampling. For the former, the size is
        proposed at which the sd of log f_hat is ``target_sd``; for the latter, that of ``sizes``
        which has the most effective draws per second in short pilot runs.
    idata : InferenceData or DataTree, optional
        A run of the model with any size, from whose posterior the points are drawn at which to
        measure the noise.
    points : dict or list of dict, optional
        Such points, instead. With neither, they are drawn by a pilot run of the largest size.
    target_sd : float
        The sd of log f_hat to aim at.
    draws : int
        Draws of u at each point.
    n_points : int
        How many points to draw.
    pilot_draws : int
        Draws, after as many of tuning, of each of the two chains of a pilot run.
    step : callable, optional
        Makes the step of the pilot runs; :class:`~pymc_apm.APMSlice` by default.
    random_seed : int or Generator, optional
    compile_kwargs : dict, optional
        What to pass on to the compiler of the log density.

    Returns
    -------
    EstimatorTuning
        With a ``table``, a ``proposal`` and a method ``plot()``.

    Notes
    -----
    The time of a pilot run is that of its evaluations: the number of them, at new parameters and at
    new u, times what each takes by itself. Compiling does not count.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> def build_model(size):
    ...     with pm.Model() as model:
    ...         mu = pm.Normal("mu")
    ...         u = apm.StandardNormal("u", shape=(size, 20))
    ...         log_weights = pm.logp(pm.Poisson.dist(pm.math.exp(mu + u)), np.arange(20) % 5)
    ...         log_means = pm.math.logsumexp(log_weights, axis=0) - np.log(size)
    ...         apm.Potential("log_lik", log_means)
    ...     return model
    >>> tuning = apm.tune_estimator(build_model, [8, 64], points={"mu": 0.3}, random_seed=1)
    >>> 8 < tuning.proposal < 64
    True
    """
    one_of("method of tune_estimator", method, "independence", "slice")
    checked = checked_sizes(sizes, "tune_estimator")
    positive_number("target_sd of tune_estimator", target_sd)
    positive_integer("draws of tune_estimator", draws, minimum=100)
    positive_integer("pilot_draws of tune_estimator", pilot_draws, minimum=20)
    rng = np.random.default_rng(random_seed)
    models = {size: built(build_model, size, "tune_estimator") for size in checked}
    largest = models[checked[-1]]
    if idata is None and points is None:
        chosen = pilot_points(largest, n_points, rng)
    else:
        chosen = choose_points(largest, idata, points, n_points, rng)
    rows = []
    for size, model in models.items():
        measured = _measured(model, chosen, draws, rng, compile_kwargs)
        if method == "slice":
            measured |= _piloted(model, step or APMSlice, pilot_draws, measured, rng)
        rows.append({"size": size, **measured})
    return _judged(rows, method, target_sd)


def checked_sizes(sizes: Sequence[int], caller: str) -> list[int]:
    """Check an option that is a list of sizes of an estimator."""
    if isinstance(sizes, str) or not isinstance(sizes, Sequence | np.ndarray) or len(sizes) == 0:
        raise ModelError(f"sizes of {caller} must be a list of integers, got {sizes!r}.")
    return sorted({positive_integer(f"Each of sizes of {caller}", size) for size in sizes})


def built(build_model: Callable[[int], pm.Model], size: int, caller: str) -> pm.Model:
    """Build the model whose estimator has a given size."""
    if not callable(build_model):
        raise ModelError(
            f"build_model of {caller} must be a function that returns a pm.Model for a given "
            f"size, got {type(build_model).__name__}."
        )
    model = build_model(size)
    if not isinstance(model, pm.Model):
        raise ModelError(
            f"build_model({size}) must return a pm.Model, but returned {type(model).__name__}."
        )
    return model


def _measured(
    model: pm.Model,
    points: Points,
    draws: int,
    rng: np.random.Generator,
    compile_kwargs: dict[str, Any] | None,
) -> dict[str, float]:
    probe = Probe(model, compile_kwargs)
    starts = [probe.start(point, rng) for point in points.values]
    evaluations = [start for start in starts if start is not None]
    if not evaluations:
        raise ModelError(f"The prior is zero at all points ({points.source}).")
    dataset = measure(probe, evaluations, draws, rng)
    seconds = probe.seconds_of_changes(evaluations[0], rng)
    return {
        "sd": typical_sd(dataset),
        "sd_error": float(np.median(dataset["sd_error"])),
        "largest_sd": largest_sd(dataset)[0],
        "khat": float(np.median(dataset["khat"])),
        "seconds_theta": seconds["theta"],
        "seconds_u": seconds["u"],
    }


def _piloted(
    model: pm.Model,
    step: Callable[[], Any],
    draws: int,
    measured: dict[str, float],
    rng: np.random.Generator,
) -> dict[str, float]:
    idata = pilot_run(model, step, draws, rng)
    n_evals, n_theta_evals = statistic(idata, "n_evals"), statistic(idata, "n_theta_evals")
    if n_evals is None or n_theta_evals is None:
        raise ModelError("The step of a pilot run must be one of pymc_apm.")
    least = min(
        summary(variable.values[..., element])["ess_bulk"]
        for variable in posterior_draws(idata)
        for element in range(variable.values.shape[-1])
    )
    at_theta, all_evals = float(n_theta_evals.sum()), float(n_evals.sum())
    seconds = (
        at_theta * measured["seconds_theta"]
        + max(all_evals - at_theta, 0.0) * measured["seconds_u"]
    )
    return {"ess": least, "seconds": seconds, "ess_per_second": least / seconds}


class _Proposal(NamedTuple):
    size: int
    why: str


def _judged(rows: list[dict[str, Any]], method: str, target_sd: float) -> EstimatorTuning:
    import pandas

    table = pandas.DataFrame(rows).set_index("size")
    warnings = []
    if method == "slice":
        proposal = _fastest(table)
        if table["ess"].min() < FEW:
            warnings.append(
                f"The least ESS of a pilot run is {table['ess'].min():.0f}: the efficiencies are "
                "known roughly at best. Take more pilot_draws to tell similar sizes apart."
            )
    else:
        proposal = _at_target(table, target_sd)
        largest = target_sd * float((table["largest_sd"] / table["sd"]).max())
        if largest > max(TOLERATED_SD, target_sd):
            warnings.append(
                f"Where the sd is {target_sd:g} as a rule, it is up to {largest:.2g} at some "
                "points: chains that propose u independently may stick there."
            )
    if (table["khat"] > HEAVY_TAIL).all():
        warnings.append(
            f"The weights have heavy tails at every size (k-hat above {HEAVY_TAIL}): the sd of "
            "log f_hat says little then, and more draws alone will not help."
        )
    return EstimatorTuning(table, method, proposal.size, target_sd, warnings, [proposal.why])


def _at_target(table: Any, target_sd: float) -> _Proposal:
    """Propose the size at which the sd is as wanted, by 1/N from the nearest one measured."""
    known = table[(table["sd"] > 0) & np.isfinite(table["sd"])]
    if known.empty:
        raise ModelError("The estimates have no noise at these points, or are all zero.")
    nearest = int(np.argmin(np.abs(np.log(known["sd"].to_numpy() / target_sd))))
    size, sd = int(known.index[nearest]), float(known["sd"].iloc[nearest])
    proposed = max(1, int(np.ceil(size * size_factor(sd, target_sd))))
    return _Proposal(
        proposed,
        f"Proposed: {proposed}, where the sd of log f_hat would be {target_sd:g} (it is {sd:.2g} "
        f"with {size}, and its square goes as 1/size).",
    )


def _fastest(table: Any) -> _Proposal:
    best = int(table["ess_per_second"].idxmax())
    row = table.loc[best]
    return _Proposal(
        best,
        f"Proposed: {best}, which has the most effective draws for the time of its evaluations "
        f"({row['ess_per_second']:.3g} per second, with an sd of log f_hat of {row['sd']:.2g}).",
    )
