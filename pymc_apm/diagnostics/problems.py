"""What ``pm.sample`` says at its end, where something is wrong."""

from typing import Any

import numpy as np

from pymc_apm.diagnostics.creeping import creeping_in_words, movements
from pymc_apm.diagnostics.runs import sign_of, statistic
from pymc_apm.diagnostics.signed import mean_sign_of, sign_warnings
from pymc_apm.diagnostics.sticking import find_sticking
from pymc_apm.diagnostics.words import count, percent
from pymc_apm.errors import see


def problems(idata: Any) -> list[str]:
    """Return what was wrong with a run, in words; an empty list if all is well.

    NaN estimates, negative ones, sticking and creeping can be told from the statistics and the
    draws. Heavy tails of the estimate cannot: the log-estimates of a run vary with theta as well as
    with u, and the u are not draws from q(u). :func:`pymc_apm.estimator_report` looks for them.

    Parameters
    ----------
    idata : InferenceData or DataTree
        What ``pm.sample`` returned.

    Returns
    -------
    list of str
        One line, or none.
    """
    if statistic(idata, "log_estimate") is None:
        return []
    found = [*_not_a_number(idata), *_negative(idata), *_stuck(idata), *_creeping(idata)]
    return [" ".join(found)] if found else []


def _not_a_number(idata: Any) -> list[str]:
    n_nan, n_evals = statistic(idata, "n_nan"), statistic(idata, "n_evals")
    if n_nan is None or n_evals is None or not n_nan.any():
        return []
    return [
        f"{int(np.sum(n_nan))} of {int(np.sum(n_evals))} estimates after tuning were not a number "
        "(NaN) and were taken for zero. If that is not what they stand for, the posterior is "
        "wrong: look for 0 * inf, inf - inf or the log of a negative number in the estimator. The "
        f"statistic n_nan says in which draws they occurred. {see('estimators')}"
    ]


def _negative(idata: Any) -> list[str]:
    found, signs = mean_sign_of(idata), sign_of(idata)
    if found is None or signs is None or not (signs < 0).any():
        return []
    return [
        f"{percent(float((signs < 0).mean()))} of the draws have a negative sign: averages of the "
        "draws, as of az.summary, are not those of the posterior. Use apm.signed(idata).",
        *sign_warnings(*found),
    ]


def _stuck(idata: Any) -> list[str]:
    table = find_sticking(idata).table
    stuck = table[table["stuck"]]
    if stuck.empty:
        return []
    longest = stuck.groupby(level="variable", sort=False)["longest_run"].max()
    what = ", ".join(f"{name} for {count(int(run), 'draw')}" for name, run in longest.items())
    return [
        f"Chains were stuck without a move ({what} in a row), so that ESS and R-hat are not to be "
        "believed: see apm.sticking(idata), and apm.estimator_report(model, idata) for whether the "
        f"estimate is too noisy or has heavy tails. {see('diagnosing')}"
    ]


def _creeping(idata: Any) -> list[str]:
    found = movements(idata)
    name = "u" if len(found) == 1 else "u of a step"
    return [text for chains in found for text in creeping_in_words(name, chains)][:1]
