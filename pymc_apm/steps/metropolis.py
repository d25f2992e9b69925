"""u, then theta by random-walk Metropolis: APM SS+MH and MI+MH."""

from typing import Any, Literal

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike
from pymc.step_methods.compound import Competence
from pymc.step_methods.state import dataclass_state
from pymc.vartypes import discrete_types

from pymc_apm.adaptation import Covariance, Pilot, Scale, start_pilot
from pymc_apm.kernels.state import FloatVector
from pymc_apm.potential import feeds_potential
from pymc_apm.steps.base import APMState, APMStep, Point, UUpdate
from pymc_apm.steps.choose import all_variables
from pymc_apm.steps.compilable import CompilableStep
from pymc_apm.steps.random_walk import TunesRandomWalk
from pymc_apm.updates.random_walk import (
    WalkLearnt,
    learn_by_random_walk,
    update_by_random_walk,
)
from pymc_apm.validation import positive_integer


@dataclass_state
class RandomWalkState(APMState):
    """The part of the step that belongs to a chain."""

    pilot: Pilot
    learnt_covariance: Covariance
    learnt_scale: Scale


class RandomWalk(TunesRandomWalk, CompilableStep):
    """A step that proposes parameters by a random walk, and learns its scale and covariance."""

    _state_class = RandomWalkState
    learn_theta = staticmethod(learn_by_random_walk)
    update_theta = staticmethod(update_by_random_walk)
    scale_name = "scaling"
    has_accept_rate = True

    @property
    def learnt(self) -> WalkLearnt:
        """What was learnt while tuning."""
        return WalkLearnt(self.pilot, self.learnt_covariance, self.learnt_scale)

    @learnt.setter
    def learnt(self, learnt: WalkLearnt) -> None:
        self.pilot, self.learnt_covariance, self.learnt_scale = learnt

    @property
    def frozen(self) -> tuple[FloatVector, float]:
        """The part of it that is used after tuning."""
        return self.learnt_covariance.cholesky, self.learnt_scale.scaling

    def reset_tuning(self) -> None:
        """Forget what was learnt while tuning."""
        super().reset_tuning()
        self.pilot = start_pilot(self.layout.size)

    def stop_tuning(self) -> None:
        """Freeze what was learnt."""
        self.go_back_to_last_draw()
        super().stop_tuning()


class APMMetropolis(RandomWalk):
    """Update u, then the parameters by random-walk Metropolis with u clamped (APM SS+MH, MI+MH).

    Because old and new parameters are compared under the same u, acceptance says as much about the
    proposal as it does without noise. The scale is tuned to an acceptance rate and the covariance
    of the proposal to that of the draws, while tuning; both are frozen after.

    Parameters
    ----------
    vars : list of variables, optional
        The parameters to update, continuous or discrete; all of the model's if not given. The steps
        of discrete ones are rounded to integers.
    u_update : {"slice", "independence", None}
        How to update u: by slice sampling (elliptical for Gaussian u, reflective for uniform u), by
        Metropolis independence, or not at all, which leaves it to another step.
    scaling : float, optional
        A fixed scale of the proposal, on the scale that PyMC samples on (it multiplies the standard
        deviations of ``covariance``). ``None`` means that it is learnt while tuning.
    covariance : array, optional
        A fixed covariance of the proposal, or a vector of variances. By default it is learnt while
        tuning if ``scaling`` is, and the identity otherwise.
    target_accept : float or (float, float)
        The acceptance rate that the scale is tuned to, or lower and upper bounds for it, with the
        batches of 100 updates that the paper uses (there 0.15 and 0.30).
    theta_updates : int
        How many updates of the parameters to make for each update of u.
    directions : {"all", "coordinate"}
        Whether to propose all parameters together, or one after the other.
    u : variable, str or list of these, optional
        The randomness to update; all that the model has if not given.
    compile : {"auto", True, False}
        Whether to run in compiled code: where that is possible, always (an error says what stands
        in the way), or never.
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
    stats_dtypes_shapes = APMStep.stats_dtypes_shapes | {
        "accepted": (np.float64, []),
        "u_accepted": (np.float64, []),
        "accept_rate": (np.float64, []),
        "scaling": (np.float64, []),
    }

    def __init__(
        self,
        vars: Any = None,
        u_update: UUpdate | None = "slice",
        scaling: float | None = None,
        covariance: ArrayLike | None = None,
        target_accept: float | tuple[float, float] = 0.234,
        theta_updates: int = 1,
        directions: Literal["all", "coordinate"] = "all",
        *,
        u: Any = None,
        compile: Literal["auto"] | bool = "auto",
        thin: int = 1,
        model: pm.Model | None = None,
        rng: Any = None,
        initial_point: Point | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
    ) -> None:
        super().__init__(
            all_variables(vars, model),
            u,
            u_update,
            model=model,
            rng=rng,
            initial_point=initial_point,
            compile_kwargs=compile_kwargs,
            blocked=blocked,
        )
        theta_updates = positive_integer("theta_updates of APMMetropolis", theta_updates)
        layout = self.target.layout
        self.configure(layout, scaling, covariance, target_accept, directions, theta_updates)
        self.prepare(compile, thin)

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Competence:
        """Claim the discrete parameters of estimators; the others are for slice sampling."""
        if not feeds_potential(var):
            return Competence.INCOMPATIBLE
        return Competence.IDEAL if var.dtype in discrete_types else Competence.COMPATIBLE
