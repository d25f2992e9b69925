"""What an estimator does: along a parameter, over u, in the tail."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

from pymc_apm._compat import tail_index
from pymc_apm.diagnostics.advice import HEAVY_TAIL
from pymc_apm.diagnostics.points import Point, choose_points
from pymc_apm.diagnostics.probe import Probe
from pymc_apm.diagnostics.report import MINIMUM_FOR_TAIL
from pymc_apm.diagnostics.runs import FloatArray
from pymc_apm.errors import ModelError
from pymc_apm.plots.style import ALARM, COLOURS, make_axes, tidy
from pymc_apm.validation import positive_integer, positive_number

GRID = 61
"""Values of the parameter along which the estimate is followed."""

N_U = 200
"""Draws of u that are followed along the parameter, at most."""

N_LINES = 8
"""How many of them are drawn as lines."""

FEWEST_U = 20


class _Slice(NamedTuple):
    """The log-estimate along a parameter, for each of several u: shape (u, value)."""

    values: FloatArray
    log_estimates: FloatArray
    label: str
    at: float


def plot_estimator(
    model: pm.Model,
    idata: Any = None,
    points: Any = None,
    var_names: str | Sequence[str] | None = None,
    coords: Any = None,
    draws: int = 5000,
    random_seed: Any = None,
    ax: Any = None,
    figsize: tuple[float, float] | None = None,
    *,
    max_seconds: float = 20.0,
    compile_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Plot the log-estimate along a parameter, its distribution over u, and the tail of f_hat.

    The first panel follows log f_hat(theta; u) along one parameter, the others clamped, for several
    u: the noise is how far the lines are apart, its least and largest sd are in the title,
    and lines that are smooth and alike are what makes clamping u pay. The second shows log f_hat
    over fresh u at one point, against a normal distribution of the same mean and sd. The third
    shows how many estimates exceed a multiple of their mean: a line flatter than the dotted one (a
    tail index above 0.7) is a heavy tail.

    Parameters
    ----------
    model : Model
    idata : InferenceData or DataTree, optional
        A run of the model, from whose posterior the point and the range of the parameter are taken.
    points : dict or list of dict, optional
        Such points, instead: the second and third panel are at the first of them, the first panel
        spans all of them. With neither, as in :func:`pymc_apm.estimator_report`.
    var_names : str, optional
        The parameter of the first panel; the first of the model if not given.
    coords : dict, optional
        Which element of an array-valued parameter, by label along its dimensions; the first if not
        given. Dimensions without coordinates are numbered from 0.
    draws : int
        Draws of u for the second and the third panel.
    random_seed : int or Generator, optional
    ax : three axes, optional
    figsize : (float, float), optional
    max_seconds : float
        About how long to take: of a costly estimator, fewer draws are shown.
    compile_kwargs : dict, optional

    Returns
    -------
    ndarray of axes

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model() as model:
    ...     theta = pm.Normal("theta")
    ...     u = apm.StandardNormal("u")
    ...     log_lik = apm.Potential("log_lik", -(theta**2) - u * theta)
    >>> axes = apm.plot_estimator(model, points={"theta": 1.0}, draws=500, random_seed=1)
    >>> axes[0].get_xlabel()
    'theta'
    """
    positive_integer("draws of plot_estimator", draws, minimum=MINIMUM_FOR_TAIL)
    positive_number("max_seconds of plot_estimator", max_seconds)
    rng = np.random.default_rng(random_seed)
    probe = Probe(model, compile_kwargs)
    found = choose_points(model, idata, points, 200, rng)
    name, index, label = _element(model, found.values[0], var_names, coords)
    values = np.array([float(np.asarray(point[name])[index]) for point in found.values])
    point = found.values[0]
    if points is None:
        point = found.values[int(np.argmin(np.abs(values - np.median(values))))]
    evaluation = probe.start(point, rng)
    if evaluation is None:
        raise ModelError(f"The prior is zero at the point to look at, {dict(point)}.")
    started = time.perf_counter()
    probe.fresh_u(evaluation, rng)
    seconds = time.perf_counter() - started
    n_u = int(np.clip(0.5 * max_seconds / (GRID * seconds), FEWEST_U, N_U))
    draws = int(np.clip(0.5 * max_seconds / seconds, MINIMUM_FOR_TAIL, draws))
    along = _follow(probe, point, name, index, _range(values), n_u, rng, label)
    log_estimates = probe.sample(evaluation, draws, rng).log_estimates
    above_zero = log_estimates[log_estimates > -np.inf]
    if above_zero.size < MINIMUM_FOR_TAIL or np.ptp(above_zero) == 0:
        raise ModelError(
            "The estimate does not vary with u at this point, or is zero: there is no distribution "
            "to plot. Give another point with points=."
        )
    axes = make_axes(ax, figsize, (12.0, 3.9), n_columns=3)
    _plot_along(axes[0], along)
    _plot_distribution(axes[1], above_zero)
    _plot_tail(axes[2], log_estimates)
    return axes


def _element(
    model: pm.Model, point: Point, var_names: str | Sequence[str] | None, coords: Any
) -> tuple[str, tuple[int, ...], str]:
    """Return the parameter to follow, which of its elements, and what to call it."""
    names = [rv.name for rv in model.free_RVs]
    wanted = [var_names] if isinstance(var_names, str) else list(var_names or names[:1])
    if len(wanted) != 1 or wanted[0] not in names:
        raise ModelError(
            f"var_names must be one parameter of the model, of {', '.join(names)}; got {wanted}."
        )
    name = wanted[0]
    shape = np.shape(point[name])
    dims = model.named_vars_to_dims.get(name) or [f"{name}_dim_{i}" for i in range(len(shape))]
    given = dict(coords or {})
    index, at = [], []
    for dim, length in zip(dims, shape, strict=True):
        labels = list(model.coords.get(dim) or range(length))
        label = np.atleast_1d(given.pop(dim, labels[0]))
        if len(label) != 1 or label[0] not in labels:
            raise ModelError(
                f"coords must name one element along {dim!r}, one of {labels[:10]}; got {label}."
            )
        index.append(labels.index(label[0]))
        at.append(str(label[0]))
    if given:
        raise ModelError(
            f"{name} has no dimension {', '.join(map(repr, given))}; it has "
            f"{', '.join(map(repr, dims)) or 'none'}."
        )
    return name, tuple(index), f"{name}[{', '.join(at)}]" if at else name


def _range(values: FloatArray) -> FloatArray:
    lower, upper = np.quantile(values, [0.01, 0.99])
    if upper - lower <= 1e-9 * max(1.0, abs(lower)):
        lower, upper = lower - max(1.0, abs(lower)), upper + max(1.0, abs(upper))
    return np.linspace(lower, upper, GRID)


def _follow(
    probe: Probe,
    point: Point,
    name: str,
    index: tuple[int, ...],
    values: FloatArray,
    n_u: int,
    rng: np.random.Generator,
    label: str,
) -> _Slice:
    """Evaluate along a parameter, the others and u clamped, for several u."""
    places, thetas = [], []
    for value in values:
        moved = np.array(point[name])
        moved[index] = value
        if moved[index] != value and moved.dtype.kind in "iu":
            continue  # between two values of an integer
        theta = probe.to_vector({**point, name: moved})
        if np.isfinite(theta).all():  # else out of the support
            places.append(value)
            thetas.append(theta)
    rows = []
    start = probe.start(point, rng)
    assert start is not None
    for _ in range(n_u):
        clamped = probe.fresh_u(start, rng)
        moved_to = [probe.at(clamped, theta) for theta in thetas]
        rows.append([e.log_estimate if e.values else np.nan for e in moved_to])
    return _Slice(np.array(places), np.array(rows), label, float(np.asarray(point[name])[index]))


def _plot_along(axis: Any, along: _Slice) -> None:
    values, log_estimates = along.values, along.log_estimates
    finite = np.where(np.isfinite(log_estimates), log_estimates, np.nan)
    lower, upper = np.nanquantile(finite, [0.05, 0.95], axis=0)
    peak = np.nanmax(finite, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = peak + np.log(np.mean(np.exp(log_estimates - peak), axis=0))
    axis.fill_between(
        values, lower, upper, color="0.85", linewidth=0, label=f"90% of {len(finite)} draws of u"
    )
    axis.plot(
        values, finite[:N_LINES].T, color=COLOURS[0], linewidth=0.8, alpha=0.8, label="_nolegend_"
    )
    axis.plot([], [], color=COLOURS[0], linewidth=1, label=f"u clamped, {N_LINES} of them")
    axis.plot(values, mean, color="black", linewidth=1.8, label="log of the mean estimate")
    axis.axvline(along.at, color="0.4", linewidth=1, linestyle=":", label="the point of b and c")
    tidy(axis, xlabel=along.label, ylabel="log-estimate, log f_hat")
    with np.errstate(invalid="ignore"):
        sds = np.nanstd(finite, axis=0)
    noise = f"sd {np.nanmin(sds):.2g} to {np.nanmax(sds):.2g}"
    axis.set_title(f"a. along {along.label}: {noise}", loc="left", fontsize=10)
    axis.legend(frameon=False, fontsize=8)


def _plot_distribution(axis: Any, log_estimates: FloatArray) -> None:
    mean, sd = log_estimates.mean(), log_estimates.std(ddof=1)
    skewness = float(np.mean(((log_estimates - mean) / sd) ** 3))
    axis.hist(
        log_estimates,
        bins="fd" if log_estimates.size < 10_000 else 80,
        density=True,
        color=COLOURS[4],
        alpha=0.7,
        label=f"{log_estimates.size:,} draws of u",
    )
    grid = np.linspace(mean - 4 * sd, mean + 4 * sd, 200)
    density = np.exp(-0.5 * ((grid - mean) / sd) ** 2) / (sd * np.sqrt(2 * np.pi))
    axis.plot(grid, density, color="black", linewidth=1.2, label="normal, same mean and sd")
    tidy(axis, xlabel="log-estimate, log f_hat", ylabel="density")
    axis.set_title(f"b. over u: sd {sd:.2f}, skewness {skewness:.2f}", loc="left", fontsize=10)
    axis.set_ylim(top=1.3 * axis.get_ylim()[1])
    axis.legend(frameon=False, fontsize=8)


def _plot_tail(axis: Any, log_estimates: FloatArray) -> None:
    weights = np.sort(np.exp(log_estimates - log_estimates.max()))
    weights = weights / weights.mean()
    above = np.arange(weights.size, 0, -1) / weights.size
    khat = tail_index(log_estimates[log_estimates > -np.inf])
    is_heavy = khat > HEAVY_TAIL
    # The tail as PSIS takes it: the 3 sqrt(S) largest, or a fifth if that is less.
    n_above_zero = np.count_nonzero(weights)
    n_tail = int(min(0.2 * n_above_zero, 3 * np.sqrt(n_above_zero)))
    start, share = weights[-n_tail], above[-n_tail]
    shown = (above <= 0.5) & (weights > 0)
    axis.loglog(
        weights[shown], above[shown], ".", markersize=3, color=COLOURS[0], label="estimates"
    )
    end = max(2 * weights[-1], 10 * start)
    reach = np.geomspace(start, end, 100)
    excess = float(np.median(weights[-n_tail:])) - start
    if khat > 0:
        axis.loglog(
            reach,
            share * _pareto_tail(reach - start, khat, excess),
            color=ALARM if is_heavy else "black",
            linewidth=1.8,
            zorder=3,
            label=f"Pareto tail, k-hat = {khat:.2f}",
        )
    axis.loglog(
        reach,
        share * _pareto_tail(reach - start, HEAVY_TAIL, excess),
        color="0.4",
        linestyle=":",
        label=f"k = {HEAVY_TAIL}: flatter is heavy",
    )
    tidy(
        axis,
        xlabel="estimate over its mean, f_hat / mean",
        ylabel="share of estimates above",
        ylim=(0.3 / weights.size, 1.0),
        xlim=(weights[shown][0] * 0.9, end),
    )
    verdict = "heavy" if is_heavy else "light enough"
    axis.set_title(f"c. tail: {verdict}, k-hat {khat:.2f}", loc="left", fontsize=10)
    axis.legend(frameon=False, fontsize=8, loc="lower left")


def _pareto_tail(excess: FloatArray, k: float, median: float) -> FloatArray:
    """Return the share above some excess for a generalised Pareto distribution of given median."""
    scale = k * median / (2.0**k - 1.0)
    return (1.0 + k * excess / scale) ** (-1.0 / k)
