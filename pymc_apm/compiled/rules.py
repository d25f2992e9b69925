"""What a transition is, for the writer of programs."""

from collections.abc import Callable
from typing import Any, NamedTuple


class UMove(NamedTuple):
    """How a piece of randomness is moved.

    Attributes
    ----------
    name : str
    kernel : callable or None
        A slice update; ``None`` for Metropolis independence.
    draw : callable
        Draws from q(u).
    correlated : callable
        Proposes correlated numbers, reversibly under q(u).
    """

    name: str
    kernel: Callable[..., Any] | None
    draw: Callable[..., Any]
    correlated: Callable[..., Any]


class Rules(NamedTuple):
    """What a transition of a step is.

    Attributes
    ----------
    moves : list of UMove
        How each piece of randomness is moved.
    learn, update : callable
        The update of theta while tuning, and after.
    is_joint : (bool, bool)
        Whether theta and u are proposed together instead, while tuning and after.
    correlation : float
        Of a joint proposal of u with the u at hand.
    """

    moves: list[UMove]
    learn: Callable[..., Any]
    update: Callable[..., Any]
    is_joint: tuple[bool, bool]
    correlation: float


class Program(NamedTuple):
    """The source of the functions that run a block of draws.

    Attributes
    ----------
    shared : str
        The source of what they share.
    functions : dict
        The source of each, by its name.
    namespace : dict
        What these refer to.
    """

    shared: str
    functions: dict[str, str]
    namespace: dict[str, Any]
