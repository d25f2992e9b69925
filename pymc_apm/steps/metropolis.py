"""u, then theta by random-walk Metropolis: APM SS+MH and MI+MH."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import pymc as pm
from numpy.typing import ArrayLike
from pymc.step_methods.compound import Competence
from pymc.vartypes import discrete_types

from pymc_apm.adaptive.random_walk import learn_walk, update_by_walk
from pymc_apm.adaptive.transition import Transition, u_then_theta
from pymc_apm.density.target import THETA
from pymc_apm.deprecated import once_positional
from pymc_apm.potential import feeds_potential
from pymc_apm.steps.base import APMStep, Densities
from pymc_apm.steps.choose import all_variables
from pymc_apm.steps.compiling import Choice
from pymc_apm.steps.random_walk import WalksRandomly
from pymc_apm.steps.statistics import ACCEPT_RATE, ACCEPTED, SCALE, U_ACCEPTED, Statistic
from pymc_apm.types import Point
from pymc_apm.validation import positive_integer


class APMMetropolis(WalksRandomly, APMStep):
    """Update u, then the parameters by random-walk Metropolis with u clamped (APM SS+MH, MI+MH).

    Because old and new parameters are compared under the same u, acceptance says as much about the
    proposal as it does without noise. The scale is tuned to an acceptance rate and the covariance
    of the proposal to that of the draws, while tuning; both are frozen after.

    Parameters
    ----------
    vars : list of variables, optional
        The parameters to update, continuous or discrete; all of the model's if not given. The steps
        of discrete ones are rounded to integers.
    u_update : {"auto", "slice", "independence", None}
        How to update u: by slice sampling (elliptical for Gaussian u, reflective for uniform u), by
        Metropolis independence, or not at all, which leaves it to another step. ``"auto"`` is the
        update that an estimator brings along for its own u, if it does, as particle filters do,
        ``"independence"`` where it knows that its noise is low, as that of a pool of points is, and
        ``"slice"`` otherwise.
    scaling : float, optional
        A fixed scale of the proposal, on the scale that PyMC samples on (it multiplies the standard
        deviations of ``covariance``). ``None`` means that it is learnt while tuning.
    covariance : array, optional
        A fixed covariance of the proposal, or a vector of variances. By default it is learnt while
        tuning if ``scaling`` is, and the identity otherwise.
    target_accept : float or (float, float)
        The acceptance rate that the scale is tuned to, or lower and upper bounds for it, with the
        batches of 100 updates that the paper uses (there 0.15 and 0.30).
    directions : {"all", "coordinate"}
        Whether to propose all parameters together, or one after the other.
    theta_updates : int
        How many updates of the parameters to make for each update of u.
    factorwise : bool
        Whether to update the randomness of independent factors of the estimate separately, where
        the model proves that there are some. That is what makes mixing independent of the amount
        of data; ``False`` is for comparisons.
    u : variable, str or list of these, optional
        The randomness to update; all that the model has if not given.
    compile : {"auto", True, False}
        Whether to run in compiled code: when that pays, always (an error says what stands in the
        way), or never.
    thin : int
        How many transitions to make for each draw.
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

    Roberts, G. O., Gelman, A. and Gilks, W. R. (1997). Weak convergence and optimal scaling of
    random walk Metropolis algorithms. doi:10.1214/aoap/1034625254.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model():
    ...     theta = pm.Normal("theta", shape=2)
    ...     u = apm.StandardNormal("u", shape=2)
    ...     log_lik = apm.Potential("log_lik", -(theta**2).sum() - (u * theta).sum())
    ...     step = apm.APMMetropolis(u_update="independence", scaling=0.85)
    """

    name = "apm_metropolis"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "accepted": ACCEPTED,
        "u_accepted": U_ACCEPTED,
        "accept_rate": ACCEPT_RATE,
        "scaling": SCALE,
    }

    @once_positional(
        "u_update", "scaling", "covariance", "target_accept", "theta_updates", "directions"
    )
    def __init__(
        self,
        vars: Any = None,
        *,
        u_update: str | None = "auto",
        scaling: float | None = None,
        covariance: ArrayLike | None = None,
        target_accept: float | tuple[float, float] = 0.234,
        directions: Literal["all", "coordinate"] = "all",
        theta_updates: int = 1,
        factorwise: bool = True,
        u: Any = None,
        compile: Choice = "auto",
        thin: int = 1,
        model: pm.Model | None = None,
        rng: Any = None,
        initial_point: Point | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
    ) -> None:
        super().__init__(
            all_variables(vars, model),
            u=u,
            u_update=u_update,
            factorwise=factorwise,
            model=model,
            rng=rng,
            initial_point=initial_point,
            compile_kwargs=compile_kwargs,
            blocked=blocked,
        )
        theta_updates = positive_integer("theta_updates of APMMetropolis", theta_updates)
        layout = self.target.layout
        self.configure(layout, scaling, covariance, target_accept, directions, theta_updates)
        self.make_chain(compile, thin)

    def build(self, density: Densities) -> Transition:
        """Update u, then theta by a random walk."""
        place = self.target.places[THETA]
        update_u = self.build_u(density)
        return u_then_theta(update_u, update_by_walk, learn_walk, density(THETA), place)

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Competence:
        """Claim the discrete parameters of estimators; the others are for slice sampling."""
        if not feeds_potential(var):
            return Competence.INCOMPATIBLE
        return Competence.IDEAL if var.dtype in discrete_types else Competence.COMPATIBLE
