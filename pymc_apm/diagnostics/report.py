"""The health of an estimator: noise, tails, cost, continuity, and what follows from them.

Whether a pseudo-marginal chain will work can be told before it is run, from the distribution of
log f_hat(theta; u) over fresh u at some typical theta. Its standard deviation decides whether
proposals of independent u have a chance; the tail of the weights, whether the chain will stick; its
continuity, whether slice sampling can shrink to something that is accepted.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm

from pymc_apm._compat import tail_index
from pymc_apm.density.target import THETA
from pymc_apm.diagnostics.advice import (
    advice_in_words,
    largest_sd,
    typical_sd,
    warnings_in_words,
)
from pymc_apm.diagnostics.jumps import EVALUATIONS, largest_jump
from pymc_apm.diagnostics.points import Points, choose_points
from pymc_apm.diagnostics.probe import Probe
from pymc_apm.diagnostics.runs import FloatArray
from pymc_apm.diagnostics.words import as_html, count, percent, seconds, with_error
from pymc_apm.errors import ModelError
from pymc_apm.types import Evaluation
from pymc_apm.validation import positive_integer, positive_number

DEFAULT_DRAWS = 10_000
"""With as many, the sd of normal log-estimates has a standard error of 0.7%."""

FEWEST_DRAWS = 100
"""What is taken at each point, however long an estimate takes."""

N_POINTS = 8

N_LINES = 8
"""How many random lines are searched for jumps, along each u and along theta."""

N_RATIOS = 1000
"""Log ratios that are drawn at a jump of the chain, at most."""

N_GROUPS = 20
"""How many parts of the draws are left out, one after the other, to find Monte Carlo errors."""

MINIMUM_FOR_TAIL = 25
"""A tail index needs this many different weights."""


class EstimatorReport:
    """What :func:`estimator_report` found.

    Attributes
    ----------
    dataset : Dataset
        With the dimension ``point``: ``mean``, ``sd`` and ``skewness`` of log f_hat; ``khat``, the
        tail index of the weights f_hat; ``relative_variance`` of f_hat, its variance over its
        squared mean; ``share_zero`` (NaN counts as zero) and ``share_nan``; ``log_estimate``, the
        draws themselves. Each of the first five has a Monte Carlo error, ``sd_error`` and so on.
        ``sd_ratio``, if the points are draws of a chain: the sd of the log ratio of two estimates
        with the same u, there and where the chain went next, with its error. ``seconds`` of an
        evaluation after a ``change`` of theta or of u, and ``seconds_of_stage``, of each part of
        the model by what it depends on. ``jump``, the size of the largest jump found on each
        ``line`` ``along`` theta or some u: 0 if there is none.
    points : Dataset
        The parameters at each ``point``.
    warnings : list of str
        What is wrong, in words; empty if nothing is.
    advice : list of str
        What follows.
    notes : list of str
        How it was measured.
    """

    def __init__(
        self, dataset: Any, points: Any, warnings: list[str], advice: list[str], notes: list[str]
    ) -> None:
        self.dataset = dataset
        self.points = points
        self.warnings = warnings
        self.advice = advice
        self.notes = notes

    @property
    def sd(self) -> float:
        """The median over points of the sd of log f_hat."""
        return typical_sd(self.dataset)

    @property
    def largest_sd(self) -> float:
        """The largest sd of log f_hat at any point."""
        return largest_sd(self.dataset)[0]

    @property
    def worst_point(self) -> dict[str, Any]:
        """The parameters at which the sd of log f_hat is largest."""
        point = self.points.isel(point=largest_sd(self.dataset)[1])
        return {str(name): point[name].values for name in point.data_vars}

    def _table(self) -> Any:
        import pandas

        columns = {
            "mean": "mean of log f_hat",
            "sd": "sd",
            "skewness": "skewness",
            "khat": "k-hat",
            "relative_variance": "var f_hat / mean^2",
        }
        if np.isfinite(self.dataset["sd_ratio"]).any():
            columns["sd_ratio"] = "sd of log ratio"
        table = pandas.DataFrame(
            {
                heading: [
                    with_error(*pair)
                    for pair in zip(
                        self.dataset[key].values, self.dataset[f"{key}_error"].values, strict=True
                    )
                ]
                for key, heading in columns.items()
            }
        )
        if (self.dataset["share_zero"] > 0).any():
            table["zero"] = [percent(float(share)) for share in self.dataset["share_zero"].values]
        table.index.name = "point"
        return table

    def _costs(self) -> list[str]:
        changes = ", ".join(
            f"{seconds(float(self.dataset['seconds'].sel(change=change)))} at a new {change}"
            for change in self.dataset["change"].values
        )
        stages = ", ".join(
            f"{stage} {seconds(float(self.dataset['seconds_of_stage'].sel(stage=stage)))}"
            for stage in self.dataset["stage"].values
        )
        return [f"An evaluation takes {changes}. Stages, by what they depend on: {stages}."]

    def __repr__(self) -> str:
        lines = ["Estimator report", self._table().to_string()]
        lines += [f"Warning: {text}" for text in self.warnings]
        lines += [f"Advice: {text}" for text in self.advice]
        return "\n".join([*lines, *self._costs(), *self.notes])

    def _repr_html_(self) -> str:
        notes = [*self.advice, *self._costs(), *self.notes]
        return as_html("Estimator report", self._table().to_html(), self.warnings, notes)


def estimator_report(
    model: pm.Model,
    idata: Any = None,
    points: Any = None,
    draws: int | None = None,
    random_seed: Any = None,
    *,
    n_points: int = N_POINTS,
    max_seconds: float = 30.0,
    compile_kwargs: dict[str, Any] | None = None,
) -> EstimatorReport:
    """Measure the noise, the tails, the cost and the continuity of a model's estimate.

    Parameters
    ----------
    model : Model
    idata : InferenceData or DataTree, optional
        A run of the model, from whose posterior the points are drawn at which to look.
    points : dict or list of dict, optional
        Such points, instead: a value for each parameter, on the scale on which it was declared.
        With neither, points are drawn from the prior, where the noise is often larger than in the
        posterior, or, if a prior is flat, by a short pilot run.
    draws : int, optional
        Draws of u at each point. By default 10,000, or as many as fit into ``max_seconds``.
    random_seed : int or Generator, optional
    n_points : int
        How many points to draw.
    max_seconds : float
        About how long to take, unless ``draws`` is given: of a costly estimator, fewer draws are
        made at fewer points, but never fewer than 100 at one.
    compile_kwargs : dict, optional
        What to pass on to the compiler.

    Returns
    -------
    EstimatorReport
        Print it. Its ``dataset`` holds the numbers and its ``warnings`` what is wrong, in words.

    Notes
    -----
    Of several estimators in one model, the sum of the log-estimates is looked at, which is what
    samplers see. Estimates of zero have no logarithm: ``mean``, ``sd`` and ``skewness`` are those
    of the others, and ``share_zero`` says how many they are.

    Monte Carlo errors are standard errors by the jackknife, over twentieths of the draws; that of
    the tail index is the asymptotic one. Where tails are heavy, those of the relative variance
    are too small, as it is itself.

    What a noisy estimate costs depends on theta too. With a noise that goes as 1/N, a random walk
    on many parameters is best at an sd of 1.81 (Sherlock et al. 2015), and one that would mix at
    once at 0.92 (Pitt et al. 2012); 1.2 is a compromise with at least 78% of the best efficiency in
    either case (Doucet et al. 2015).

    The test for jumps follows log f_hat along random lines, in each u from one draw towards an
    independent one and in theta from one point to another, and bisects where it changes most. What
    is continuous but very steep is no jump; a rare jump may be missed.

    References
    ----------
    Pitt, M. K., dos Santos Silva, R., Giordani, P. and Kohn, R. (2012). On some properties of
    Markov chain Monte Carlo simulation methods based on the particle filter.
    doi:10.1016/j.jeconom.2012.06.004.

    Doucet, A., Pitt, M. K., Deligiannidis, G. and Kohn, R. (2015). Efficient implementation of
    Markov chain Monte Carlo when using an unbiased likelihood estimator. doi:10.1093/biomet/asu075.

    Sherlock, C., Thiery, A. H., Roberts, G. O. and Rosenthal, J. S. (2015). On the efficiency of
    pseudo-marginal random walk Metropolis algorithms. doi:10.1214/14-AOS1278.

    Vehtari, A., Simpson, D., Gelman, A., Yao, Y. and Gabry, J. (2024). Pareto smoothed importance
    sampling. Journal of Machine Learning Research 25(72).

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     u = apm.StandardNormal("u", shape=64)
    ...     log_weights = pm.logp(pm.Poisson.dist(pm.math.exp(mu + u)), 3)
    ...     log_lik = apm.Potential("log_lik", pm.math.logsumexp(log_weights) - np.log(64))
    >>> report = apm.estimator_report(model, points={"mu": 1.0}, draws=1000, random_seed=1)
    >>> bool(0.05 < report.sd < 0.5), report.warnings
    (True, [])
    """
    rng = np.random.default_rng(random_seed)
    if draws is not None:
        positive_integer("draws of estimator_report", draws, minimum=2)
    positive_integer("n_points of estimator_report", n_points)
    positive_number("max_seconds of estimator_report", max_seconds)
    probe = Probe(model, compile_kwargs)
    chosen = choose_points(model, idata, points, n_points, rng)
    jumps: list[Any] = [*map(probe.to_vector, chosen.jumps)] or [None] * len(chosen.values)
    pairs = zip(chosen.values, jumps, strict=True)
    starts = [(point, probe.start(point, rng), jump) for point, jump in pairs]
    possible = [(point, start, jump) for point, start, jump in starts if start is not None]
    if not possible:
        raise ModelError(
            f"The prior is zero at each of the {count(len(starts), 'point')} at which to look "
            f"({chosen.source})."
        )
    notes = []
    if len(possible) < len(starts):
        notes.append(f"At {count(len(starts) - len(possible), 'point')} the prior was zero.")
    changes = probe.seconds_of_changes(possible[0][1], rng)
    n_draws, n_used = _affordable(draws, len(possible), changes, max_seconds, points is not None)
    possible = possible[:n_used]
    evaluations = [start for _, start, _ in possible]
    dataset = measure(probe, evaluations, n_draws, rng)
    n_ratios = int(np.clip(0.3 * max_seconds / (n_used * sum(changes.values())), 50, N_RATIOS))
    n_ratios = n_ratios if draws is None else min(draws, N_RATIOS)
    ratios = [_sd_of_ratio(probe, start, jump, n_ratios, rng) for _, start, jump in possible]
    for column, name in enumerate(("sd_ratio", "sd_ratio_error")):
        dataset[name] = ("point", [ratio[column] for ratio in ratios])
    dataset = dataset.assign(
        seconds=("change", list(changes.values()), {"units": "s"}),
        **_stages(probe, evaluations[0]),
        **_jumps(probe, evaluations, rng, changes, max_seconds if draws is None else np.inf),
    ).assign_coords(change=list(changes))
    is_clamped = all(probe.is_clamped(evaluation) for evaluation in evaluations)
    where = f"{count(len(possible), 'point')} ({chosen.source})"
    notes.insert(0, f"{where}, {count(n_draws, 'draw')} of u at each.")
    if draws is None and (n_draws < DEFAULT_DRAWS or n_used < len(starts)):
        notes.append(
            f"Fewer draws or points than usual, because an estimate takes {seconds(changes['u'])} "
            f"and max_seconds is {max_seconds:g}."
        )
    return EstimatorReport(
        dataset,
        _as_dataset(Points(chosen.source, [point for point, *_ in possible])),
        warnings_in_words(dataset, is_clamped),
        advice_in_words(dataset, has_seed=len(probe.paths) < len(probe.u_names)),
        notes,
    )


def _affordable(
    draws: int | None,
    n_points: int,
    changes: dict[str, float],
    max_seconds: float,
    are_given: bool,
) -> tuple[int, int]:
    """Return how many draws to make at how many points."""
    if draws is not None:
        return draws, n_points
    affordable = 0.7 * max_seconds / changes["u"]
    n_draws = int(np.clip(affordable / n_points, FEWEST_DRAWS, DEFAULT_DRAWS))
    if are_given:
        return n_draws, n_points
    return n_draws, int(np.clip(affordable / n_draws, 1, n_points))


def measure(
    probe: Probe, evaluations: list[Evaluation], draws: int, rng: np.random.Generator
) -> Any:
    """Return the distribution of log f_hat at some points, as a dataset."""
    import xarray

    samples = [probe.sample(evaluation, draws, rng) for evaluation in evaluations]
    log_estimates = np.array([sample.log_estimates for sample in samples])
    rows = [_with_errors(values) for values in log_estimates]
    return xarray.Dataset(
        {
            **{name: ("point", [row[name] for row in rows]) for name in rows[0]},
            "share_nan": ("point", [sample.n_nan / draws for sample in samples]),
            "log_estimate": (("point", "draw"), log_estimates),
        },
        coords={"point": np.arange(len(samples)), "draw": np.arange(draws)},
    )


def _sd_of_ratio(
    probe: Probe, start: Evaluation, jump: FloatArray | None, draws: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the sd of the log ratio at a jump of theta, with its error; NaN if there is none."""
    if jump is None or np.array_equal(jump, probe.target.value(start, THETA)):
        return np.nan, np.nan
    ratios = probe.sample_ratios(start, jump, draws, rng)
    if ratios.size < 2:
        return np.nan, np.nan
    return float(ratios.std(ddof=1)), jackknife(ratios, lambda kept: kept.std(ddof=1))


def jackknife(values: FloatArray, function: Callable[[FloatArray], Any]) -> Any:
    """Return the standard error of a function of independent draws, by leaving out groups."""
    groups = np.array_split(np.arange(values.size), min(N_GROUPS, values.size))
    found = np.array([function(np.delete(values, group)) for group in groups])
    return np.sqrt((len(groups) - 1) * found.var(axis=0))


def _with_errors(log_estimates: FloatArray) -> dict[str, float]:
    """Describe log-estimates and their tail, each number with its Monte Carlo error."""
    described = _describe(log_estimates)
    names = [name for name in described if name != "share_zero"]
    with np.errstate(invalid="ignore"):
        errors = jackknife(log_estimates, lambda kept: [_describe(kept)[name] for name in names])
    described |= {f"{name}_error": float(e) for name, e in zip(names, errors, strict=True)}
    return described | _tail(log_estimates[log_estimates > -np.inf], described["sd"])


def _tail(log_estimates: FloatArray, sd: float) -> dict[str, float]:
    """Return the tail index, and its error, (1 + k) / sqrt(m) from a tail of m weights.

    That is the error of a fit without the weak prior that the tail index has, worth ten weights.
    """
    if not sd > 0.0 or np.unique(log_estimates).size < MINIMUM_FOR_TAIL:
        return {"khat": np.nan, "khat_error": np.nan}
    khat, n = tail_index(log_estimates), log_estimates.size
    n_tail = min(0.2 * n, 3.0 * np.sqrt(n))
    error = (1.0 + max(khat, 0.0)) / np.sqrt(n_tail) * n_tail / (n_tail + 10.0)
    return {"khat": khat, "khat_error": float(error)}


def _describe(log_estimates: FloatArray) -> dict[str, float]:
    """Describe the distribution of log-estimates, and of the weights that they are the logs of."""
    above_zero = log_estimates[log_estimates > -np.inf]
    described = dict.fromkeys(("mean", "sd", "skewness", "relative_variance"), np.nan)
    described["share_zero"] = 1.0 - above_zero.size / log_estimates.size
    if above_zero.size < 2:
        return described
    centred = above_zero - above_zero.mean()
    sd = float(above_zero.std(ddof=1))
    weights = np.exp(log_estimates - above_zero.max())
    described["mean"] = float(above_zero.mean())
    # What is left of rounding is not noise.
    is_exact = sd <= 1e-12 * max(1.0, abs(described["mean"]))
    described["sd"] = 0.0 if is_exact else sd
    described["skewness"] = (
        0.0 if is_exact else float(np.mean(centred**3) / np.mean(centred**2) ** 1.5)
    )
    described["relative_variance"] = float(weights.var(ddof=1) / weights.mean() ** 2)
    return described


def _stages(probe: Probe, evaluation: Evaluation) -> dict[str, Any]:
    times = probe.seconds_of_stages(evaluation)
    return {
        "seconds_of_stage": ("stage", list(times.values()), {"units": "s"}),
        "stage": list(times),
    }


def _jumps(
    probe: Probe,
    evaluations: list[Evaluation],
    rng: np.random.Generator,
    changes: dict[str, float],
    max_seconds: float,
) -> dict[str, Any]:
    """Search random lines for jumps: one of each kind at least, more while there is time."""
    layout = probe.target.layout
    of_theta = "theta" if "theta" not in probe.paths else "parameters"
    names = [of_theta] if layout.size and not layout.discrete.all() else []
    names += probe.paths
    sizes = np.full((len(names), N_LINES), np.nan)
    deadline = time.perf_counter() + 0.3 * max_seconds
    for line in range(N_LINES):
        if line > 0 and time.perf_counter() > deadline - EVALUATIONS * sum(changes.values()):
            break
        evaluation = probe.fresh_u(evaluations[line % len(evaluations)], rng)
        for row, name in enumerate(names):
            if name == of_theta:
                function = probe.along_theta(evaluation, _elsewhere(probe, evaluations, line, rng))
            else:
                function = probe.along_u(evaluation, name, rng)
            sizes[row, line] = largest_jump(function).size
    return {"jump": (("along", "line"), sizes), "along": names, "line": np.arange(N_LINES)}


def _elsewhere(
    probe: Probe, evaluations: list[Evaluation], line: int, rng: np.random.Generator
) -> FloatArray:
    """Return parameters towards which to go: those of another point, or some nearby."""
    theta: FloatArray = probe.target.value(evaluations[line % len(evaluations)], THETA)
    if len(evaluations) > 1:
        other: FloatArray = probe.target.value(evaluations[(line + 1) % len(evaluations)], THETA)
        if not np.array_equal(other, theta):
            return other
    scale = 0.1 * np.maximum(np.abs(theta), 1.0)
    return theta + scale * rng.standard_normal(theta.size)


def _as_dataset(points: Points) -> Any:
    import xarray

    variables = {}
    for name in points.values[0]:
        values = np.array([point[name] for point in points.values])
        dims = [f"{name}_dim_{i}" for i in range(values.ndim - 1)]
        variables[name] = (("point", *dims), values)
    return xarray.Dataset(variables, coords={"point": np.arange(len(points.values))})
