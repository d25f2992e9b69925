"""Parameters and u proposed together: pseudo-marginal MH, plain, correlated and in blocks."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike

from pymc_apm.adaptive.all_u import all_u_together, in_turn, proposing_a_block
from pymc_apm.adaptive.random_walk import WalkLearnt, learn_walk, update_by_walk
from pymc_apm.adaptive.transition import (
    Transition,
    jointly,
    leaving_u,
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
from pymc_apm.steps.statistics import (
    ACCEPT_RATE,
    ACCEPTED,
    CORRELATION,
    SCALE,
    U_ACCEPTED,
    Statistic,
)
from pymc_apm.types import Evaluation, FloatVector, Point, State
from pymc_apm.validation import number, one_of, positive_integer


class PseudoMarginalMH(WalksRandomly, APMStep):
    r"""Propose parameters together with fresh u (PM MH), correlated u, or a fresh block of u.

    The classic pseudo-marginal method: one estimate per draw, and a chain that sticks where an
    estimate came out much too large. It is at its best with estimators of low noise (a standard
    deviation of the log-estimate of about 1.2 to 1.8), and the baseline to compare with otherwise.

    Parameters
    ----------
    vars : list of variables, optional
        The parameters to update, continuous or discrete; all of the model's if not given. The steps
        of discrete ones are rounded to integers.
    correlation : float or "auto"
        0 proposes fresh u. With a value below 1, ``rho * u + sqrt(1 - rho**2) * noise`` is
        proposed for Gaussian u, and the same on the normal scale for uniform u, which makes the
        noise of the two estimates cancel in part. ``"auto"`` learns it while tuning, see below.
    blocks : int
        With ``blocks=K``, block pseudo-marginal: the numbers of each u are cut into K blocks, and a
        proposal draws one of them afresh, chosen at random, and the same one of each u. An array
        of two or more dimensions is cut along its last axis, which is that of groups as a rule, if
        that has K entries or more, and any other as a flat vector. Not together with
        ``correlation``, nor for streams and seeds.
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
    there is no tuning at all, but for ``correlation="auto"``.

    *How the correlation is chosen.* What decides whether a proposal is accepted is the noise of the
    log *ratio* of two estimates, not that of one of them. With ``correlation="auto"`` u is proposed
    with the correlation at hand while tuning, all of it together and with the parameters clamped,
    and the correlation is tuned by stochastic approximation until 55 per cent of these proposals
    are accepted: the rate at which a normal log ratio has an sd of 1.2. There the parameters move
    at 78 per cent of the speed that they have with an exact likelihood, and u, with the parameters
    clamped, at 60 per cent of its best speed (a normal posterior in high dimensions). If fresh u is
    accepted as often as that, the correlation becomes 0. It is frozen after tuning, and recorded as
    the statistic ``correlation``.

    *Blocks.* Two estimates that differ in one of K blocks have log-estimates with a correlation of
    about 1 - 1/K, if the likelihood has K factors or more and each block feeds its own. With
    ``blocks`` of 2 or more the scale is chosen as for correlated u, and the clamped updates while
    tuning refresh a block at a time too.

    References
    ----------
    Andrieu, C. and Roberts, G. O. (2009). The pseudo-marginal approach for efficient Monte Carlo
    computations. doi:10.1214/07-AOS574.

    Sherlock, C., Thiery, A. H., Roberts, G. O. and Rosenthal, J. S. (2015). On the efficiency of
    pseudo-marginal random walk Metropolis algorithms. doi:10.1214/14-AOS1278.

    Deligiannidis, G., Doucet, A. and Pitt, M. K. (2018). The correlated pseudo-marginal method.
    doi:10.1111/rssb.12280.

    Tran, M.-N., Kohn, R., Quiroz, M. and Villani, M. (2016). The block pseudo-marginal sampler.
    arXiv:1603.02485.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model():
    ...     theta = pm.Normal("theta", shape=2)
    ...     u = apm.StandardNormal("u", shape=2)
    ...     log_lik = apm.Potential("log_lik", -(theta**2).sum() - (u * theta).sum())
    ...     step = apm.PseudoMarginalMH(correlation="auto")
    """

    name = "pseudo_marginal_mh"
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "accepted": ACCEPTED,
        "u_accepted": U_ACCEPTED,
        "accept_rate": ACCEPT_RATE,
        "scaling": SCALE,
        "correlation": CORRELATION,
    }

    @once_positional(
        "correlation", "scaling", "covariance", "target_accept", "directions", "tune_on"
    )
    def __init__(
        self,
        vars: Any = None,
        *,
        correlation: float | Literal["auto"] = 0.0,
        blocks: int = 1,
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
        correlation = _checked(correlation)
        blocks = positive_integer("blocks of PseudoMarginalMH", blocks)
        if blocks > 1 and correlation:
            raise ModelError(
                f"blocks={blocks} and correlation={correlation!r} of PseudoMarginalMH cannot be "
                "combined: both let the noise of two estimates cancel in part. Leave out one."
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
        if blocks > 1:
            self._check_blocks(blocks)
        self.tune_on = tune_on
        if tune_on == "approximation" and not self.target.has_approximation:
            raise ModelError(
                "PseudoMarginalMH cannot tune on an approximation, because not every estimate "
                f"of the model ({', '.join(self.target.estimates)}) comes with one: use "
                "tune_on='estimate', or give one with apm.Potential(..., approximation=...)."
            )
        self.correlation = correlation
        self.blocks = blocks
        self.optimal_scaling = _optimal_scaling(correlation, blocks)
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
        streams = [u.name for u in self.moved if u.tag.apm_randomness.kind.is_lazy]
        settle = self.settle(*streams) if streams else settled
        propose_u = self._proposing_u()
        joint = jointly(propose_u, density(*names), places, settle)
        if not (self.options.tunes_scale or self.options.tunes_correlation):
            return joint
        is_together = self.options.tunes_correlation or self.blocks > 1
        if self.tune_on == "approximation":
            learning = self._learning_on_approximation()
            is_together = self.options.tunes_correlation
        else:
            update_u = leaving_u if is_together else self.build_u(density)
            learning = u_then_theta(update_u, update_by_walk, learn_walk, density(THETA), places[0])
        if is_together:
            all_u = all_u_together(propose_u, density(*names[1:]), places[1:], settle)
            learning = in_turn(all_u, learning)
        return while_tuning(learning, joint)

    def _proposing_u(self) -> Callable[..., tuple[FloatVector, ...]]:
        """Return how all u are proposed together."""
        kinds: list[Kind] = [variable.tag.apm_randomness.kind for variable in self.moved]
        if self.blocks == 1:
            return proposing_u([_proposal(kind, self.correlation) for kind in kinds])
        shapes = [variable.tag.apm_randomness.shape for variable in self.moved]
        rows = [_length_of_row(shape, self.blocks) for shape in shapes]
        return proposing_a_block([kind.draw for kind in kinds], rows, self.blocks)

    def _check_blocks(self, blocks: int) -> None:
        """Refuse to cut what has no fixed length, and to cut into more blocks than numbers."""
        sizes = []
        for variable in self.moved:
            randomness = variable.tag.apm_randomness
            if randomness.kind.needs_black_box:
                what = "stream" if randomness.kind.is_lazy else "seed"
                raise ModelError(
                    f"PseudoMarginalMH cannot cut {variable.name}, which is a {what}, into blocks: "
                    "leave out blocks, or use apm.StandardNormal or apm.StandardUniform. "
                    + see("choosing")
                )
            sizes.append(randomness.size)
        if blocks > max(sizes):
            raise ModelError(
                f"blocks of PseudoMarginalMH must be at most {max(sizes)}, the number of random "
                f"numbers that there are to be cut into blocks, got {blocks}."
            )

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
        """Freeze what was learnt, and choose the scale of the joint proposals."""
        learnt = super().freeze(learnt)
        if self.options.tunes_scale and learnt.covariance.n_windows > 0:
            relative = _optimal_scaling(learnt.correlation.value, self.blocks)
            scaling = self.options.default_scaling * (relative / self.optimal_scaling)
            learnt = learnt._replace(scale=Scale(scaling, 0, 0.0, 0.0))
        return learnt

    def obstacle_to_compilation(self, is_optional: bool) -> str | None:
        """Say what is in the way of compiled code."""
        if self.tune_on == "approximation":
            return "It tunes on approximations, which is done in Python."
        return super().obstacle_to_compilation(is_optional)


def _checked(correlation: Any) -> Any:
    """Return the correlation that a user gave, as a number or as "auto"."""
    if isinstance(correlation, str) and correlation == "auto":
        return correlation
    name = "correlation of PseudoMarginalMH"
    if isinstance(correlation, str):
        raise ModelError(f"{name} must be a number or 'auto', got {correlation!r}.")
    value = number(name, correlation)
    if not 0.0 <= value < 1.0:
        raise ModelError(
            f"{name} must be at least 0 and less than 1 (at 1 u would never change), or 'auto', "
            f"got {correlation!r}."
        )
    return value


def _optimal_scaling(correlation: float | str, blocks: int) -> float:
    """Return the best scale for a normal posterior: with noise in the ratio, or next to none."""
    return 2.38 if correlation or blocks > 1 else 2.56


def _length_of_row(shape: Sequence[int], blocks: int) -> int:
    """Return the length of the rows that blocks are cut from: of the last axis, or of all."""
    if len(shape) > 1 and shape[-1] >= blocks:
        return shape[-1]
    return math.prod(shape)


def _proposal(
    kind: Kind, correlation: float | str
) -> Callable[[np.random.Generator, FloatVector, float], FloatVector]:
    """Return how a new u is proposed: correlated with the old one, or afresh."""
    if correlation:
        assert kind.correlated is not None
        return kind.correlated
    draw = kind.draw

    def propose(rng: np.random.Generator, u: FloatVector, correlation: float) -> FloatVector:
        return draw(rng, u.size)

    return propose
