"""What every update of the parameters reports."""

from typing import NamedTuple


class Report(NamedTuple):
    """What happened in one or several updates of the parameters.

    Attributes
    ----------
    n_updates, n_moved : int
        Lines along which the parameters were updated, or proposals, and those that moved them.
    accept_rate : float
        The sum of the probabilities with which proposals were to be accepted; 0 for slices.
    scale : float
        The mean length of the brackets, or the scale of the random walk.
    """

    n_updates: int
    n_moved: int
    accept_rate: float
    scale: float
