"""Functions of a quantity that is only estimated, and approximations of growing accuracy."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_apm.black_box import black_box
from pymc_apm.errors import EstimatorError, ModelError
from pymc_apm.estimators.truncation.lengths import (
    Length,
    LengthOption,
    checked_length,
    poisson_number,
)
from pymc_apm.estimators.truncation.series import add_signed, log_and_sign
from pymc_apm.estimators.truncation.symmetric import inverse_survival, mean_products
from pymc_apm.potential import Potential
from pymc_apm.randomness import StandardUniform
from pymc_apm.validation import positive_integer

__all__ = [
    "PoissonEstimator",
    "PowerEstimator",
    "Telescope",
    "exp_of",
    "power_of",
    "reciprocal_of",
    "telescoping",
]

Kind = Literal["uniform", "normal"]


class PoissonEstimator:
    """The exponential of what is estimated, as a function of parameters, guess, rate and rng.

    With N a Poisson number of mean ``rate`` and independent estimates X_i of x,

        exp(guess) * product over i <= N of (1 + (X_i - guess) / rate)

    has the mean exp(x).
    """

    def __init__(self, estimate: Callable[..., Any]) -> None:
        self.estimate = estimate
        self.__name__ = "exp_of"

    def __call__(self, *arguments: Any) -> tuple[float, float]:
        """Return the log of the absolute value of the estimate, and its sign."""
        *parameters, guess, rate, rng = arguments
        log_abs, sign = float(guess), 1.0
        for _ in range(poisson_number(rng.random(), float(rate))):
            factor = 1.0 + (float(self.estimate(*parameters, rng)) - guess) / rate
            log_factor, factor_sign = log_and_sign(float(factor))
            log_abs += log_factor
            sign *= factor_sign
        return log_abs, sign


def exp_of(
    name: str,
    estimate: Callable[..., Any],
    *,
    parameters: Sequence[Any] = (),
    guess: Any,
    rate: Any = 4.0,
    kind: Kind = "uniform",
    positive: bool = False,
    model: pm.Model | None = None,
) -> TensorVariable:
    r"""Add the exponential of something that is only estimated, by the Poisson estimator.

    For an unbiased estimate X of x, for example of a log-likelihood from a part of the data, exp(X)
    is no unbiased estimate of exp(x). With a Poisson number N of mean ``rate`` and independent
    estimates :math:`X_i`,

    .. math:: e^\text{guess} \prod_{i=1}^{N} \left(1 + \frac{X_i - \text{guess}}{\text{rate}}\right)

    is. Its variance is finite if that of X is: relative to exp(2x) it is
    :math:`\exp(E[(X - \text{guess})^2] / \text{rate}) - 1`. So the rate, which is the cost, is to
    be about the mean square of X - guess, or more; and it pays to make that small, by a good guess
    and by control variates in X.

    Declares the stream ``name + "_u"`` and adds the potential ``name``.

    Parameters
    ----------
    name : str
        The name of the potential, unique in the model.
    estimate : callable
        ``estimate(*parameters, rng)`` returns X; all its random numbers are from ``rng``.
    parameters : list of TensorVariable
        What the estimate depends on.
    guess : float or TensorVariable
        A guess of x, as a function of the parameters if it varies with them. If X is never less
        than ``guess - rate``, the estimate is never negative.
    rate : float or TensorVariable
        The mean number of estimates X.
    kind : {"uniform", "normal"}
        What the stream is made of: what ``estimate`` draws most.
    positive : bool
        Whether you know that X is never less than ``guess - rate``. Then no sign is recorded, and a
        negative estimate is an error.
    model : Model, optional
        The model to add it to; the one whose context is open if not given.

    Returns
    -------
    TensorVariable
        The potential as it was added to the model.

    References
    ----------
    Wagner, W. (1988). Monte Carlo evaluation of functionals of solutions of stochastic differential
    equations. doi:10.1080/07362998808809144.

    Fearnhead, P., Papaspiliopoulos, O., Roberts, G. O. and Stuart, A. (2010). Random-weight
    particle filtering of continuous time processes. doi:10.1111/j.1467-9868.2010.00744.x.

    Examples
    --------
    A log-likelihood of many data from ten of them at a time:

    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> y = np.random.default_rng(1).normal(1.0, 1.0, size=1000)
    >>> pilot = y.mean()
    >>> def estimate(mu, rng):
    ...     part = y[rng.integers(len(y), size=10)]
    ...     change = 0.5 * (part - pilot) ** 2 - 0.5 * (part - mu) ** 2
    ...     linear = (part - pilot) * (mu - pilot)  # a control variate, whose sum over all y is 0
    ...     return len(y) * np.mean(change - linear)
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", initval=pilot)
    ...     guess = -0.5 * len(y) * (mu - pilot) ** 2
    ...     log_lik = apm.estimators.exp_of("log_lik", estimate, parameters=[mu], guess=guess)
    ...     idata = pm.sample(20, tune=20, chains=1, progressbar=False)
    """
    _check_callable(f"estimate of exp_of({name!r})", estimate)
    everything = [*_listed(name, parameters), pt.cast(guess, "float64"), pt.cast(rate, "float64")]
    estimator = PoissonEstimator(estimate)
    return add_signed(name, estimator, everything, kind=kind, positive=positive, model=model)


class PowerEstimator:
    """A power of what is estimated, relative to that of a guess, by a binomial series.

    A function of parameters, guess, power and a generator. Each term is the mean over all choices
    of as many estimates as it is a product of.
    """

    def __init__(self, estimate: Callable[..., Any], length: Length) -> None:
        self.estimate = estimate
        self.length = length
        self.__name__ = "power_of"

    def __call__(self, *arguments: Any) -> tuple[float, float]:
        """Return the log of the absolute value of the estimate, and its sign."""
        *parameters, guess, power, rng = arguments
        n_more = self.length.draw(rng.random())
        n = self.length.at_least + n_more
        if power >= 0.0 and power == round(power) and n >= power:
            n = int(power)  # all further terms are zero
        else:
            self.length.refuse_more(n_more)
        factors = [float(self.estimate(*parameters, rng)) / guess - 1.0 for _ in range(n)]
        k = np.arange(n)
        binomials = np.concatenate(([1.0], np.cumprod((power - k) / (k + 1))))
        weights = inverse_survival(self.length, n)
        return log_and_sign(float(weights @ (binomials * mean_products(factors))))


def power_of(
    name: str,
    estimate: Callable[..., Any],
    power: Any,
    *,
    parameters: Sequence[Any] = (),
    guess: Any,
    length: LengthOption = "geometric",
    mean_length: float | None = None,
    at_least: int = 0,
    kind: Kind = "uniform",
    positive: bool = False,
    model: pm.Model | None = None,
) -> TensorVariable:
    r"""Add a power of something positive that is only estimated.

    For independent unbiased estimates :math:`X_i` of x > 0 and a guess c of x, the binomial series

    .. math:: x^p = c^p \sum_k \binom{p}{k} E\left[\prod_{i=1}^{k} (X_i / c - 1)\right]

    is truncated at random; the k-th term is the mean over all choices of k of the estimates that
    are made. If the mean square of X / c - 1 is less than the ratio q of a geometric length, q =
    ``mean_length`` / (1 + ``mean_length``), the estimate is unbiased and has a finite variance.
    Where it is 1 or more, as for x > 2c, the estimate may well be **biased**. So X must be an
    estimate of low noise, and c near to x for every value of the parameters, not for one alone.
    With a positive whole number as the power the series is finite, and there is no such condition.

    Declares the stream ``name + "_u"`` and adds the potential ``name``.

    Parameters
    ----------
    name : str
        The name of the potential, unique in the model.
    estimate : callable
        ``estimate(*parameters, rng)`` returns X; all its random numbers are from ``rng``.
    power : float or TensorVariable
        The power p.
    parameters : list of TensorVariable
        What the estimate depends on.
    guess : float or TensorVariable
        The guess c, positive, as a function of the parameters if it varies with them. Rather too
        large than too small.
    length, mean_length, at_least
        As in :func:`~pymc_apm.estimators.series`.
    kind : {"uniform", "normal"}
        What the stream is made of: what ``estimate`` draws most.
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
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> def estimate(scale, rng):
    ...     return scale * rng.uniform(0.5, 1.5)
    >>> with pm.Model():
    ...     scale = pm.Gamma("scale", 3, 1)
    ...     root = apm.estimators.power_of(
    ...         "root", estimate, 0.5, parameters=[scale], guess=1.1 * scale
    ...     )
    ...     idata = pm.sample(20, tune=20, chains=1, progressbar=False)
    """
    label = f"power_of({name!r})"
    _check_callable(f"estimate of {label}", estimate)
    guess, power = pt.cast(guess, "float64"), pt.cast(power, "float64")
    chosen = checked_length(label, length, mean_length, at_least)
    return add_signed(
        name,
        PowerEstimator(estimate, chosen),
        [*_listed(name, parameters), guess, power],
        log_factor=power * pt.log(guess),
        kind=kind,
        positive=positive,
        model=model,
    )


def reciprocal_of(
    name: str,
    estimate: Callable[..., Any],
    *,
    parameters: Sequence[Any] = (),
    guess: Any,
    length: LengthOption = "geometric",
    mean_length: float | None = None,
    at_least: int = 0,
    kind: Kind = "uniform",
    positive: bool = False,
    model: pm.Model | None = None,
) -> TensorVariable:
    """Add the reciprocal of something positive that is only estimated, such as a normaliser.

    It is :func:`~pymc_apm.estimators.power_of` with the power -1: a geometric series in 1 - X / c,
    with a guess c of x. If X is never more than c, no estimate is negative. If the mean square of
    X / c - 1 is less than ``mean_length`` / (1 + ``mean_length``), the estimate is unbiased and has
    a finite variance; where it is 1 or more, as for x > 2c, it may well be **biased**.

    Parameters
    ----------
    name : str
        The name of the potential, unique in the model.
    estimate : callable
        ``estimate(*parameters, rng)`` returns an unbiased estimate X of x > 0; all its random
        numbers are from ``rng``.
    parameters : list of TensorVariable
        What the estimate depends on.
    guess : float or TensorVariable
        The guess c of x, positive. Rather too large than too small.
    length, mean_length, at_least
        As in :func:`~pymc_apm.estimators.series`.
    kind : {"uniform", "normal"}
        What the stream is made of: what ``estimate`` draws most.
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
    Objects are seen with a probability that depends on their noise. The likelihood of those that
    were seen is divided by the probability to be seen, which is estimated from simulated objects:

    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> def share_seen(mu, rng):
    ...     return np.mean(mu + rng.normal(size=20) > 0)
    >>> with pm.Model():
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, observed=0.4)
    ...     selection = apm.estimators.reciprocal_of(
    ...         "selection", share_seen, parameters=[mu], guess=1.0, positive=True
    ...     )
    ...     idata = pm.sample(20, tune=20, chains=1, progressbar=False)
    """
    return power_of(
        name,
        estimate,
        -1.0,
        parameters=parameters,
        guess=guess,
        length=length,
        mean_length=mean_length,
        at_least=at_least,
        kind=kind,
        positive=positive,
        model=model,
    )


class Telescope:
    """Approximations of growing accuracy, truncated at random: one length for each factor.

    Parameters
    ----------
    log_approximation : callable
        ``log_approximation(level, *parameters)``.
    length : Length
    name : str
    """

    def __init__(self, log_approximation: Callable[..., Any], length: Length, name: str) -> None:
        self.log_approximation = log_approximation
        self.length = length
        self.name = name
        self.__name__ = f"telescoping {name}"
        self._known: tuple[Any, list[NDArray[np.float64]]] = (None, [])

    def __call__(self, *arguments: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the logs of the absolute values of the estimates, and their signs.

        The last argument has a uniform number for each factor. Everything is relative to the
        approximation at the last level, as that at the first may be zero.
        """
        *parameters, v = arguments
        lengths = np.array([self.length.draw(x) for x in v])
        self.length.refuse_more(int(lengths.max()))
        levels = self._levels(self.length.at_least + int(lengths.max()) + 1, parameters, len(v))
        total, logs = np.zeros(len(v)), np.zeros(len(v))
        for factor, length in enumerate(lengths):
            own = levels[: self.length.at_least + length + 1, factor]
            largest = own.max()
            logs[factor] = largest
            if not np.isfinite(largest):
                continue
            values = np.exp(own - largest)
            total[factor] = values[self.length.at_least]
            for k in range(1, length + 1):
                level = self.length.at_least + k
                total[factor] += (values[level] - values[level - 1]) / self.length.survival(k)
        with np.errstate(divide="ignore"):
            logs = logs + np.where(np.isfinite(logs), np.log(np.abs(total)), 0.0)
        return logs, np.where(total < 0.0, -1.0, 1.0)

    def _levels(self, number: int, parameters: Sequence[Any], size: int) -> NDArray[np.float64]:
        """Return the approximations at the first levels; while u moves they are the same."""
        arrays = [np.asarray(parameter) for parameter in parameters]
        key = [(array.shape, array.tobytes()) for array in arrays]
        known_key, known = self._known
        if known_key is None:
            self._check_repeats(parameters, size)
        levels = list(known) if key == known_key else []
        levels += [self._at(level, parameters, size) for level in range(len(levels), number)]
        self._known = (key, levels)
        return np.array(levels[:number])

    def _check_repeats(self, parameters: Sequence[Any], size: int) -> None:
        """Check that an approximation is the same twice: what is kept would hide that it is not."""
        first, second = (self._at(0, parameters, size) for _ in range(2))
        if not np.array_equal(first, second, equal_nan=True):
            raise EstimatorError(
                f"log_approximation of telescoping({self.name!r}) differs between two calls with "
                f"the same arguments, {first} and {second}, but it must be deterministic. Use "
                "apm.estimators.series for terms that are random."
            )

    def _at(self, level: int, parameters: Sequence[Any], size: int) -> NDArray[np.float64]:
        values = np.asarray(self.log_approximation(level, *parameters), dtype=np.float64)
        if values.shape not in ((), (size,)) or (values.ndim == 0 and size > 1):
            raise EstimatorError(
                f"log_approximation of telescoping({self.name!r}) must return "
                f"{'a number' if size == 1 else f'{size} numbers'}, but returned an array of shape "
                f"{values.shape} at level {level}."
            )
        if np.isposinf(values).any():
            raise EstimatorError(
                f"log_approximation of telescoping({self.name!r}) returned +inf at level {level}."
            )
        return values.reshape(-1)


def telescoping(
    name: str,
    log_approximation: Callable[..., Any],
    *,
    parameters: Sequence[Any] = (),
    size: int = 1,
    length: LengthOption = "geometric",
    mean_length: float | None = None,
    at_least: int = 0,
    model: pm.Model | None = None,
) -> TensorVariable:
    r"""Add the limit of deterministic approximations, each more accurate than the one before.

    The exact likelihood Y is the limit of :math:`Y_0, Y_1, Y_2, \ldots`, from finer and finer
    grids, shorter and shorter steps of a solver, larger and larger truncations of a state space.
    The telescoping series :math:`Y = Y_0 + (Y_1 - Y_0) + (Y_2 - Y_1) + \ldots` is truncated at
    random without bias: the posterior has no error of discretisation at all, and an accuracy that
    costs much is paid for seldom.

    The cost of a level must not grow faster than P(N >= level) falls, or its mean is infinite; and
    :math:`(Y_k - Y_{k-1})^2` must fall faster than that, or the variance is. With errors that fall
    like :math:`r^k`, a geometric length with P(N >= k) = :math:`q^k` is fine for q > r^2. If the
    approximations grow towards their limit, no estimate is negative.

    Declares the uniform numbers ``name + "_u"``, one for each factor, which decide on its length,
    and adds the potential ``name``. Signs are recorded: see :func:`pymc_apm.signed`.

    Parameters
    ----------
    name : str
        The name of the potential, unique in the model.
    log_approximation : callable
        ``log_approximation(level, *parameters)``, for level = 0, 1, 2, ..., returns the *log* of
        :math:`Y_\text{level}`; or a vector with one log for each of ``size`` independent factors of
        the likelihood, such as observations, each of which has a length of its own.
    parameters : list of TensorVariable
        What it depends on.
    size : int
        How many factors it returns.
    length, mean_length, at_least
        As in :func:`~pymc_apm.estimators.series`, for the levels: with ``at_least=m`` the level m
        is always reached.
    model : Model, optional
        The model to add it to; the one whose context is open if not given.

    Returns
    -------
    TensorVariable
        The potential as it was added to the model.

    References
    ----------
    Rhee, C.-H. and Glynn, P. W. (2015). Unbiased estimation with square root convergence for SDE
    models. doi:10.1287/opre.2015.1404.

    Georgoulas, A., Hillston, J. and Sanguinetti, G. (2017). Unbiased Bayesian inference for
    population Markov jump processes via random truncations. doi:10.1007/s11222-016-9667-9.

    Examples
    --------
    Exponential decay by Euler's method with 4, 8, 16, ... steps:

    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> def log_lik(level, rate):
    ...     steps = 4 * 2**level
    ...     end = (1.0 - rate / steps) ** steps
    ...     return -0.5 * ((0.4 - end) / 0.1) ** 2
    >>> with pm.Model():
    ...     rate = pm.Uniform("rate", 0, 2)
    ...     y = apm.estimators.telescoping("y", log_lik, parameters=[rate], mean_length=1.0)
    ...     idata = pm.sample(20, tune=20, chains=1, progressbar=False)
    """
    label = f"telescoping({name!r})"
    model = pm.modelcontext(model)
    _check_callable(f"log_approximation of {label}", log_approximation)
    size = positive_integer(f"size of {label}", size)
    estimator = Telescope(
        log_approximation, checked_length(label, length, mean_length, at_least), name
    )
    u = StandardUniform(f"{name}_u", shape=size, model=model)
    outputs = [pt.TensorType("float64", shape=(size,))] * 2
    log_abs, sign = black_box(estimator, outputs=outputs)(*_listed(name, parameters), u)
    factors = 0 if size > 1 else None
    return Potential(name, log_abs, sign=sign, factors=factors, model=model)


def _listed(name: str, parameters: Any) -> list[Any]:
    if not isinstance(parameters, Sequence) or isinstance(parameters, str):
        raise ModelError(f"parameters of {name!r} must be a list, got {parameters!r}.")
    return list(parameters)


def _check_callable(what: str, function: Any) -> None:
    if not callable(function):
        raise ModelError(f"{what} must be a function, got {function!r}.")
