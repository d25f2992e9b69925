"""Parameters and u proposed together: pseudo-marginal Metropolis-Hastings, plain and correlated."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike

from pymc_apm.adaptive.random_walk import WalkLearnt, learn_walk, update_by_walk
from pymc_apm.adaptive.transition import (
    Transition,
    jointly,
    proposing_u,
    settled,
    u_then_theta,
    while_tuning,
)
from pymc_apm.adaptive.tuning import Scale
from pymc_apm.density.target import THETA
from pymc_apm.deprecated import once_positional
from pymc_apm.errors import ModelError, see
from pymc_apm.kinds import Kind
from pymc_apm.steps.base import APMStep, Densities
from pymc_apm.steps.choose import all_variables
from pymc_apm.steps.compiling import Choice
from pymc_apm.steps.random_walk import WalksRandomly
from pymc_apm.steps.statistics import ACCEPT_RATE, ACCEPTED, SCALE, U_ACCEPTED, Statistic
from pymc_apm.types import Evaluation, FloatVector, Point, State
from pymc_apm.validation import number, one_of


class PseudoMarginalMH(WalksRandomly, APMStep):
    r"""Propose parameters and fresh u together (PM MH), or correlated u (correlated PM).

    The classic pseudo-marginal method: one estimate per draw, and a chain that sticks where an
    estimate came out much too large. It is at its best with estimators of low noise (a standard
    deviation of the log-estimate of about 1.2 to 1.8), and the baseline to compare with otherwise.

    Parameters
    ----------
    vars : list of variables, optional
        The parameters to update, continuous or discrete; all of the model's if not given. The steps
        of discrete ones are rounded to integers.
    correlation : float
        0 proposes fresh u. With a value below 1, ``rho * u + sqrt(1 - rho**2) * noise`` is
        proposed for Gaussian u, and the same on the normal scale for uniform u, which makes the
        noise of the two estimates cancel in part.
    scaling : float, optional
        A fixed scale of the proposal, on the scale that PyMC samples on (it multiplies the standard
        deviations of ``covariance``). ``None`` means that it is chosen as said below.
    covariance : array, optional
        A fixed covariance of the proposal, or a vector of variances. By default it is learnt while
        tuning if ``scaling`` is, and the identity otherwise.
    target_accept : float or (float, float)
        The acceptance rate, or its bounds, for the clamped updates while tuning (see below).
    directions : {"all", "coordinate"}
        Whether to propose all parameters together, or one after the other, each with a new u.
    tune_on : {"estimate", "approximation"}
        What the updates while tuning are updates of: the estimate with clamped u, or the
        deterministic approximations that estimators such as
        :func:`~pymc_apm.estimators.laplace_importance` come with, as in the paper.
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

    Notes
    -----
    *How the scale is chosen.* The acceptance rate of this method says little about its step size:
    it is bounded by the noise of the estimate, however small the step (Figure 2a of the paper). So
    nothing is tuned to it. While tuning, the step makes clamped updates instead (APM MI+MH: fresh u
    proposed at fixed parameters, then a random walk with u fixed, or at first slice sampling of
    each parameter), which do not stick in the parameters, and learns the covariance of the draws
    from these. After tuning it proposes with that covariance times :math:`2.56^2/d`, the value that
    Sherlock et al. (2015) find optimal for pseudo-marginal random walks in high dimensions, or
    :math:`2.38^2/d`, that for an exact likelihood, if ``correlation`` is not 0. If tuning is too
    short to learn a covariance, the scale of the clamped updates is kept. With ``scaling`` given,
    there is no tuning at all.

    References
    ----------
    Andrieu, C. and Roberts, G. O. (2009). The pseudo-marginal approach for efficient Monte Carlo
    computations. doi:10.1214/07-AOS574.

    Sherlock, C., Thiery, A. H., Roberts, G. O. and Rosenthal, J. S. (2015). On the efficiency of
    pseudo-marginal random walk Metropolis algorithms. doi:10.1214/14-AOS1278.

    Deligiannidis, G., Doucet, A. and Pitt, M. K. (2018). The correlated pseudo-marginal method.
    doi:10.1111/rssb.12280.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model():
    ...     theta = pm.Normal("theta", shape=2)
    ...     u = apm.StandardNormal("u", shape=2)
    ...     log_lik = apm.Potential("log_lik", -(theta**2).sum() - (u * theta).sum())
    ...     step = apm.PseudoMarginalMH(correlation=0.9)
    """

    name = "pseudo_marginal_mh"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "accepted": ACCEPTED,
        "u_accepted": U_ACCEPTED,
        "accept_rate": ACCEPT_RATE,
        "scaling": SCALE,
    }

    @once_positional(
        "correlation", "scaling", "covariance", "target_accept", "directions", "tune_on"
    )
    def __init__(
        self,
        vars: Any = None,
        *,
        correlation: float = 0.0,
        scaling: float | None = None,
        covariance: ArrayLike | None = None,
        target_accept: float | tuple[float, float] = 0.234,
        directions: Literal["all", "coordinate"] = "all",
        tune_on: Literal["estimate", "approximation"] = "estimate",
        compile: Choice = "auto",
        thin: int = 1,
        model: pm.Model | None = None,
        rng: Any = None,
        initial_point: Point | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
    ) -> None:
        correlation = number("correlation of PseudoMarginalMH", correlation)
        if not 0.0 <= correlation < 1.0:
            raise ModelError(
                "correlation of PseudoMarginalMH must be at least 0 and less than 1 (at 1 u would "
                f"never change), got {correlation!r}."
            )
        one_of("tune_on of PseudoMarginalMH", tune_on, "estimate", "approximation")
        super().__init__(
            all_variables(vars, model),
            u=None,
            u_update="independence",
            model=model,
            rng=rng,
            initial_point=initial_point,
            compile_kwargs=compile_kwargs,
            blocked=blocked,
        )
        for variable in self.moved if correlation else ():
            if variable.tag.apm_randomness.kind.correlated is None:
                raise ModelError(
                    f"PseudoMarginalMH cannot propose a correlated {variable.name}, which is a "
                    f"{variable.tag.apm_randomness.kind.made_of}: use correlation=0, or another "
                    f"kind of randomness, such as apm.Stream. {see('choosing')}"
                )
        self.tune_on = tune_on
        if tune_on == "approximation" and not self.target.has_approximation:
            raise ModelError(
                "PseudoMarginalMH cannot tune on an approximation, because not every estimate "
                f"of the model ({', '.join(self.target.estimates)}) comes with one: use "
                "tune_on='estimate', or give one with apm.Potential(..., approximation=...)."
            )
        self.correlation = correlation
        self.optimal_scaling = 2.38 if correlation else 2.56
        self.configure(
            self.target.layout,
            scaling,
            covariance,
            target_accept,
            directions,
            correlation=correlation,
        )
        self.make_chain(compile, thin)

    def build(self, density: Densities) -> Transition:
        """Propose theta and u together; while learning a scale, one after the other."""
        names = [THETA, *(variable.name for variable in self.moved)]
        places = [self.target.places[name] for name in names]
        kinds: list[Kind] = [variable.tag.apm_randomness.kind for variable in self.moved]
        streams = [u.name for u, kind in zip(self.moved, kinds, strict=True) if kind.is_lazy]
        joint = jointly(
            proposing_u([_proposal(kind, self.correlation) for kind in kinds]),
            density(*names),
            places,
            self.settle(*streams) if streams else settled,
        )
        if not self.options.tunes_scale:
            return joint
        if self.tune_on == "approximation":
            return while_tuning(self._learning_on_approximation(), joint)
        update_u = self.build_u(density)
        learning = u_then_theta(update_u, update_by_walk, learn_walk, density(THETA), places[0])
        return while_tuning(learning, joint)

    def _learning_on_approximation(self) -> Transition:
        """Update theta alone, as if the approximation were the estimate."""
        target = self.target
        density = target.approximately_along(THETA)

        def transition(
            rng: np.random.Generator, evaluation: Evaluation, options: Any, learnt: Any, tunes: bool
        ) -> Any:
            theta = target.value(evaluation, THETA)
            state = State(theta, target.approximate_log_density(evaluation), evaluation)
            state, learnt, report = update_by_walk(rng, state, density, options, learnt, tunes)
            learnt = learn_walk(options, learnt, state.position)
            return state.memo, learnt, report

        return transition

    def freeze(self, learnt: WalkLearnt) -> WalkLearnt:
        """Freeze the covariance, and choose the scale of the joint proposals."""
        learnt = super().freeze(learnt)
        if self.options.tunes_scale and learnt.covariance.n_windows > 0:
            learnt = learnt._replace(scale=Scale(self.options.default_scaling, 0, 0.0, 0.0))
        return learnt

    def obstacle_to_compilation(self, is_optional: bool) -> str | None:
        """Say what is in the way of compiled code."""
        if self.tune_on == "approximation":
            return "It tunes on approximations, which is done in Python."
        return super().obstacle_to_compilation(is_optional)


def _proposal(
    kind: Kind, correlation: float
) -> Callable[[np.random.Generator, FloatVector, float], FloatVector]:
    """Return how a new u is proposed: correlated with the old one, or afresh."""
    if correlation:
        assert kind.correlated is not None
        return kind.correlated
    draw = kind.draw

    def propose(rng: np.random.Generator, u: FloatVector, correlation: float) -> FloatVector:
        return draw(rng, u.size)

    return propose
