"""What the statistics of a run say about it."""

from typing import Any

import numpy as np


def problems(idata: Any) -> list[str]:
    """Say in words what was wrong with a run: nothing, as a rule.

    Parameters
    ----------
    idata : InferenceData or DataTree
        What ``pm.sample`` returned.

    Returns
    -------
    list of str
    """
    stats = getattr(idata, "sample_stats", {})
    if "n_nan" not in stats:
        return []
    n_nan = int(np.sum(stats["n_nan"]))
    if n_nan == 0:
        return []
    n_evals = int(np.sum(stats["n_evals"]))
    return [
        f"{n_nan} of {n_evals} estimates after tuning were not a number (NaN) and were taken for "
        "zero. If that is not what they stand for, the posterior is wrong: look for 0 * inf, "
        "inf - inf or the log of a negative number in the estimator. The statistic n_nan says in "
        "which draws they occurred."
    ]
