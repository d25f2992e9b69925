"""What ``pm.sample`` says at its end, where something is wrong."""

from typing import Any

import numpy as np

from pymc_apm.diagnostics.runs import statistic
from pymc_apm.diagnostics.sticking import find_sticking
from pymc_apm.diagnostics.words import count
from pymc_apm.errors import see


def problems(idata: Any) -> list[str]:
    """Return what was wrong with a run, in words; an empty list if all is well.

    NaN estimates and sticking can be told from the statistics and the draws. Heavy tails of the
    estimate cannot: the log-estimates of a run vary with theta as well as with u, and the u are not
    draws from q(u). :func:`pymc_apm.estimator_report` looks for them.

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
    found = [*_not_a_number(idata), *_stuck(idata)]
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
