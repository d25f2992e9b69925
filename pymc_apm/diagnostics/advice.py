"""What follows from the numbers of an estimator report, in words."""

from typing import Any

import numpy as np

from pymc_apm.diagnostics.efficiency import (
    TARGET_SD,
    efficiency_if_perfect,
    efficiency_of_walk,
    size_factor,
)
from pymc_apm.diagnostics.words import count, factor, percent

VIABLE_SD = 2.5
"""Above this sd of log f_hat, chains that propose u independently are said to stick.

There, random walks on many parameters, which stand most noise, have 79% of their best efficiency,
and 52% at 3; where theta itself would mix at once it is 3% (:mod:`~.efficiency`).
"""

TOLERATED_SD = 1.81
"""What the most tolerant chains do best with: more noise does not pay, whatever the chain."""

HEAVY_TAIL = 0.7
"""The tail index above which an average of weights is not to be relied on (Vehtari et al. 2024)."""

SHARE_OF_POINTS = 0.25
"""At how many of the points the tail index must be large for a warning: one may be by chance."""

KHAT_OF_NORMAL = 0.4
"""The k-hat of a normal log f_hat is less than this times its sd.

From 10,000 draws, it is about 0.45 at an sd of 1.5, 0.65 at 2, 0.8 at 2.5 and 0.95 at 3.
"""

MANY_ZEROS = 0.1
"""The share of estimates of zero that is worth a warning."""


def typical_sd(dataset: Any) -> float:
    """Return the median over points of the sd of log f_hat."""
    sds = dataset["sd"].values
    return float(np.median(sds[np.isfinite(sds)])) if np.isfinite(sds).any() else np.nan


def largest_sd(dataset: Any) -> tuple[float, int]:
    """Return the largest sd of log f_hat at any point, and at which."""
    sds = dataset["sd"].values
    if not np.isfinite(sds).any():
        return np.nan, 0
    return float(np.nanmax(sds)), int(np.nanargmax(sds))


def warnings_in_words(dataset: Any, is_clamped: bool) -> list[str]:
    """Return what is wrong with an estimator, in words; an empty list if all is well."""
    found = []
    if not is_clamped:
        found.append(
            "The estimate differs between two computations for the same parameters and the same u: "
            "it draws random numbers of its own, and every sampler would be wrong. Let it take all "
            "of them from declared randomness."
        )
    nan, zero = float(dataset["share_nan"].mean()), float(dataset["share_zero"].mean())
    if nan > 0:
        found.append(
            f"{percent(nan)} of the estimates were not a number (NaN) and count as zero: look for "
            "0 * inf, inf - inf or the log of a negative number in the estimator."
        )
    if zero - nan > MANY_ZEROS:
        found.append(
            f"{percent(zero - nan)} of the estimates were zero: log f_hat has no sd there, and the "
            "numbers are those of the others. Chains may find it hard to move."
        )
    found += _tails(dataset)
    sd, (largest, point) = typical_sd(dataset), largest_sd(dataset)
    if sd > VIABLE_SD:
        found.append(
            f"The sd of log f_hat is {sd:.2g}: chains that propose u independently (PM MH, MI+MH, "
            "MI+SS) will stick. Update u by slice sampling or with a correlated proposal, or raise "
            f"the number of particles or importance draws by a factor of about "
            f"{factor(size_factor(sd))}."
        )
    elif largest > TOLERATED_SD:
        found.append(
            f"The sd of log f_hat is up to {largest:.2g}, at point {point} ({sd:.2g} as a rule): "
            f"more than {TOLERATED_SD} pays in no case, and chains that propose u independently "
            "may stick there."
        )
    return found + _jumps(dataset)


def has_heavy_tails(dataset: Any) -> bool:
    """Say whether the tail index is too large at more points than chance may make it."""
    return bool((dataset["khat"].values > HEAVY_TAIL).mean() >= SHARE_OF_POINTS)


def _tails(dataset: Any) -> list[str]:
    if not has_heavy_tails(dataset):
        return []
    khat = dataset["khat"].values
    heavy = khat > HEAVY_TAIL
    found = (
        f"The estimate has heavy tails at {int(heavy.sum())} of {count(khat.size, 'point')}: k-hat "
        f"is up to {np.nanmax(khat):.2f}, above {HEAVY_TAIL}. Its variance may be infinite, or so "
        "large that these draws do not show it: chains may stick for very long after a lucky "
        "estimate. "
    )
    if np.median(khat[heavy]) < KHAT_OF_NORMAL * np.median(dataset["sd"].values[heavy]):
        return [found + "A normal log f_hat with so large an sd has such tails: reduce the noise."]
    return [
        found + "Make the weights bounded, for example by a proposal with heavier tails; more "
        "draws alone help little."
    ]


def _jumps(dataset: Any) -> list[str]:
    found = []
    for name in dataset["along"].values:
        sizes = dataset["jump"].sel(along=name).values
        sizes = sizes[~np.isnan(sizes)]
        jumps = sizes[sizes > 0]
        if jumps.size == 0:
            continue
        largest = "to zero" if np.isinf(jumps).any() else f"by up to {jumps.max():.2g}"
        found.append(
            f"log f_hat is not continuous along {name}: it jumps {largest} on {jumps.size} of "
            f"{count(sizes.size, 'random line')}. Slices stay valid, but may have to shrink onto "
            "the current point. Common random numbers in a fixed order, sorted resampling and "
            "draws by inversion make an estimate smoother."
        )
    return found


def advice_in_words(dataset: Any, has_seed: bool) -> list[str]:
    """Say what to do: how to update u, how many particles, where the time goes."""
    sd = typical_sd(dataset)
    advice = []
    if np.isnan(sd):
        advice.append("No estimate was above zero: nothing can be said about their noise.")
    elif sd == 0:
        advice.append("The estimate does not depend on u at these points: it is exact there.")
    else:
        advice.append(_on_updates(sd, largest_sd(dataset)[0], has_heavy_tails(dataset)))
        advice += _on_ratios(dataset)
    smooth = [
        str(name)
        for name in dataset["along"].values
        if np.nanmax(dataset["jump"].sel(along=name).values, initial=0.0) == 0
    ]
    if smooth:
        advice.append(
            f"No jump of log f_hat was found along {' and '.join(smooth)}: slices can shrink."
        )
    if has_seed:
        advice.append(
            "A seed can only be replaced by a fresh one, so that there are no slice updates of it "
            "and no line along which to look for jumps; an apm.Stream has both."
        )
    theta, u = (float(dataset["seconds"].sel(change=change)) for change in ("theta", "u"))
    if u < 0.5 * theta:
        advice.append(
            f"An evaluation at a new u takes {percent(u / theta)} of the time of one at new "
            "parameters: updates of u are cheap, and slice updates nearly free."
        )
    return advice


def _on_ratios(dataset: Any) -> list[str]:
    if "sd_ratio" not in dataset or not np.isfinite(dataset["sd_ratio"]).any():
        return []
    ratios, sds = dataset["sd_ratio"].values, dataset["sd"].values
    at = int(np.nanargmax(ratios))
    return [
        "At jumps of theta that the chain made, the log ratio of two estimates with the same u "
        f"has an sd of {np.nanmedian(ratios):.2g}, up to {ratios[at]:.2g} at point {at}; with "
        f"fresh u it would be about {np.sqrt(2.0) * np.nanmedian(sds):.2g}. That is the noise "
        "which updates of theta see."
    ]


def _on_updates(sd: float, largest: float, heavy_tails: bool) -> str:
    text = f"The sd of log f_hat is {sd:.2g}"
    if largest > sd:
        text += f", up to {largest:.2g}"
    if sd > VIABLE_SD:
        return (
            f"{text}: independent proposals of u are not viable, slice updates are needed "
            f"(apm.APMSlice()); or take {factor(size_factor(sd))} times as many particles or "
            f"importance draws, for an sd of {TARGET_SD}."
        )
    if heavy_tails:
        return (
            f"{text}: by that independent proposals of u would be viable, but not with such tails."
        )
    at_most, at_least = percent(efficiency_of_walk(sd)), percent(efficiency_if_perfect(sd))
    text += (
        ": independent proposals of u are viable (apm.PseudoMarginalMH()). Per cost, at a noise "
        f"that goes as 1/N, they have {at_most} of their best efficiency with a random walk on "
        f"many parameters, which is best at 1.81, and {at_least} where theta alone would mix at "
        f"once, which is best at 0.92; {TARGET_SD} is a compromise that loses little in either case"
    )
    change = size_factor(sd)
    if change > 1.1:
        return f"{text}, with {factor(change)} times as many particles or importance draws."
    if change < 0.9:
        return f"{text}. If there are many particles or importance draws, fewer are enough."
    return f"{text}."
