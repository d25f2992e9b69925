"""Steps that update randomness alone, and leave the parameters to any other step of PyMC."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pymc as pm
from pymc.model.core import modelcontext

from pymc_apm.adaptive.transition import Transition, u_alone
from pymc_apm.steps.base import APMStep, Densities
from pymc_apm.steps.statistics import U_ACCEPT_RATE, U_ACCEPTED, Statistic
from pymc_apm.types import Point


class _UOnly(APMStep):
    """An update of u with all parameters clamped."""

    statistics: ClassVar[Mapping[str, Statistic]] = {"u_accepted": U_ACCEPTED}
    _u_update: str
    _kind: str | None

    def __new__(cls, u: Any = None, **kwargs: Any) -> Any:
        """Keep PyMC from taking u for a list of parameters."""
        return super().__new__(cls, vars=modelcontext(kwargs.get("model")).value_vars, **kwargs)

    def __init__(
        self,
        u: Any = None,
        *,
        factorwise: bool = True,
        model: pm.Model | None = None,
        rng: Any = None,
        initial_point: Point | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
    ) -> None:
        super().__init__(
            [],
            u=u,
            u_update=self._u_update,
            kind=self._kind,
            factorwise=factorwise,
            model=model,
            rng=rng,
            initial_point=initial_point,
            compile_kwargs=compile_kwargs,
            blocked=blocked,
        )
        self.make_chain()

    def build(self, density: Densities) -> Transition:
        """Update each piece of randomness once."""
        return u_alone(self.build_u(density))


class APMEllipticalU(_UOnly):
    """Update Gaussian randomness by elliptical slice sampling, and nothing else.

    To be combined with any step of PyMC for the parameters, which sees the log density of the model
    with u clamped: an ordinary deterministic function.

    Parameters
    ----------
    u : variable, str or list of these, optional
        The randomness to update; all Gaussian randomness of the model if not given. Randomness of
        other kinds is left to other steps.
    factorwise : bool
        Whether to update the randomness of independent factors of the estimate separately, where
        the model proves that there are some. That is what makes mixing independent of the amount
        of data; ``False`` is for comparisons.
    model : Model, optional
        The model; the one whose context is open if not given.
    rng : Generator or seed, optional
    initial_point : dict, optional
    compile_kwargs : dict, optional
        What to pass on to the compiler of the log density, for example ``{"mode": "NUMBA"}``.
    blocked : bool
        For PyMC; must be true.

    References
    ----------
    Murray, I., Adams, R. P. and MacKay, D. J. C. (2010). Elliptical slice sampling. AISTATS.

    Examples
    --------
    Hamiltonian Monte Carlo for the parameters of an estimated likelihood:

    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model():
    ...     theta = pm.Normal("theta", shape=2)
    ...     u = apm.StandardNormal("u", shape=2)
    ...     log_lik = apm.Potential("log_lik", -(theta**2).sum() - (u * theta).sum())
    ...     steps = [apm.APMEllipticalU(), pm.NUTS([theta])]
    """

    name = "apm_elliptical_u"
    _u_update = "slice"
    _kind = "normal"


class APMReflectiveU(_UOnly):
    """Update uniform randomness by slice sampling with reflections, and nothing else.

    As :class:`APMEllipticalU`, for randomness made by :func:`~pymc_apm.StandardUniform`.

    Parameters
    ----------
    u : variable, str or list of these, optional
        The randomness to update; all uniform randomness of the model if not given. Randomness of
        other kinds is left to other steps.
    factorwise : bool
        Whether to update the randomness of independent factors of the estimate separately, where
        the model proves that there are some. That is what makes mixing independent of the amount
        of data; ``False`` is for comparisons.
    model : Model, optional
        The model; the one whose context is open if not given.
    rng : Generator or seed, optional
    initial_point : dict, optional
    compile_kwargs : dict, optional
        What to pass on to the compiler of the log density, for example ``{"mode": "NUMBA"}``.
    blocked : bool
        For PyMC; must be true.

    References
    ----------
    Murray, I. and Graham, M. M. (2016). Pseudo-marginal slice sampling. AISTATS.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model():
    ...     rate = pm.Gamma("rate", 2, 1)
    ...     u = apm.StandardUniform("u", shape=16)
    ...     waiting_times = -pm.math.log(u) / rate
    ...     log_weights = pm.logp(pm.Poisson.dist(waiting_times), 2)
    ...     log_lik = apm.Potential("log_lik", apm.estimators.log_mean_exp(log_weights))
    ...     steps = [apm.APMReflectiveU(), pm.NUTS([rate])]
    """

    name = "apm_reflective_u"
    _u_update = "slice"
    _kind = "uniform"


class APMIndependenceU(_UOnly):
    """Update randomness of any kind by Metropolis independence, and nothing else.

    Fresh u is proposed from q(u) and accepted by the ratio of the estimates. It asks nothing of the
    estimator but that its noise be low: where its log has a standard deviation of much more than 1,
    u sticks.

    Parameters
    ----------
    u : variable, str or list of these, optional
        The randomness to update; all that the model has if not given.
    factorwise : bool
        Whether to update the randomness of independent factors of the estimate separately, where
        the model proves that there are some. That is what makes mixing independent of the amount
        of data; ``False`` is for comparisons.
    model : Model, optional
        The model; the one whose context is open if not given.
    rng : Generator or seed, optional
    initial_point : dict, optional
    compile_kwargs : dict, optional
        What to pass on to the compiler of the log density, for example ``{"mode": "NUMBA"}``.
    blocked : bool
        For PyMC; must be true.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model():
    ...     theta = pm.Normal("theta")
    ...     u = apm.StandardNormal("u")
    ...     log_lik = apm.Potential("log_lik", -(theta**2) - u * theta)
    ...     steps = [apm.APMIndependenceU(), pm.Slice([theta])]
    """

    name = "apm_independence_u"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "u_accepted": U_ACCEPTED,
        "accept_rate": U_ACCEPT_RATE,
    }
    _u_update = "independence"
    _kind = None
