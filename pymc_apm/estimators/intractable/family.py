"""What has to be known of a model with an unknown normaliser: its family of densities."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pymc_apm.deprecated import once_positional
from pymc_apm.errors import ModelError
from pymc_apm.validation import positive_integer


class Family(Protocol):
    """What has to be known of a model with an unknown normaliser.

    :class:`Unnormalised` makes one from functions; :class:`~pymc_apm.estimators.Ising` is one. For
    annealing it has ``transition`` and ``transition_size`` too. It may have a method
    ``prepare(observed)``, which is called once with the observed data, ``anneal(x, parameters,
    reference, u)``, a faster form of :func:`annealed_log_ratio`, and ``easy(*parameters)``, which
    returns parameters of the same shapes at which ``sample`` is fast and exact.
    """

    @property
    def log_g(self) -> Callable[..., float]:
        """``log_g(x, *parameters)``: the log of the unnormalised density."""

    @property
    def sample(self) -> Callable[..., Any]:
        """``sample(*parameters, rng)``: an exact sample."""


@dataclass(frozen=True, eq=False)
class Unnormalised:
    """A model whose normaliser is unknown, made of functions.

    They take each parameter as a number or as an array, as it was declared.

    Parameters
    ----------
    log_g : callable
        ``log_g(x, *parameters)`` returns the log of the unnormalised density.
    sample : callable
        ``sample(*parameters, rng)`` returns an exact sample of the model, with all its random
        numbers from ``rng``, which has the methods of ``numpy.random.Generator``.
    transition : callable, optional
        ``transition(x, *parameters, u)`` returns a new state, made from ``x`` and uniform numbers
        ``u``, by a Markov transition that leaves the model invariant. Needed for annealing.
    transition_size : int
        How many uniform numbers a transition takes.

    Examples
    --------
    An exponential distribution, if nobody knew its normaliser:

    >>> import pymc_apm as apm
    >>> exponential = apm.estimators.Unnormalised(
    ...     log_g=lambda x, rate: -rate * x.sum(),
    ...     sample=lambda rate, rng: rng.exponential(1 / rate, size=5),
    ... )
    """

    log_g: Callable[..., float]
    sample: Callable[..., Any]
    transition: Callable[..., Any] | None = field(default=None, kw_only=True)
    transition_size: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("log_g", "sample"):
            if not callable(getattr(self, name)):
                raise ModelError(f"{name} of Unnormalised must be a function.")
        if self.transition is not None:
            if not callable(self.transition):
                raise ModelError("transition of Unnormalised must be a function.")
            positive_integer("transition_size of Unnormalised", self.transition_size)


# The generated __init__ once took them by position.
Unnormalised.__init__ = once_positional("transition", "transition_size")(  # type: ignore[method-assign]
    Unnormalised.__init__
)
