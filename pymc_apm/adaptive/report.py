"""What a transition reports: one row of numbers, which can be added up over transitions."""

from typing import NamedTuple

from pymc_apm.types import Cost


class Report(NamedTuple):
    """Sums over the updates of a transition, or of several. All of them are floats.

    Attributes
    ----------
    n_evals, n_theta_evals, n_nan, n_cubic
        As those of :class:`~pymc_apm.types.Cost`.
    n_rounds
        Updates of all parameters.
    n_updates, n_moved
        Lines along which the parameters were updated, or proposals, and those that moved them.
    accept_rate
        The probabilities with which proposals were to be accepted.
    scale
        The lengths of the brackets, or the scales of the random walk, of each round.
    n_u_updates, n_u_moved, u_accept_rate
        The same for the randomness.
    correlation
        The correlations with which u was proposed, of each update of it.
    """

    n_evals: float
    n_theta_evals: float
    n_nan: float
    n_cubic: float
    n_rounds: float
    n_updates: float
    n_moved: float
    accept_rate: float
    scale: float
    n_u_updates: float
    n_u_moved: float
    u_accept_rate: float
    correlation: float


NOTHING = Report(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""Nothing has happened yet."""


def theta_report(
    cost: Cost, n_updates: int, n_moved: int, accept_rate: float, scale: float
) -> Report:
    """Report one round of updates of the parameters."""
    return Report(
        float(cost.n_evals),
        float(cost.n_theta_evals),
        float(cost.n_nan),
        float(cost.n_cubic),
        1.0,
        float(n_updates),
        float(n_moved),
        accept_rate,
        scale,
        0.0,
        0.0,
        0.0,
        0.0,
    )


def u_report(
    cost: Cost, n_updates: int, n_moved: int, accept_rate: float, correlation: float = 0.0
) -> Report:
    """Report updates of the randomness, all with the same correlation."""
    return Report(
        float(cost.n_evals),
        float(cost.n_theta_evals),
        float(cost.n_nan),
        float(cost.n_cubic),
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        float(n_updates),
        float(n_moved),
        accept_rate,
        n_updates * correlation,
    )


def combined(report: Report, other: Report) -> Report:
    """Add up two reports."""
    return Report(
        report.n_evals + other.n_evals,
        report.n_theta_evals + other.n_theta_evals,
        report.n_nan + other.n_nan,
        report.n_cubic + other.n_cubic,
        report.n_rounds + other.n_rounds,
        report.n_updates + other.n_updates,
        report.n_moved + other.n_moved,
        report.accept_rate + other.accept_rate,
        report.scale + other.scale,
        report.n_u_updates + other.n_u_updates,
        report.n_u_moved + other.n_u_moved,
        report.u_accept_rate + other.u_accept_rate,
        report.correlation + other.correlation,
    )
