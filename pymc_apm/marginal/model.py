"""From an ordinary model to one in which latent variables are integrated out."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pytensor.gradient import DisconnectedInputError, NullTypeGradError
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_apm.errors import ModelError, see
from pymc_apm.marginal.draws import COUNTS
from pymc_apm.marginal.estimate import add_estimate, by_laplace, numbers_of_blocks
from pymc_apm.marginal.record import Record
from pymc_apm.marginal.split import Split, copy_of, split
from pymc_apm.marginal.structure import Structure, structure_of
from pymc_apm.marginal.weights import DISCRETE, Weights, weights_of
from pymc_apm.validation import positive_integer

__all__ = ["marginalize"]

_log = logging.getLogger("pymc.apm")

SAMPLES = {"prior": 64, "laplace": 4}
"""How many draws are taken for an estimate if the user does not say."""

TOGETHER = {"prior": 8, "laplace": 30}
"""How many numbers may be integrated out in one integral if the user does not choose a proposal."""

MANY_TERMS = 4
"""Terms to an integral from which on draws from the prior are taken to be wasteful."""


def marginalize(
    model: pm.Model,
    vars: str | Variable | Sequence[str | Variable],
    *,
    samples: int | None = None,
    proposal: str | Mapping[str, TensorVariable] = "auto",
) -> pm.Model:
    """Integrate latent variables out of a model, by unbiased estimates of the integrals.

    In the model that is returned the latent variables, and all that depends on them, are replaced
    by one potential, ``"<names>_marginal"``: the log of an estimate of the density of what was
    observed, with the latent variables integrated out. Its randomness is ``"<name>_u"`` for each
    latent variable. The posterior of all other variables is the same as in the given model,
    however few draws an estimate takes.

    What depends on what is read from the graph. The potential has one entry for each integral that
    is independent of the others, such as one for each group of a random-effects model, and these
    are estimated, and sampled, separately.

    Parameters
    ----------
    model : Model
        An ordinary model. It is not changed.
    vars : str or sequence of str
        The names of the latent variables.
    samples : int, optional
        How many draws an estimate takes: any number is exact, more make it less noisy. By default
        64 from the prior or a proposal of yours, 4 from a Laplace approximation.
    proposal : {"auto", "prior", "laplace"} or dict
        Where draws of the latent variables come from. ``"prior"``: their distribution in the
        model, which must be normal, lognormal, multivariate normal, Bernoulli, categorical,
        binomial, Poisson, negative binomial, or another one whose quantiles PyMC knows.
        ``"laplace"``: for normal and lognormal ones, a Gaussian approximation of their posterior,
        see :func:`~pymc_apm.estimators.laplace_importance`. A dict has distributions of yours for
        some of the latent variables, by name, such as
        ``{"effect": pm.StudentT.dist(5, mu, sigma, shape=8)}``. They may depend on parameters and
        data of the model, must be positive wherever the posterior is, and should have heavier
        tails. ``"auto"`` chooses between the first two, and says what it chose and why.

    Returns
    -------
    Model
        A new model, with the names, coordinates, data and transforms of the given one. Lengths of
        dimensions are fixed.

    Raises
    ------
    ModelError
        If the variables cannot be integrated out, or are tied together so that it would not work
        well. The message says which, and what to do instead.

    See Also
    --------
    pymc_apm.sample_latent : Draws of the latent variables, after sampling.
    pymc_apm.sample_posterior_predictive : Predictions, for known and for new groups.
    pymc_apm.log_likelihood : Log-likelihoods with the latent variables integrated out, for LOO.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> counts = np.array([3, 0, 8, 2])
    >>> with pm.Model(coords={"site": ["a", "b", "c", "d"]}) as model:
    ...     mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
    ...     log_rate = pm.Normal("log_rate", mu, sigma, dims="site")
    ...     y = pm.Poisson("y", pm.math.exp(log_rate), observed=counts, dims="site")
    >>> marginal = apm.marginalize(model, "log_rate")
    >>> [rv.name for rv in marginal.free_RVs], marginal["log_rate_marginal"].type.shape
    (['mu', 'sigma'], (4,))
    """
    names = _names(vars)
    if samples is not None:
        samples = positive_integer("samples of apm.marginalize", samples)
    given = dict(proposal) if isinstance(proposal, Mapping) else {}
    how = "prior" if isinstance(proposal, Mapping) else proposal
    if how not in ("auto", "prior", "laplace"):
        raise ModelError(
            'proposal of apm.marginalize must be "auto", "prior", "laplace" or a dict of '
            f"distributions by name, got {proposal!r}."
        )
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ModelError(
            f"There is a proposal for {unknown[0]}, which is not to be integrated out."
        )

    parts = split(model, names, given)
    weights = weights_of(parts)
    structure, weights = structure_of(weights)
    weights = weights.replaced(parts.stand_ins)
    name = "_".join(weights.latents) + "_marginal"
    term = None
    if how == "auto":
        how, why = _choose(weights, structure)
        _check_size(how, weights, structure)
    else:
        why = "as asked for"
    if how == "laplace":
        _check_normal(weights)
        try:
            term = by_laplace(name, weights, structure, samples or SAMPLES[how], parts.model)
        except (NotImplementedError, NullTypeGradError, DisconnectedInputError) as error:
            if proposal == "laplace":
                raise ModelError(
                    "A Laplace approximation needs second derivatives, which PyTensor does not "
                    f'have: {error}. Use proposal="prior".'
                ) from error
            how, why = "prior", "PyTensor has no derivatives for a Laplace approximation"
            _check_size(how, weights, structure)
    if term is None:
        term = add_estimate(name, weights, structure, samples or SAMPLES[how], parts.model)
    term.tag.apm_marginal = Record(
        copy_of(model),
        weights,
        structure,
        list(parts.model.basic_RVs),
        getattr(term.tag, "apm_latent", None),
        list(parts.observed),
        parts.unobserved,
        parts.deterministics,
    )
    if how == "laplace":
        del term.tag.apm_latent  # whose draws are of blocks, not of the latent variables
    _tell(weights, structure, how if not given else "own", why, samples or SAMPLES[how], parts)
    return parts.model


def _names(vars: Any) -> list[str]:
    several = vars if isinstance(vars, list | tuple) else [vars]
    names = [v if isinstance(v, str) else str(getattr(v, "name", "") or "") for v in several]
    if not names or not all(names):
        raise ModelError(f"vars of apm.marginalize must be names of variables, got {vars!r}.")
    return list(dict.fromkeys(names))


def _choose(weights: Weights, structure: Structure) -> tuple[str, str]:
    """Choose a proposal, and say why."""
    if not all(maker.kind == "normal" for maker in weights.makers.values()):
        return "prior", "the latent variables are not all functions of normal ones"
    n_terms = float(np.mean(structure.n_terms[: len(structure.n_latents)]))
    largest = int(structure.n_latents.max())
    if largest > 2:
        return "laplace", f"up to {largest} normal variables are integrated out together"
    if n_terms > MANY_TERMS:
        return "laplace", f"there are {n_terms:.0f} observations to each normal latent variable"
    return "prior", "there are few observations to each latent variable"


def _check_normal(weights: Weights) -> None:
    for name, maker in weights.makers.items():
        if maker.kind != "normal":
            raise ModelError(
                f'proposal="laplace" is for normal, lognormal and multivariate normal variables, '
                f'and {name} is none. Use proposal="prior", or a proposal of your own.'
            )


def _check_size(how: str, weights: Weights, structure: Structure) -> None:
    """Refuse an integral of so many dimensions that the estimate would be too noisy."""
    n_latents = structure.n_latents
    largest = int(n_latents.argmax())
    if n_latents[largest] <= TOGETHER[how]:
        return
    latents = [name for name, of in structure.of_u.items() if (of == largest).any()]
    terms = [
        name
        for name in weights.terms
        if not structure.of_terms or (structure.of_terms[name] == largest).any()
    ]
    raise ModelError(
        f"{n_latents[largest]} numbers of {' and '.join(latents)} are tied together by "
        f"{', '.join(terms)}: they are one integral of {n_latents[largest]} dimensions, whose "
        "estimates would be very noisy. Integrate out fewer variables, so that each observation "
        "depends on few of them (of two crossed groupings, one), or leave the model as it is. For "
        "a Gaussian process there is apm.estimators.laplace_importance. If you want to try anyhow, "
        f'choose the proposal yourself: proposal="prior" or "laplace". {see("marginalize")}'
    )


def _tell(
    weights: Weights, structure: Structure, how: str, why: str, samples: int, parts: Split
) -> None:
    sources = {
        "prior": "the prior",
        "laplace": "a Laplace approximation",
        "own": "the proposals that were given",
    }
    n_blocks, size = numbers_of_blocks(structure)
    _log.info(
        f"{', '.join(weights.latents)}: {n_blocks} independent integral{'s' * (n_blocks > 1)} of "
        f"{'up to ' * (size > 1)}{size} dimension{'s' * (size > 1)}, estimated by {samples} draws "
        f"from {sources[how]} ({why})."
    )
    for name, latent in weights.latents.items():
        if latent.type.dtype in DISCRETE and not isinstance(parts.latents[name].owner.op, COUNTS):
            _log.info(
                f"{name} takes few values. pymc_extras.marginalize sums over them, which is exact "
                "without any randomness, where it can."
            )
    if parts.unobserved:
        _log.info(
            f"{', '.join(parts.unobserved)} depends on what was integrated out, and nothing that "
            "was observed depends on it. apm.sample_posterior_predictive draws it."
        )
