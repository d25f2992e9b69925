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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_apm.black_box import black_box
from pymc_apm.deprecated import warn_of_old_spelling
from pymc_apm.errors import ModelError, see
from pymc_apm.estimators.intractable.family import Family
from pymc_apm.estimators.intractable.reference import pilot_reference
from pymc_apm.estimators.reference import values_at
from pymc_apm.potential import Potential
from pymc_apm.randomness import Stream
from pymc_apm.validation import positive_integer

__all__ = ["DoublyIntractable", "doubly_intractable"]


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


def annealed_log_ratio(
    family: Any,
    x: Any,
    parameters: Sequence[Any],
    reference: Sequence[Any],
    u: NDArray[np.float64],
) -> float:
    """Estimate log Z(reference) / Z(parameters) by annealed importance sampling (Neal, 2001).

    Parameters
    ----------
    family : Family
    x : object
        An exact sample at the parameters.
    parameters, reference : sequence
        Both ends of the straight line along which the intermediate distributions are.
    u : ndarray
        The uniform numbers of the transition at each of these, one row for each; without any, this
        is plain importance sampling.

    Returns
    -------
    float
    """
    log_weight = 0.0
    here = parameters
    for k, numbers in enumerate(u, start=1):
        weight = k / (len(u) + 1)
        there = [
            (1.0 - weight) * start + weight * end
            for start, end in zip(parameters, reference, strict=True)
        ]
        log_weight += family.log_g(x, *there) - family.log_g(x, *here)
        x = family.transition(x, *there, numbers)
        here = there
    return log_weight + family.log_g(x, *reference) - family.log_g(x, *here)


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
        Exact samples in each round of the pilot estimate.
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

    References
    ----------
    Møller, J., Pettitt, A. N., Reeves, R. and Berthelsen, K. K. (2006). An efficient Markov chain
    Monte Carlo method for distributions with intractable normalising constants.
    doi:10.1093/biomet/93.2.451.

    Murray, I., Ghahramani, Z. and MacKay, D. J. C. (2006). MCMC for doubly-intractable
    distributions. UAI. arXiv:1206.6848.

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
    if isinstance(parameters, Variable) or not isinstance(parameters, Sequence) or not parameters:
        raise ModelError(
            "parameters of doubly_intractable must be a list with all parameters of the family, "
            f"got {parameters!r}."
        )
    variables = [pt.as_tensor_variable(parameter) for parameter in parameters]
    names = [variable.name or f"parameter_{place + 1}" for place, variable in enumerate(variables)]
    observed = family.prepare(observed) if hasattr(family, "prepare") else observed
    if reference is None:
        pilot_draws = positive_integer("pilot_draws of doubly_intractable", pilot_draws)
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
    u = Stream(f"{name}_u", kind=kind, model=model)
    return Potential(name, black_box(estimator)(*variables, u), model=model)


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
