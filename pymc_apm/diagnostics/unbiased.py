"""Is an estimate unbiased? Its mean over u must not depend on how many draws it is made of.

Averages of logs, random numbers that factors share, kernel densities, synthetic likelihoods and
clipped weights all have a bias that shrinks with the number of draws: so it shows when means of
estimates of several sizes are compared. What has the same bias at every size, such as a proposal
that leaves out a part of the space, shows against an exact value alone.
"""

import math
import time
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

from pymc_apm.diagnostics.means import Groups, LogMean, log_mean, studentised
from pymc_apm.diagnostics.points import Point, choose_points, pilot_points
from pymc_apm.diagnostics.probe import Probe
from pymc_apm.diagnostics.tune import built, checked_sizes
from pymc_apm.diagnostics.words import as_html, count, percent
from pymc_apm.errors import ModelError, see
from pymc_apm.types import Evaluation
from pymc_apm.validation import positive_integer, positive_number

EXACT = "exact"
"""What an estimate is compared with, if not with that of the largest size."""

ALL_POINTS = "all"

PILOT = 500
"""Draws from which it is found out how many to make."""

PRECISION = 0.01
"""The standard error of the log of a mean that is aimed at."""

FALSE_ALARM = 1e-3
"""How often an unbiased estimate is taken for a biased one."""


class UnbiasedCheck:
    """What :func:`check_unbiased` found.

    Attributes
    ----------
    biased : bool
        Whether the estimate is biased, with a false alarm rate of 1 in 1000.
    table : DataFrame
        A row for each comparison: the ``point`` (``"all"`` for the sum over all of them), the
        ``size``, what it is compared ``with`` (another size, or ``"exact"``), the ``difference`` of
        the logs of the means, its standard error ``se``, how many normal standard errors ``z`` it
        is away from zero, and whether the standard error ``is_known``: if not, because some rare
        estimates are too large, nothing follows from that row.
    means : DataFrame
        A row for each point and size: the ``log_mean``, its ``se``, the number of ``draws``.
    points : list of dict
        The parameters at each point.
    limit : float
        The absolute value of z from which on a difference counts.
    warnings : list of str
        What is wrong, and which mistake it looks like.
    notes : list of str
        How it was measured, and what could not be.
    """

    def __init__(
        self,
        biased: bool,
        table: Any,
        means: Any,
        points: list[Point],
        limit: float,
        warnings: list[str],
        notes: list[str],
    ) -> None:
        self.biased = biased
        self.table = table
        self.means = means
        self.points = points
        self.limit = limit
        self.warnings = warnings
        self.notes = notes

    @property
    def _title(self) -> str:
        return f"The estimate {'is BIASED' if self.biased else 'shows no bias'}"

    def _formatted(self) -> Any:
        table = self.table.copy()
        table["z"] = [
            f"{z:.1f}" if known else "unknown"
            for z, known in zip(table["z"], table["is_known"], strict=True)
        ]
        for name in ("difference", "se"):
            table[name] = [f"{value:.3g}" for value in table[name]]
        return table.drop(columns="is_known")

    def __repr__(self) -> str:
        lines = [self._title, self._formatted().to_string(index=False)]
        lines += [f"Warning: {text}" for text in self.warnings]
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        table = self._formatted().to_html(index=False)
        return as_html(self._title, table, self.warnings, self.notes)


def check_unbiased(
    build_model: Callable[[int], pm.Model],
    sizes: Sequence[int] = (2, 8, 32),
    points: Any = None,
    random_seed: Any = None,
    *,
    exact: Callable[[Point], float] | Sequence[float] | None = None,
    up_to_constant: bool = False,
    draws: int | None = None,
    n_points: int = 4,
    max_seconds: float = 30.0,
    compile_kwargs: dict[str, Any] | None = None,
) -> UnbiasedCheck:
    """Test whether an estimate has the same mean, whatever the number of draws it is made of.

    Parameters
    ----------
    build_model : callable
        ``build_model(size)`` returns the model whose estimate is made of that many particles, or
        importance draws, as for :func:`tune_estimator`.
    sizes : sequence of int
        The sizes to compare. The smaller the smallest, the larger is a bias; the largest should
        be many times as large. One is enough if ``exact`` is given.
    points : dict or list of dict, optional
        The parameters at which to compare: a value for each, on the scale on which it was
        declared. By default they are draws of a pilot run of the largest size.
    random_seed : int or Generator, optional
    exact : callable or sequence of float, optional
        The log-likelihood that is estimated: a function of a point, or its values at ``points``.
        All sizes are compared with it, instead of with the largest one.
    up_to_constant : bool
        Whether each size may have a constant of its own, the same at all points. That does no
        harm, but is rare.
    draws : int, optional
        Draws of u at each point. By default as many as it takes to know the mean to 1%, or as fit
        into ``max_seconds``.
    n_points : int
        How many points to draw, if none are given.
    max_seconds : float
        About how long to take, unless ``draws`` is given.
    compile_kwargs : dict, optional
        What to pass on to the compiler of the log density.

    Returns
    -------
    UnbiasedCheck
        Print it. ``biased`` is the verdict.

    Notes
    -----
    At each point and for each size, the log of the mean of the estimate over fresh u is found, and
    differences between sizes are compared with their standard errors. Where the model proves that
    an estimate is a product of independent factors, their means are found one by one: so a
    likelihood of many factors, whose estimate is far too noisy for a mean of its own, can be
    checked all the same. Skewed errors are made normal (Hall 1992), and comparisons whose standard
    error rests on a few draws do not count. An estimate is called biased if one of all comparisons
    is further from zero than happens once in 1000 checks of unbiased estimates.

    It also looks whether an estimate is the same when the same parameters and the same u come back
    after others: one that keeps something from call to call is biased as a rule.

    That no bias was seen does not prove that there is none: the last note says how large one would
    have been noticed. A mistake that does not depend on the size, such as a missing term of
    the proposal, is seen if ``exact`` is given, and not otherwise.

    References
    ----------
    Hall, P. (1992). On the removal of skewness by transformation. Journal of the Royal Statistical
    Society B 54(1), 221-228.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> def build_model(size, average=apm.estimators.log_mean_exp):
    ...     with pm.Model() as model:
    ...         mu = pm.Normal("mu")
    ...         u = apm.StandardNormal("u", shape=(size, 5))
    ...         log_weights = pm.logp(pm.Poisson.dist(pm.math.exp(mu + u)), [3, 0, 8, 2, 4])
    ...         apm.Potential("log_lik", average(log_weights, axis=0))
    ...     return model
    >>> points = [{"mu": 0.5}, {"mu": 1.5}]
    >>> apm.check_unbiased(build_model, points=points, draws=2000, random_seed=1).biased
    False

    The mean of the logs instead of the log of the mean:

    >>> def wrong(size):
    ...     return build_model(size, average=lambda log_weights, axis: log_weights.mean(axis=axis))
    >>> apm.check_unbiased(wrong, points=points, draws=2000, random_seed=1).biased
    True
    """
    ordered = checked_sizes(sizes, "check_unbiased")
    if draws is not None:
        positive_integer("draws of check_unbiased", draws, minimum=100)
    positive_integer("n_points of check_unbiased", n_points)
    positive_number("max_seconds of check_unbiased", max_seconds)
    if exact is None and len(ordered) < 2:
        raise ModelError("check_unbiased needs two sizes to compare, or exact values.")
    rng = np.random.default_rng(random_seed)
    models = {size: built(build_model, size, "check_unbiased") for size in ordered}
    largest = models[ordered[-1]]
    if points is None:
        if exact is not None and not callable(exact):
            raise ModelError("exact values are for points: give points too, or a function.")
        chosen = pilot_points(largest, n_points, rng)
    else:
        chosen = choose_points(largest, None, points, n_points, rng)
    at = chosen.values
    exact_values = None if exact is None else _exact_values(exact, at)
    if up_to_constant and len(at) < 2:
        raise ModelError("up_to_constant of check_unbiased needs two points at least.")
    seconds = max_seconds / len(models)
    found = {
        size: _measured(model, at, draws, seconds, rng, compile_kwargs)
        for size, model in models.items()
    }
    rows = _compared({size: one.means for size, one in found.items()}, exact_values, up_to_constant)
    limit = -NormalDist().inv_cdf(0.5 * FALSE_ALARM / len(rows))
    seen = [row for row in rows if row["is_known"] and abs(row["z"]) > limit]
    forgetful = [size for size, one in found.items() if not one.is_repeatable]
    notes = [
        f"{count(len(at), 'point')} ({chosen.source}), {count(len(rows), 'comparison')}: a |z| "
        f"above {limit:.1f} comes from an unbiased estimate once in {1 / FALSE_ALARM:.0f} checks."
    ]
    return UnbiasedCheck(
        bool(seen or forgetful),
        _as_table(rows),
        _as_table(
            [
                {"point": i, "size": size, "log_mean": m.value, "se": m.se, "draws": m.n_draws}
                for size, one in found.items()
                for i, m in enumerate(one.means)
            ]
        ),
        at,
        limit,
        [*_on_memory(forgetful), *_on_bias(seen, up_to_constant)],
        [*notes, *_on_power(rows, limit, exact is not None)],
    )


class _Measured(NamedTuple):
    means: list[LogMean]
    is_repeatable: bool


def _measured(
    model: pm.Model,
    points: Sequence[Point],
    draws: int | None,
    seconds: float,
    rng: np.random.Generator,
    compile_kwargs: dict[str, Any] | None,
) -> _Measured:
    """Find the mean of an estimate at each point, and whether it comes back."""
    probe = Probe(model, compile_kwargs)
    starts = [probe.start(point, rng) for point in points]
    if any(start is None for start in starts):
        zero = next(i for i, start in enumerate(starts) if start is None)
        raise ModelError(f"The prior is zero at a point of check_unbiased: {dict(points[zero])}.")
    evaluations = [start for start in starts if start is not None]
    is_repeatable = _is_repeatable(probe, points, rng)
    groups = Groups(probe, evaluations[0])
    means = [
        _mean_at(probe, evaluation, groups, draws, seconds / len(points), rng)
        for evaluation in evaluations
    ]
    return _Measured(means, is_repeatable)


def _is_repeatable(probe: Probe, points: Sequence[Point], rng: np.random.Generator) -> bool:
    """Say whether the same parameters and the same u give the same estimate after others."""
    seeds = rng.integers(2**63, size=2)
    there_and_back = [(points[0], seeds[0]), (points[-1], seeds[1]), (points[0], seeds[0])]
    first, _, again = (
        probe.start(point, np.random.default_rng(seed)) for point, seed in there_and_back
    )
    assert first is not None and again is not None, "the prior is not zero at these points"
    return first.log_estimate == again.log_estimate or math.isclose(
        first.log_estimate, again.log_estimate, rel_tol=1e-8, abs_tol=1e-10
    )


def _mean_at(
    probe: Probe,
    evaluation: Evaluation,
    groups: Groups,
    draws: int | None,
    seconds: float,
    rng: np.random.Generator,
) -> LogMean:
    """Find the mean at one point, from as many draws as it takes or as there is time for.

    How many is decided by draws of their own: to stop when the result looks good would bias it.
    """

    def drawn(n_draws: int) -> Any:
        return np.array(
            [groups.totals(probe.fresh_u(evaluation, rng)) for _ in range(n_draws)],
        )

    if draws is not None:
        return log_mean(drawn(draws))
    start = time.perf_counter()
    pilot = log_mean(drawn(PILOT))
    affordable = int(PILOT * seconds / max(time.perf_counter() - start, 1e-6)) - PILOT
    is_unknown = math.isnan(pilot.se)
    wanted = affordable if is_unknown else int(PILOT * (pilot.se / PRECISION) ** 2)
    memory = 4_000_000 // groups.n_groups
    return log_mean(drawn(int(np.clip(wanted, PILOT, max(PILOT, min(affordable, memory))))))


def _exact_values(exact: Any, points: Sequence[Point]) -> list[float]:
    values = [exact(point) for point in points] if callable(exact) else list(np.atleast_1d(exact))
    if len(values) != len(points):
        raise ModelError(
            f"exact has {count(len(values), 'value')} for {count(len(points), 'point')}."
        )
    numbers = [float(value) for value in values]
    if not np.isfinite(numbers).all():
        raise ModelError(f"exact values must be finite log-likelihoods, got {numbers}.")
    return numbers


def _compared(
    means: dict[int, list[LogMean]], exact: list[float] | None, up_to_constant: bool
) -> list[dict[str, Any]]:
    """Compare each size with the exact values, or with the largest size."""
    rows = []
    *smaller, largest = means
    if exact is not None:
        truth = [LogMean(value, 0.0, 0.0, True, 0) for value in exact]
        pairs: list[tuple[int, Any, list[LogMean]]] = [(size, EXACT, truth) for size in means]
    else:
        pairs = [(size, largest, means[largest]) for size in smaller]
    for size, other, reference in pairs:
        found = [_difference(a, b) for a, b in zip(means[size], reference, strict=True)]
        if up_to_constant:
            found = _without_constant(found)
        rows += [_row(i, size, other, one) for i, one in enumerate(found)]
        if len(found) > 1 and not up_to_constant:
            rows.append(_row(ALL_POINTS, size, other, _sum(found)))
    return rows


class _Difference(NamedTuple):
    value: float
    se: float
    third: float
    is_known: bool


def _difference(a: LogMean, b: LogMean) -> _Difference:
    return _Difference(
        a.value - b.value, math.hypot(a.se, b.se), a.third - b.third, a.is_known and b.is_known
    )


def _sum(found: Sequence[_Difference]) -> _Difference:
    known = [one for one in found if one.is_known]
    return _Difference(
        sum(one.value for one in known),
        math.sqrt(sum(one.se**2 for one in known)),
        sum(one.third for one in known),
        len(known) > 1,
    )


def _without_constant(found: Sequence[_Difference]) -> list[_Difference]:
    """Take what is common to all points away, as well as it is known."""
    known = [one for one in found if one.is_known]
    if len(known) < 2:
        return [one._replace(is_known=False) for one in found]
    precisions = np.array([one.se**-2.0 for one in known])
    variance = 1.0 / float(precisions.sum())
    weights = variance * precisions
    constant = float(weights @ [one.value for one in known])
    third = float(weights**3 @ [one.third for one in known])

    def less(one: _Difference) -> _Difference:
        weight = variance * one.se**-2.0
        return one._replace(
            value=one.value - constant,
            se=math.sqrt(max(one.se**2 - variance, 0.0)),
            third=(1.0 - weight) ** 3 * one.third - (third - weight**3 * one.third),
        )

    return [less(one) if one.is_known else one for one in found]


def _row(point: Any, size: int, other: Any, found: _Difference) -> dict[str, Any]:
    return {
        "point": point,
        "size": size,
        "with": other,
        "difference": found.value,
        "se": found.se,
        "z": studentised(found.value, found.se, found.third),
        "is_known": found.is_known,
    }


def _as_table(rows: list[dict[str, Any]]) -> Any:
    import pandas

    return pandas.DataFrame(rows)


def _on_memory(forgetful: Sequence[int]) -> list[str]:
    if not forgetful:
        return []
    return [
        "The same parameters and the same u gave another estimate when they came back after "
        "others: the estimator keeps something from one call to the next, a warm start or a cache "
        f"for example, or draws random numbers of its own. {see('estimators')}"
    ]


def _on_bias(seen: Sequence[dict[str, Any]], up_to_constant: bool) -> list[str]:
    """Say which mistake it looks like."""
    if not seen:
        return []
    seen = [row for row in seen if row["point"] != ALL_POINTS] or seen
    worst = max(seen, key=lambda row: abs(row["z"]))
    signs = {row["difference"] > 0 for row in seen}
    other = "the exact value" if worst["with"] == EXACT else f"what it is with {worst['with']}"
    text = (
        f"With {worst['size']} draws the mean of the estimate is not {other}: the logs "
        f"differ by {worst['difference']:.3g} ± {worst['se']:.2g}."
    )
    if worst["with"] == EXACT and _is_alike(seen):
        text += (
            " The difference is about the same for all sizes: a term of the proposal may be "
            "missing, or the proposal may leave out a part of the space."
        )
    elif signs == {True}:
        text += (
            " Estimates of few draws are too large: as if logs were averaged, not weights, or "
            "factors shared random numbers."
        )
    elif signs == {False}:
        text += (
            " Estimates of few draws are too small: as if weights were clipped or divided by their "
            "own sum, factors shared random numbers, or the likelihood were a density fitted to "
            "simulations."
        )
    else:
        text += (
            " Estimates of few draws are too large at some points and too small at others: as if "
            "the likelihood were a kernel density or a normal one fitted to simulations, or "
            "factors shared random numbers."
        )
    if not up_to_constant and worst["with"] != EXACT:
        text += (
            " (A constant of each size that is the same at all parameters would do no harm: "
            "up_to_constant=True leaves it out.)"
        )
    return [f"{text} {see('estimators')}"]


def _is_alike(seen: Sequence[dict[str, Any]]) -> bool:
    """Say whether differences at one point do not depend on the size."""
    by_point: dict[Any, list[float]] = {}
    for row in seen:
        by_point.setdefault(row["point"], []).append(row["difference"])
    return all(max(v) - min(v) < 0.3 * max(map(abs, v)) for v in by_point.values())


def _on_power(rows: Sequence[dict[str, Any]], limit: float, has_exact: bool) -> list[str]:
    """Say what could have been seen, and what could not."""
    at_points = [row for row in rows if row["point"] != ALL_POINTS]
    unknown = sorted({row["size"] for row in at_points if not row["is_known"]})
    known = [row["se"] for row in at_points if row["is_known"]]
    notes = []
    if unknown:
        notes.append(
            f"With {', '.join(map(str, unknown))} draws some means are not known well enough to be "
            "compared: a few rare estimates are much larger than all others. Take larger sizes, "
            "fewer data, or points closer to the posterior."
        )
    if known:
        smallest = math.expm1(limit * max(known))
        text = f"A bias of {percent(smallest)} of the likelihood would have been seen at each point"
        notes.append(f"{text} that was compared.")
    if not has_exact:
        notes.append(
            "A mistake that does not depend on the number of draws, such as a missing term of the "
            "proposal, is seen only if exact is given."
        )
    return notes
