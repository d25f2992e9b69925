"""An infinite series, truncated at random without bias.

For a sum S of terms a_0 + a_1 + ... and a random length N that is independent of the terms,

    Russian roulette:  sum over k <= N of a_k / P(N >= k)
    single term:       a_N / P(N = N's value)

both have the mean S, if the sum of E|a_k| is finite. The terms may be random, as long as the mean
of the k-th is a_k; those of one estimate need not be independent of each other.
"""

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_apm.black_box import black_box
from pymc_apm.errors import EstimatorError, ModelError, see
from pymc_apm.estimators.truncation.lengths import Length, LengthOption, checked_length
from pymc_apm.potential import Potential
from pymc_apm.randomness import Stream
from pymc_apm.validation import one_of

__all__ = ["RandomSeries", "series"]

Method = Literal["roulette", "single"]

BEYOND = 4
"""So many terms beyond the longest length are looked at: every other one may be zero."""


class RandomSeries:
    """The sum of a series, truncated at random, as a function of the parameters and a generator.

    Parameters
    ----------
    terms : callable
        ``terms(*parameters, rng)`` yields one term after the other.
    length : Length
    method : {"roulette", "single"}
    """

    def __init__(
        self, terms: Callable[..., Iterator[float]], length: Length, method: Method
    ) -> None:
        self.terms = terms
        self.length = length
        self.method = method
        self.__name__ = "series"

    def total(self, *arguments: Any) -> float:
        """Return the estimate of the sum; the last argument is a generator.

        The length is drawn before the terms, and from a number of its own.
        """
        *parameters, rng = arguments
        at_least, survival = self.length.at_least, self.length.survival
        n_more = self.length.draw(rng.random())
        terms = self.terms(*parameters, rng)
        total = 0.0
        for k, term in enumerate(itertools.islice(terms, at_least + n_more + 1)):
            beyond = k - at_least
            if self.method == "roulette":
                total += float(term) / (survival(beyond) if beyond > 0 else 1.0)
            elif beyond < 0:
                total += float(term)
            elif beyond == n_more:
                total += float(term) / (survival(beyond) - survival(beyond + 1))
            elif survival(beyond) == survival(beyond + 1) and float(term) != 0.0:
                raise EstimatorError(
                    f"Term {k} of a series is not zero, but is never taken: the probability of "
                    "its length, P(N >= k) - P(N >= k + 1), is zero. The estimate would be biased. "
                    'Choose another length, or method="roulette".'
                )
        if survival(n_more + 1) <= 0.0:
            beyond_all = itertools.islice(terms, BEYOND)
            if any(float(term) != 0.0 for term in beyond_all):
                self.length.refuse_more(n_more)
        return total

    def __call__(self, *arguments: Any) -> tuple[float, float]:
        """Return the log of the absolute value of the estimate, and its sign."""
        return log_and_sign(self.total(*arguments))


def log_and_sign(value: float) -> tuple[float, float]:
    """Return the log of the absolute value of a number, and its sign: 1 for zero."""
    if math.isnan(value):
        return math.nan, 1.0
    return (math.log(abs(value)) if value else -math.inf), (-1.0 if value < 0.0 else 1.0)


def series(
    name: str,
    term: Callable[..., Any],
    *,
    parameters: Sequence[Any] = (),
    length: LengthOption = "geometric",
    mean_length: float | None = None,
    at_least: int = 0,
    method: Method = "roulette",
    log_factor: TensorVariable | None = None,
    kind: Literal["uniform", "normal"] = "uniform",
    positive: bool = False,
    model: pm.Model | None = None,
) -> TensorVariable:
    """Add an infinite series to a model as a likelihood, truncated at random without bias.

    Declares the stream of random numbers ``name + "_u"`` and adds the potential ``name``: the log
    of the absolute value of the truncated sum, with its sign, as the sum may be negative. Use
    :func:`pymc_apm.signed` for what comes out of the chain.

    You must guarantee that the sum of the E|a_k| is finite, or the estimate is biased, and that the
    length falls slowly enough for a finite variance, or the chain sticks: for independent terms,
    the sum of E[a_k^2] / P(N >= k) must be finite. With terms that fall like r^k, a geometric
    length with P(N >= k) = q^k has a finite variance for q > r^2, so that ``mean_length``, which is
    q / (1 - q), is to be more than r^2 / (1 - r^2). A Poisson length falls faster than any such
    series, and is for terms that fall like 1 / k!.

    Parameters
    ----------
    name : str
        The name of the potential, unique in the model.
    term : callable
        ``term(k, *parameters, rng)`` returns the k-th term, for k = 0, 1, 2, ..., in this order. It
        may be random: it takes all its random numbers from ``rng``, and its mean is what counts.
        Or a generator, ``term(*parameters, rng)``, that yields one term after the other, which can
        make each from the one before. If it ends, the series is finite.
    parameters : list of TensorVariable
        What the terms depend on: variables of the model, or functions of them.
    length : {"geometric", "poisson"} or callable
        The distribution of the number N of terms beyond the first; or its survival function,
        ``length(k)`` = P(N >= k), which must be positive for every k for which there is a term. It
        cannot depend on the terms, or on anything else: the estimate would be biased.
    mean_length : float, optional
        The mean of N, 4 if not given: as many terms are computed for each estimate, and one.
    at_least : int
        How many more terms are computed in any case. It takes out noise where the first terms are
        the large ones.
    method : {"roulette", "single"}
        Whether to weigh each of the terms up to the N-th, or to take the N-th alone with a larger
        weight. The terms before it are computed only if ``term`` is a generator.
    log_factor : TensorVariable, optional
        The log of a positive factor of the sum, such as the scale of a likelihood.
    kind : {"uniform", "normal"}
        What the stream is made of: what ``term`` draws most.
    positive : bool
        Whether you know that no estimate is negative. Then no sign is recorded, and a negative
        estimate is an error.
    model : Model, optional
        The model to add it to; the one whose context is open if not given.

    Returns
    -------
    TensorVariable
        The potential as it was added to the model.

    Examples
    --------
    The likelihood of a sum of a Poisson number of exponential claims is a series. Its k-th term
    here has one claim more than the term before:

    >>> import math
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> total = 4.0
    >>> def term(k, rate, rng):
    ...     claims = k + 1
    ...     log_count = claims * math.log(rate) - rate - math.lgamma(claims + 1)
    ...     log_density = k * math.log(total) - total - math.lgamma(claims)
    ...     return math.exp(log_count + log_density)
    >>> with pm.Model():
    ...     rate = pm.Gamma("rate", 2, 1)
    ...     claims = apm.estimators.series("claims", term, parameters=[rate], positive=True)
    ...     idata = pm.sample(20, tune=20, chains=1, progressbar=False)
    """
    label = f"series({name!r})"
    if not callable(term):
        raise ModelError(f"term of {label} must be a function, got {term!r}.")
    one_of(f"method of {label}", method, "roulette", "single")
    estimator = RandomSeries(
        as_terms(term, method), checked_length(label, length, mean_length, at_least), method
    )
    return add_signed(
        name,
        estimator,
        parameters,
        log_factor=log_factor,
        kind=kind,
        positive=positive,
        model=model,
    )


def as_terms(term: Callable[..., Any], method: Method) -> Callable[..., Iterator[float]]:
    """Return a function that yields one term after the other."""
    if inspect.isgeneratorfunction(inspect.unwrap(term)):
        return term
    return EachByItself(term, is_lazy=method == "single")


class EachByItself:
    """The terms of a series, by their number: when taken alone, those before are not computed.

    Parameters
    ----------
    term : callable
        ``term(k, *parameters, rng)``.
    is_lazy : bool
        Whether to compute a term only when its value is asked for.
    """

    def __init__(self, term: Callable[..., Any], is_lazy: bool) -> None:
        self.term = term
        self.is_lazy = is_lazy

    def __call__(self, *arguments: Any) -> Iterator[Any]:
        """Yield the terms."""
        for k in itertools.count():
            yield Lazy(self.term, k, arguments) if self.is_lazy else self.term(k, *arguments)


class Lazy:
    """A number that is computed when it is made a float."""

    def __init__(self, term: Callable[..., Any], k: int, arguments: Sequence[Any]) -> None:
        self.term = term
        self.k = k
        self.arguments = arguments

    def __float__(self) -> float:
        """Compute it."""
        return float(self.term(self.k, *self.arguments))


class Positive:
    """An estimator that is known not to be negative: it has no sign."""

    def __init__(self, estimator: Callable[..., tuple[float, float]], name: str) -> None:
        self.estimator = estimator
        self.name = name
        self.__name__ = name

    def __call__(self, *arguments: Any) -> float:
        """Return the log of the estimate."""
        log_abs, sign = self.estimator(*arguments)
        if sign < 0.0:
            raise EstimatorError(
                f"The estimate of {self.name} is negative, -exp({log_abs:g}), although it was "
                f"declared not to be, by positive=True. {see('series')}"
            )
        return log_abs


def add_signed(
    name: str,
    estimator: Callable[..., tuple[float, float]],
    parameters: Sequence[Any],
    *,
    log_factor: TensorVariable | None = None,
    kind: Literal["uniform", "normal"] = "uniform",
    positive: bool = False,
    model: pm.Model | None = None,
) -> TensorVariable:
    """Add an estimator to a model that returns a log and a sign, on a stream of its own."""
    model = pm.modelcontext(model)
    if not isinstance(parameters, Sequence) or isinstance(parameters, str):
        raise ModelError(f"parameters of {name!r} must be a list, got {parameters!r}.")
    stream = Stream(f"{name}_u", kind=kind, model=model)
    sign = None
    if positive:
        log_abs = black_box(Positive(estimator, name))(*parameters, stream)
    else:
        box = black_box(estimator, outputs=[pt.dscalar, pt.dscalar])
        log_abs, sign = box(*parameters, stream)
    if log_factor is not None:
        log_abs = log_abs + log_factor
    return Potential(name, log_abs, sign=sign, model=model)
