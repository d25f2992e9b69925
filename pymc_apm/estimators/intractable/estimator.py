"""Models whose normaliser is unknown: p(y | theta) = g(y; theta) / Z(theta).

The likelihood is a function of theta through Z too, which is what makes the posterior doubly
intractable. If it is possible to sample from the model exactly, then for any fixed *reference*
parameter theta_hat

    f_hat(theta) = g(y; theta) g(x; theta_hat) / g(x; theta),    x ~ p(x | theta)

has the mean Z(theta_hat) * p(y | theta): the estimator of Møller et al. (2006), equation (3) of the
paper. It is importance sampling of the ratio of the normalisers with one sample. Annealed
importance sampling of the same ratio, along K intermediate distributions, is the MAVM of Murray et
al. (2006): x is moved from theta to theta_hat by transitions that leave these invariant.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_apm.black_box import black_box
from pymc_apm.deprecated import warn_of_old_spelling
from pymc_apm.errors import ModelError, see
from pymc_apm.estimators.intractable.annealing import annealed_log_ratio
from pymc_apm.estimators.intractable.family import Family
from pymc_apm.estimators.intractable.guess import Annealed, pilot_guess
from pymc_apm.estimators.intractable.reference import pilot_reference
from pymc_apm.estimators.intractable.truncated import TruncatedNormaliser
from pymc_apm.estimators.reference import ParameterSpace, values_at
from pymc_apm.estimators.truncation.lengths import checked_length
from pymc_apm.estimators.truncation.series import add_signed
from pymc_apm.potential import Potential
from pymc_apm.randomness import Stream
from pymc_apm.validation import one_of, positive_integer

__all__ = ["DoublyIntractable", "doubly_intractable"]

_log = logging.getLogger("pymc.apm")

NOISY = 0.8
"""An annealed estimate whose log has this standard deviation is negative now and then."""


class DoublyIntractable:
    """The estimator as a function of the parameters and a generator.

    Parameters
    ----------
    family : Family
    observed : object
        The data.
    reference : sequence
        The value of each parameter at which the normaliser is a constant.
    anneal : int
        The number of intermediate distributions.
    names : sequence of str
        The names of the parameters, for error messages.
    """

    def __init__(
        self,
        family: Any,
        observed: Any,
        reference: Sequence[Any],
        anneal: int,
        names: Sequence[str],
    ) -> None:
        self.family = family
        self.observed = observed
        self.reference = list(reference)
        self.anneal = anneal
        self.names = list(names)
        self._transition_size: int = family.transition_size if anneal else 0
        self._nothing = np.empty((0, 0))
        self._anneal: Callable[..., float] = getattr(
            family, "anneal", functools.partial(annealed_log_ratio, family)
        )
        self.__name__ = type(family).__name__
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY)
                for name in _identifiers([*names, "rng"])
            ]
        )

    def __call__(self, *arguments: Any) -> float:
        """Return the log-estimate; the last argument is the generator."""
        *parameters, rng = arguments
        log_ratio = self.log_ratio(parameters, self.reference, rng)
        return self.family.log_g(self.observed, *parameters) + log_ratio

    def log_ratio(self, parameters: Sequence[Any], reference: Sequence[Any], rng: Any) -> float:
        """Return the log of an unbiased estimate of Z(reference) / Z(parameters).

        The numbers for annealing are drawn first, because it is not known how many the exact
        sampler takes: when it takes more than before, the others stay what they were.
        """
        u = rng.random((self.anneal, self._transition_size)) if self.anneal else self._nothing
        x = self.family.sample(*parameters, rng)
        return self._anneal(x, parameters, reference, u)


def doubly_intractable(
    name: str,
    family: Family,
    parameters: Sequence[TensorVariable | ArrayLike],
    observed: Any,
    *,
    kind: Literal["uniform", "normal"] = "uniform",
    anneal: int = 0,
    reference: Mapping[str, ArrayLike] | None = None,
    pilot_draws: int = 100,
    normaliser: Literal["ratio", "series"] = "ratio",
    at_least: int = 4,
    mean_length: float = 1.0,
    model: pm.Model | None = None,
) -> TensorVariable:
    """Add the likelihood of data whose model has an unknown normaliser, by an unbiased estimate.

    Declares the stream of random numbers ``name + "_u"`` and adds the potential ``name``.

    Parameters
    ----------
    name : str
        The name of the potential, unique in the model.
    family : Family
        The model of the data: an :class:`Unnormalised`, or an
        :class:`~pymc_apm.estimators.Ising`.
    parameters : list of variables
        Its parameters, in the order in which its functions take them.
    observed : object
        The data, as ``log_g`` takes it.
    kind : {"uniform", "normal"}
        What the stream is made of: what the exact sampler draws most.
    anneal : int
        The number K of intermediate distributions between a parameter and the reference. 0 is
        plain importance sampling. More of them make the estimate less noisy, and
        ``family.transition`` is called K times. They are worth their cost if the standard deviation
        of the log-estimate is well above 1.
    reference : dict, optional
        Values of the random variables that the parameters depend on, by name, such as
        ``{"coupling": 0.3, "field": 0.0}``. The estimate is best for parameters near the reference,
        so it should be in the middle of the posterior. By default it is a pilot estimate, see
        below.
    pilot_draws : int
        Samples in each round of the pilot estimate.
    normaliser : {"ratio", "series"}
        ``"ratio"`` needs exact samples at all parameters. ``"series"`` is for families that can be
        sampled exactly at the reference alone: see below.
    at_least, mean_length
        With ``normaliser="series"``, how many annealed estimates each estimate of the likelihood
        takes: one as a guess, ``at_least``, and a random number with the mean ``mean_length``.
    model : Model, optional
        The model to add it to; the one whose context is open if not given.

    Returns
    -------
    TensorVariable
        The log-estimate as it was added to the model.

    Notes
    -----
    *The pilot estimate* is the mode of the posterior by the method of Geyer and Thompson (1992):
    the likelihood ratio to the current value, estimated with exact samples at that value, is
    maximised as far as these samples reach, and again from there. It starts where a chain would
    start, always draws the same random numbers, and is reported in the log. The result may be far
    off without any harm but to efficiency: the posterior is exact for every reference.

    Between parameters and reference, annealing goes along a straight line, so the model must exist
    for the parameters on it.

    *Without an exact sampler*, ``normaliser="series"`` estimates Z(theta) / Z(reference) by
    annealed importance sampling from the reference to theta, several times, and 1 / Z by a series
    in these estimates that is truncated at random, as :func:`~pymc_apm.estimators.reciprocal_of`.
    So ``family.sample`` is called at the reference alone, and must be exact there; the transitions
    must leave each intermediate model invariant, but need not be many, or mix well, for the mean to
    be right. The reference has to be a model that is easy to sample, such as independent spins,
    which is what it is for an :class:`~pymc_apm.estimators.Ising` if none is given. The series is
    centred at a guess of Z, by importance sampling around the mode of the posterior, which a pilot
    finds before sampling and which never changes. Estimates may be negative: use
    :func:`pymc_apm.signed`. Choose ``anneal`` so that the standard deviation of the log of an
    annealed estimate, which is in the log, is 0.5 or less.

    References
    ----------
    Møller, J., Pettitt, A. N., Reeves, R. and Berthelsen, K. K. (2006). An efficient Markov chain
    Monte Carlo method for distributions with intractable normalising constants.
    doi:10.1093/biomet/93.2.451.

    Murray, I., Ghahramani, Z. and MacKay, D. J. C. (2006). MCMC for doubly-intractable
    distributions. UAI. arXiv:1206.6848.

    Lyne, A.-M., Girolami, M., Atchadé, Y., Strathmann, H. and Simpson, D. (2015). On Russian
    roulette estimates for Bayesian inference with doubly-intractable likelihoods.
    doi:10.1214/15-STS523.

    Geyer, C. J. and Thompson, E. A. (1992). Constrained Monte Carlo maximum likelihood for
    dependent data. doi:10.1111/j.2517-6161.1992.tb01443.x.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> ising = apm.estimators.Ising.torus(5, 5)
    >>> y = ising.sample(0.2, 0.0, np.random.default_rng(1))
    >>> with pm.Model():
    ...     coupling = pm.Uniform("coupling", 0, 0.4)
    ...     field = pm.Normal("field", 0, 0.5)
    ...     log_lik = apm.estimators.doubly_intractable("y", ising, [coupling, field], y)
    ...     idata = pm.sample(20, tune=20, chains=1, progressbar=False)
    """
    model = pm.modelcontext(model)
    anneal = positive_integer("anneal of doubly_intractable", anneal, minimum=0)
    _check_family(family, anneal)
    one_of("normaliser of doubly_intractable", normaliser, "ratio", "series")
    if isinstance(parameters, Variable) or not isinstance(parameters, Sequence) or not parameters:
        raise ModelError(
            "parameters of doubly_intractable must be a list with all parameters of the family, "
            f"got {parameters!r}."
        )
    variables = [pt.as_tensor_variable(parameter) for parameter in parameters]
    names = [variable.name or f"parameter_{place + 1}" for place, variable in enumerate(variables)]
    observed = family.prepare(observed) if hasattr(family, "prepare") else observed
    pilot_draws = positive_integer("pilot_draws of doubly_intractable", pilot_draws)
    if reference is None and normaliser == "series":
        values = _easy(family, variables, model)
    elif reference is None:
        values = pilot_reference(name, family, variables, observed, pilot_draws, model)
    elif isinstance(reference, Sequence):
        warn_of_old_spelling(
            "reference of doubly_intractable is a dict with values of random variables by name: "
            f"reference={{{', '.join(f'{known!r}: ...' for known in names)}}}. A list in the order "
            "of the parameters is deprecated."
        )
        values = _in_order(reference, variables, names)
    else:
        values = [value[()] for value in values_at(reference, variables, model)]
    estimator = DoublyIntractable(family, observed, values, anneal, names)
    if normaliser == "ratio":
        u = Stream(f"{name}_u", kind=kind, model=model)
        return Potential(name, black_box(estimator)(*variables, u), model=model)
    length = checked_length("doubly_intractable", "geometric", mean_length, at_least)
    easy = Annealed(family, values, anneal)
    guess, sd = pilot_guess(name, easy, variables, observed, pilot_draws, model)
    _log.log(
        logging.INFO if sd < NOISY else logging.WARNING,
        "The log of an annealed estimate of the normaliser of %s has a standard deviation of %.2f "
        "at the mode, with anneal=%d%s",
        name,
        sd,
        anneal,
        ""
        if sd < NOISY
        else ". That is too much: there will be negative signs, and few effective "
        "draws. Give a larger anneal.",
    )
    truncated = TruncatedNormaliser(estimator, guess, length)
    return add_signed(name, truncated, variables, kind=kind, model=model)


def _easy(family: Any, variables: Sequence[TensorVariable], model: pm.Model) -> list[Any]:
    """Return the parameters of a family, of the shapes of some, at which it is easy to sample."""
    if not hasattr(family, "easy"):
        raise ModelError(
            'With normaliser="series", doubly_intractable needs a reference: parameters at which '
            f"the sample of the family is exact. {see('doubly_intractable')}"
        )
    space = ParameterSpace(variables, model)
    return list(family.easy(*(value[()] for value in space.values(space.start))))


def _check_family(family: Any, anneal: int) -> None:
    missing = [name for name in ("log_g", "sample") if not callable(getattr(family, name, None))]
    if missing:
        raise ModelError(
            f"The family of doubly_intractable has no {' and no '.join(missing)}: {family!r}. Make "
            "one with apm.estimators.Unnormalised(log_g=..., sample=...). "
            + see("doubly_intractable")
        )
    if anneal and getattr(family, "transition", None) is None:
        raise ModelError(
            "Annealing moves the sample by a transition that leaves each intermediate distribution "
            "invariant, and the family has none: give it with "
            "apm.estimators.Unnormalised(..., transition=..., transition_size=...), or use "
            f"anneal=0. {see('doubly_intractable')}"
        )


def _in_order(
    reference: Sequence[ArrayLike], variables: Sequence[TensorVariable], names: Sequence[str]
) -> list[Any]:
    """Check a reference in its old form, a value for each parameter of the family."""
    values = [np.asarray(value, dtype=np.float64) for value in reference]
    wanted = [variable.type.ndim for variable in variables]
    is_finite = all(np.isfinite(value).all() for value in values)
    if [value.ndim for value in values] != wanted or not is_finite:
        raise ModelError(
            "reference of doubly_intractable must have one finite value for each of "
            f"{', '.join(names)}, got {reference!r}."
        )
    return [value[()] for value in values]


def _identifiers(names: Sequence[str]) -> list[str]:
    """Make names of arguments from names of variables."""
    cleaned = ["".join(c if c.isalnum() else "_" for c in name) for name in names]
    if any(not name.isidentifier() for name in cleaned) or len(set(cleaned)) < len(cleaned):
        return [f"argument_{place + 1}" for place in range(len(names))]
    return cleaned
