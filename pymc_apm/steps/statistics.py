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

OF_DRAWS = {"n_random": int, "log_estimate": float, "u_moved": float, "u_projection": float}
"""What every draw has that is in no report: how many random numbers its estimates use, their log,
and how far u went and where it is (:mod:`pymc_apm.steps.movement`)."""


def dtypes_and_shapes(
    statistics: Mapping[str, Statistic], has_signs: bool = False
) -> dict[str, tuple[type, list[int]]]:
    """Return the declaration that PyMC wants: all are scalars.

    Beside what is in reports, every draw has the statistics of `OF_DRAWS`, and the sign of the
    estimate if that may be negative.
    """
    declared: dict[str, tuple[type, list[int]]] = {
        name: (np.dtype(statistic.dtype).type, []) for name, statistic in statistics.items()
    }
    declared |= {name: (np.dtype(dtype).type, []) for name, dtype in OF_DRAWS.items()}
    return declared | ({"sign": (np.float64, [])} if has_signs else {})


def row_of(statistics: Mapping[str, Statistic], report: Report, *of_draw: Any) -> dict[str, Any]:
    """Return the statistics of a draw; those of `OF_DRAWS` are given, in this order."""
    row: dict[str, Any] = {name: dtype(of(report)) for name, (dtype, of) in statistics.items()}
    return row | dict(zip(OF_DRAWS, of_draw, strict=True))


def rows_of(
    statistics: Mapping[str, Statistic], report: Report, n_random: int, *of_draws: Any
) -> list[dict[str, Any]]:
    """Return the statistics of many draws, from a report of arrays."""
    columns = [of(report).astype(dtype).tolist() for dtype, of in statistics.values()]
    others = [values.tolist() for values in of_draws]
    rows = zip(*columns, repeat(n_random), *others, strict=False)
    # Without a loop of Python: this is done for every draw of compiled code.
    return list(map(dict, map(zip, repeat((*statistics, *OF_DRAWS)), rows)))
