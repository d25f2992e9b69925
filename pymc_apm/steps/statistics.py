"""What steps record of each draw: every statistic is declared here, once."""

from collections.abc import Callable, Mapping
from itertools import repeat
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from pymc_apm.adaptive.report import Report


class Statistic(NamedTuple):
    """A number that is recorded of each draw.

    Attributes
    ----------
    dtype : type
        int or float.
    of : callable
        Finds it in a report on the draw; or, in a report of arrays, those of many draws.
    """

    dtype: type
    of: Callable[[Report], Any]


def _share(part: Any, whole: Any) -> Any:
    """Return a part of a whole; 0 if there was nothing to have a part of."""
    return part / (whole + (whole == 0.0))


N_EVALS = Statistic(int, attrgetter("n_evals"))
N_THETA_EVALS = Statistic(int, attrgetter("n_theta_evals"))
N_NAN = Statistic(int, attrgetter("n_nan"))
N_CUBIC = Statistic(int, attrgetter("n_cubic"))
ACCEPTED = Statistic(float, lambda report: _share(report.n_moved, report.n_updates))
ACCEPT_RATE = Statistic(float, lambda report: _share(report.accept_rate, report.n_updates))
SCALE = Statistic(float, lambda report: _share(report.scale, report.n_rounds))
U_ACCEPTED = Statistic(float, lambda report: _share(report.n_u_moved, report.n_u_updates))
U_ACCEPT_RATE = Statistic(float, lambda report: _share(report.u_accept_rate, report.n_u_updates))
CORRELATION = Statistic(float, lambda report: _share(report.correlation, report.n_u_updates))

COSTS = {
    "n_evals": N_EVALS,
    "n_theta_evals": N_THETA_EVALS,
    "n_nan": N_NAN,
    "n_cubic": N_CUBIC,
}
"""What every step records."""


def dtypes_and_shapes(
    statistics: Mapping[str, Statistic], has_signs: bool = False
) -> dict[str, tuple[type, list[int]]]:
    """Return the declaration that PyMC wants: all are scalars.

    Beside what is in reports, every draw has its log-estimate and the count of its random numbers,
    and the sign of the estimate if that may be negative.
    """
    declared: dict[str, tuple[type, list[int]]] = {
        name: (np.dtype(statistic.dtype).type, []) for name, statistic in statistics.items()
    }
    declared |= {"n_random": (np.int64, []), "log_estimate": (np.float64, [])}
    return declared | ({"sign": (np.float64, [])} if has_signs else {})


def row_of(
    statistics: Mapping[str, Statistic], report: Report, log_estimate: float, n_random: int
) -> dict[str, Any]:
    """Return the statistics of a draw."""
    row: dict[str, Any] = {name: dtype(of(report)) for name, (dtype, of) in statistics.items()}
    row["n_random"] = n_random
    row["log_estimate"] = log_estimate
    return row


def rows_of(
    statistics: Mapping[str, Statistic], report: Report, log_estimates: Any, n_random: int
) -> list[dict[str, Any]]:
    """Return the statistics of many draws, from a report of arrays."""
    columns = [of(report).astype(dtype).tolist() for dtype, of in statistics.values()]
    rows = zip(*columns, repeat(n_random), log_estimates.tolist(), strict=False)
    # Without a loop of Python: this is done for every draw of compiled code.
    return list(map(dict, map(zip, repeat((*statistics, "n_random", "log_estimate")), rows)))
