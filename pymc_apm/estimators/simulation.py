"""Simulators without a likelihood: approximate Bayesian computation with clamped randomness.

A simulator turns parameters and random numbers into data x. The ABC likelihood of observed data y
is the mean of a kernel K of the distance between summaries s of the two,

    integral of K((s(x) - s(y)) / epsilon) p(x | theta) dx,

and K at simulated data is an unbiased estimate of it. So a pseudo-marginal chain has the ABC
posterior at its epsilon as its exact target. With u clamped the simulated data are a deterministic
function of the parameters, and a chain that moves u and theta by slice sampling stays near to the
observed data.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_apm.black_box import black_box
from pymc_apm.errors import EstimatorError, ModelError, describe_value
from pymc_apm.potential import Potential
from pymc_apm.randomness import Seed, StandardNormal, StandardUniform, Stream
from pymc_apm.validation import numbers, one_of, positive_integer

__all__ = ["ABCEstimator", "abc"]

_log = logging.getLogger("pymc.apm")

Kernel = Literal["normal", "laplace", "uniform"]


def _normal(distance: NDArray[np.float64]) -> Any:
    return -0.5 * np.square(distance).sum(axis=-1)


def _laplace(distance: NDArray[np.float64]) -> Any:
    return -np.abs(distance).sum(axis=-1)


def _uniform(distance: NDArray[np.float64]) -> Any:
    square = np.square(distance).sum(axis=-1)
    return np.where(np.isnan(square), np.nan, np.where(square <= 1.0, 0.0, -np.inf))


KERNELS: dict[str, Callable[[NDArray[np.float64]], Any]] = {
    "normal": _normal,
    "laplace": _laplace,
    "uniform": _uniform,
}
"""The logs of kernels, up to a constant, as functions of scaled differences along the last axis."""


NEAR = 20
"""How many of the parameters that are drawn from the prior a pilot looks at closely."""

REPEATS = 10
"""How often each of them is simulated again."""

FAR = 1e150
"""The largest distance, in units of epsilon, that is told from others: its square is finite."""


class ABCEstimator:
    """The ABC likelihood, estimated, as a function of the parameters and a generator.

    Parameters
    ----------
    simulate : callable
        ``simulate(*parameters, rng)``.
    observed : array
    summary : callable or None
    kernel : str
    epsilon : array
    samples : int
    name : str
    """

    def __init__(
        self,
        simulate: Callable[..., Any],
        observed: Any,
        summary: Callable[[Any], Any] | None,
        kernel: Kernel,
        epsilon: NDArray[np.float64],
        samples: int,
        name: str,
    ) -> None:
        self.simulate = simulate
        self.summary = summary
        self.kernel = KERNELS[kernel]
        self.samples = samples
        self.name = name
        self.__name__ = f"abc {name}"
        found = self.summarise(observed)
        self.shape = found.shape
        self.wanted = found.flatten()  # a copy: the user may change the data later
        if self.wanted.size == 0 or not np.isfinite(self.wanted).all():
            raise ModelError(
                f"The summaries of the observed data of abc({name!r}) must be finite numbers, but "
                f"they are {self.wanted}."
            )
        self.check_epsilon(epsilon)
        self.epsilon = epsilon

    def check_epsilon(self, epsilon: NDArray[np.float64]) -> None:
        """Check that epsilon is a positive number, or one for each summary."""
        is_valid = bool((np.isfinite(epsilon) & (epsilon > 0.0)).all())
        if epsilon.ndim > 1 or epsilon.size not in (1, self.wanted.size) or not is_valid:
            raise ModelError(
                f"epsilon of abc({self.name!r}) must be a positive number, or one for each of the "
                f"{self.wanted.size} summaries, got {epsilon}."
            )

    def summarise(self, data: Any) -> NDArray[np.float64]:
        """Return the summaries of some data, as an array; what is masked is not a number."""
        found = data if self.summary is None else self.summary(data)
        if np.ma.is_masked(found):
            found = np.ma.filled(found.astype(np.float64), np.nan)
        return np.squeeze(np.asarray(found, dtype=np.float64))

    def __call__(self, *arguments: Any) -> float:
        """Return the log of the mean of the kernel; the last argument is the generator."""
        return self.at(self.epsilon, *arguments)

    def at(self, epsilon: NDArray[np.float64], *arguments: Any) -> float:
        """Return the same for another epsilon.

        A simulation that is not a number has the kernel zero, beside others as by itself: the mean
        would depend on how many there are.
        """
        logs = [self._log_kernel(self.simulate(*arguments), epsilon) for _ in range(self.samples)]
        valid = [log for log in logs if not math.isnan(log)]
        largest = max(valid, default=math.nan)
        if not math.isfinite(largest):
            return largest
        return largest + math.log(sum(math.exp(log - largest) for log in valid) / len(logs))

    def _log_kernel(self, data: Any, epsilon: NDArray[np.float64]) -> float:
        distance = (self.comparable(data) - self.wanted) / epsilon
        # Beyond this the square of a distance is infinite: far away, but not a zero.
        return float(self.kernel(np.clip(distance, -FAR, FAR)))

    def comparable(self, data: Any) -> NDArray[np.float64]:
        """Return the summaries of simulated data, as a vector, in the order of the observed ones.

        There must be as many of them, and an array with its axes in another order is refused.
        """
        found = self.summarise(data)
        is_other = found.ndim == len(self.shape) and found.shape != self.shape
        if found.size != self.wanted.size or is_other:
            raise EstimatorError(
                f"The simulator of abc({self.name!r}) made data with {found.size} summaries, of "
                f"the shape {found.shape}, but the observed data have {self.wanted.size}, of the "
                f"shape {self.shape}."
            )
        return found.reshape(-1)


class AtEpsilon:
    """An :class:`ABCEstimator` whose epsilon is an argument, before the generator."""

    def __init__(self, estimator: ABCEstimator) -> None:
        self.estimator = estimator
        self.__name__ = estimator.__name__

    def __call__(self, *arguments: Any) -> float:
        """Return the log of the mean of the kernel."""
        *parameters, epsilon, rng = arguments
        self.estimator.check_epsilon(epsilon)
        return self.estimator.at(epsilon, *parameters, rng)


def pilot_epsilon(
    estimator: ABCEstimator,
    parameters: Sequence[Any],
    n_draws: int,
    model: pm.Model,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Find epsilon: half of the noise of each summary, at parameters whose data are near.

    Parameters
    ----------
    estimator : ABCEstimator
    parameters : sequence of Variable
    n_draws : int
        How many parameters are drawn from the prior.
    model : Model
    seed : int

    Returns
    -------
    ndarray
    """
    rng = np.random.default_rng(seed)
    variables = [pt.as_tensor_variable(parameter) for parameter in parameters]
    with model:
        drawn = pm.draw(variables, draws=n_draws, random_seed=rng) if variables else []
    draws = [[values[i] for values in drawn] for i in range(n_draws)]

    def simulated(values: Sequence[Any]) -> NDArray[np.float64]:
        return estimator.comparable(estimator.simulate(*values, rng))

    with np.errstate(all="ignore"):
        found = np.array([simulated(values) for values in draws])
        centre = np.nanmedian(found, axis=0)
        scale = np.nanmedian(np.abs(found - centre), axis=0)
        scaled = (found - estimator.wanted) / np.where(scale > 0.0, scale, 1.0)
        distances = np.square(np.clip(scaled, -FAR, FAR)).sum(axis=1)
    nearest = np.argsort(distances)[:NEAR]  # what is not a number comes last
    repeated = np.array([[simulated(draws[i]) for _ in range(REPEATS)] for i in nearest])
    noise = np.sqrt(np.mean(np.var(repeated, axis=1, ddof=1), axis=0))
    if not (np.isfinite(noise).all() and (noise > 0.0).all()):
        raise ModelError(
            f"The pilot for epsilon of abc({estimator.name!r}) found that the standard deviations "
            f"of the summaries in simulations near to the observed data are {noise}: they must be "
            "positive and finite. Give epsilon, or other summaries or a narrower prior."
        )
    return 0.5 * noise


class EachABCEstimator:
    """The same for independent data, each of which is simulated from random numbers of its own.

    Parameters
    ----------
    simulate : callable
        ``simulate(*parameters, u)``, with a row of u for each datum.
    observed : array
        With a row, or a number, for each datum.
    kernel : str
    epsilon : array
    name : str
    """

    def __init__(
        self,
        simulate: Callable[..., Any],
        observed: NDArray[np.float64],
        kernel: Kernel,
        epsilon: NDArray[np.float64],
        name: str,
    ) -> None:
        self.simulate = simulate
        self.shape = observed.shape
        self.wanted = observed.reshape(len(observed), -1).copy()
        self.kernel = KERNELS[kernel]
        self.name = name
        self.__name__ = f"abc {name}"
        try:
            self.epsilon = np.broadcast_to(epsilon, observed.shape).reshape(self.wanted.shape)
            is_valid = bool((self.epsilon > 0.0).all())
        except ValueError:
            is_valid = False
        if not is_valid:
            raise ModelError(
                f"epsilon of abc({name!r}) must be a positive number, or an array of such that can "
                f"be broadcast to the observed data, of shape {observed.shape}; got {epsilon}."
            )
        if not np.isfinite(observed).all():
            raise ModelError(f"The observed data of abc({name!r}) must be finite numbers.")

    def __call__(self, *arguments: Any) -> NDArray[np.float64]:
        """Return the log of the mean of the kernel for each datum; the last argument is u."""
        *parameters, u = arguments
        logs = np.array([self._log_kernels(self.simulate(*parameters, sample)) for sample in u])
        # A simulation that is not a number has the kernel zero, beside others as by itself.
        is_failed = np.isnan(logs)
        logs = np.where(is_failed, -np.inf, logs)
        largest = logs.max(axis=0)
        shift = np.where(np.isfinite(largest), largest, 0.0)
        with np.errstate(divide="ignore"):
            result = shift + np.log(np.exp(logs - shift).mean(axis=0))
        return np.where(is_failed.all(axis=0), np.nan, result)

    def _log_kernels(self, data: Any) -> NDArray[np.float64]:
        found = np.asarray(data, dtype=np.float64)
        is_other = found.ndim == len(self.shape) and found.shape != self.shape
        if found.shape[:1] != self.shape[:1] or found.size != self.wanted.size or is_other:
            raise EstimatorError(
                f"The simulator of abc({self.name!r}) made data of shape {found.shape}, but it is "
                f"to make {len(self.wanted)} data with {self.wanted[0].size} numbers each, as the "
                f"observed ones of shape {self.shape}."
            )
        distance = (found.reshape(self.wanted.shape) - self.wanted) / self.epsilon
        return np.asarray(self.kernel(np.clip(distance, -FAR, FAR)))


def abc(
    name: str,
    simulate: Callable[..., Any],
    observed: Any,
    *,
    epsilon: ArrayLike | None = None,
    parameters: Sequence[Any] = (),
    summary: Callable[[Any], Any] | None = None,
    kernel: Kernel = "normal",
    samples: int = 1,
    pilot_draws: int = 1000,
    each: int | None = None,
    kind: Literal["normal", "uniform", "seed"] = "normal",
    model: pm.Model | None = None,
) -> TensorVariable:
    r"""Add a simulator to a model in place of a likelihood: approximate Bayesian computation.

    The potential ``name`` is the log of an unbiased estimate of the ABC likelihood,

    .. math:: \int K\left(\frac{s(x) - s(y)}{\epsilon}\right) p(x \mid \theta)\, dx,

    of the observed data y: the mean of the kernel K over ``samples`` simulations of x. The
    posterior is exactly the ABC posterior at this ``epsilon``, whatever the number of
    simulations; it is that of a model in which the summaries were observed with an error of the
    form of K and the scale epsilon. The random numbers of the simulator, ``name + "_u"``, are part
    of the state of the chain, which moves them by slice sampling: so simulated data stay near to
    the observed. The smaller epsilon is, the smaller are these moves: how small it can be depends
    on the simulator, and sequential Monte Carlo (``pm.sample_smc``) may be as good or better.

    That works best where the simulator makes its data from its random numbers by continuous
    functions, as most do that draw normal, exponential or other continuous numbers.

    Parameters
    ----------
    name : str
        The name of the potential, unique in the model.
    simulate : callable
        ``simulate(*parameters, rng)`` returns simulated data, in the form of ``observed``. All its
        random numbers are from ``rng``, which has the drawing methods of
        ``numpy.random.Generator``.
    observed : object
        The observed data: an array, or whatever ``summary`` takes.
    epsilon : float or array, optional
        The scale of the kernel, for all summaries or one for each, in their units. If not given, a
        pilot finds it, reports it in the log, and fixes it before sampling: see below.
    parameters : list of TensorVariable
        The parameters of the simulator.
    summary : callable, optional
        ``summary(data)`` returns a vector of summaries; the data themselves if not given.
    kernel : {"normal", "laplace", "uniform"}
        The normal kernel is that of ``pm.Simulator`` with its "gaussian" distance,
        :math:`\exp(-\sum d^2 / 2)` for the differences d of all summaries in units of epsilon; the
        Laplace kernel :math:`\exp(-\sum |d|)`; the uniform one 1 where :math:`\sum d^2 \le 1`,
        0 elsewhere. That one gives a chain no direction where it is far away: it needs a starting
        point whose simulations come near enough.
    samples : int
        How many simulations to average over for each estimate. One is best as a rule.
    pilot_draws : int
        How many simulations the pilot makes with parameters from the prior.
    each : int, optional
        For data that are independent given the parameters: how many random numbers one of them is
        made of. Then the second argument of the simulator is not a generator:
        ``simulate(*parameters, u)`` makes datum i from the row ``u[i]`` alone, and the kernel
        is that of each datum by itself. The random numbers of all data are updated side by side,
        and no summary is needed.
    kind : {"normal", "uniform", "seed"}
        What the random numbers are made of: what the simulator draws most; or the seed of a numpy
        generator, for simulators that take nothing else, which can only be updated by fresh ones.
    model : Model, optional
        The model to add it to; the one whose context is open if not given.

    Returns
    -------
    TensorVariable
        The potential as it was added to the model.

    Notes
    -----
    *The pilot* simulates with ``pilot_draws`` parameters from the prior, and then several times
    with each of the 20 whose summaries came nearest to the observed ones. ``epsilon`` is half of
    the standard deviation of each summary there: an error that makes the posterior of a location
    12 percent wider. It always draws the same random numbers. The result is ``name + "_epsilon"``
    of the model, a :class:`pymc.Data`, which is recorded in the group ``constant_data`` and can be
    changed by :func:`pymc.set_data` before the next run.

    References
    ----------
    Graham, M. M. and Storkey, A. J. (2017). Asymptotically exact inference in differentiable
    generative models. doi:10.1214/17-EJS1340SI.

    Wilkinson, R. D. (2013). Approximate Bayesian computation (ABC) gives exact results under the
    assumption of model error. doi:10.1515/sagmb-2013-0010.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> y = np.random.default_rng(1).gumbel(2.0, 1.5, size=50)
    >>> def simulate(location, scale, rng):
    ...     return location - scale * np.log(rng.exponential(size=50))
    >>> def summary(data):
    ...     return np.quantile(data, [0.1, 0.5, 0.9])
    >>> with pm.Model():
    ...     location, scale = pm.Normal("location", 0, 5), pm.HalfNormal("scale", 5)
    ...     log_lik = apm.estimators.abc(
    ...         "y", simulate, y, epsilon=0.1, parameters=[location, scale], summary=summary
    ...     )
    ...     idata = pm.sample(20, tune=20, chains=1, progressbar=False)
    """
    model = pm.modelcontext(model)
    label = f"abc({name!r})"
    for what, function in (("simulate", simulate), ("summary", summary)):
        if not (callable(function) or (what == "summary" and function is None)):
            raise ModelError(f"{what} of {label} must be a function, got {function!r}.")
    if isinstance(observed, Variable):
        raise ModelError(f"observed of {label} must be data, not a variable of the model.")
    one_of(f"kernel of {label}", kernel, *KERNELS)
    one_of(f"kind of {label}", kind, "normal", "uniform", "seed")
    if not isinstance(parameters, Sequence) or isinstance(parameters, str):
        raise ModelError(f"parameters of {label} must be a list, got {parameters!r}.")
    if each is not None and epsilon is None:
        raise ModelError(f"With each={each!r}, {label} needs an epsilon, in the units of the data.")
    scale = numbers(f"epsilon of {label}", 1.0 if epsilon is None else epsilon)
    pilot_draws = positive_integer(f"pilot_draws of {label}", pilot_draws, minimum=NEAR)
    samples = positive_integer(f"samples of {label}", samples)
    u_name = f"{name}_u"
    if each is not None:
        if summary is not None or kind == "seed":
            raise ModelError(
                f"With each={each!r}, {label} takes no summary, as each datum is compared by "
                "itself, and no seed."
            )
        each = positive_integer(f"each of {label}", each)
        data = np.atleast_1d(numbers(f"The observed data of {label}", observed))
        box = black_box(
            EachABCEstimator(simulate, data, kernel, scale, name),
            outputs=[TensorType("float64", shape=(len(data),))],
        )
        declare = {"normal": StandardNormal, "uniform": StandardUniform}[kind]
        u = declare(u_name, shape=(samples, len(data), each), model=model)
        factors = 1 if len(data) > 1 else None
        return Potential(name, box(*parameters, u), factors=factors, model=model)
    estimator = ABCEstimator(simulate, observed, summary, kernel, scale, samples, name)
    if kind == "seed":
        u = Seed(u_name, model=model)
    else:
        u = Stream(u_name, kind=kind, model=model)
    if epsilon is not None:
        return Potential(name, black_box(estimator)(*parameters, u), model=model)
    found = pilot_epsilon(estimator, parameters, pilot_draws, model)
    _log.info("epsilon of %s by a pilot: %s", name, describe_value(found))
    with model:
        data = pm.Data(f"{name}_epsilon", found)
    return Potential(name, black_box(AtEpsilon(estimator))(*parameters, data, u), model=model)
