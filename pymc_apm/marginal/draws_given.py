"""Draws of latent variables, and their weights, given draws of the parameters."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

from pymc_apm._compat import compile_function, dataset_of
from pymc_apm.errors import ModelError
from pymc_apm.marginal.estimate import from_blocks, log_weights_of, n_unused, numbers_of_blocks
from pymc_apm.marginal.record import Record
from pymc_apm.marginal.split import value_of_data

__all__ = ["Weighted", "WeightedDraws"]


class Weighted(NamedTuple):
    """Some draws of the latent variables for one draw of the parameters.

    Attributes
    ----------
    latents : list of ndarray
        The draws are along the first axis.
    log_weights : ndarray
        Shape (draws, factors).
    """

    latents: list[NDArray[Any]]
    log_weights: NDArray[np.float64]


class WeightedDraws:
    """A compiled function that makes weighted draws given the parameters.

    Parameters
    ----------
    record : Record
    model : Model
        The marginalised model, or a copy of it, whose data are used.
    idata : InferenceData or DataTree
        What ``pm.sample`` returned.
    samples : int
        How many draws one call makes.
    """

    def __init__(self, record: Record, model: pm.Model, idata: Any, samples: int) -> None:
        self.record = record
        posterior = dataset_of(idata, "posterior")
        if posterior is None:
            raise ModelError("There is no group posterior in what was given for idata.")
        self.posterior = posterior
        self.n_chains, self.n_draws = posterior.sizes["chain"], posterior.sizes["draw"]
        u, latents, log_weights = _graphs(record, samples)
        outputs = [*latents, log_weights]
        upstream = set(ancestors(outputs))
        parameters = [rv for rv in record.parameters if rv in upstream]
        data = [v for v in upstream if isinstance(v, SharedVariable) and v.name in model.named_vars]
        stand_ins: dict[Variable, Variable] = {v: v.type() for v in (*parameters, *data)}
        outputs = clone_replace(outputs, stand_ins, rebuild_strict=False)
        self._kinds = [kind for kind, _ in u]
        self._shapes = [variable.type.shape for _, variable in u]
        self._function = compile_function(
            [*(variable for _, variable in u), *stand_ins.values()], outputs, calls_python=True
        )
        self._values = [_values_of(v.name, model, posterior) for v in stand_ins]
        self._dtypes = [v.type.dtype for v in stand_ins]
        _check_read(record, model)
        _check_same_data(idata, [v.name for v in data], model)

    def points(self) -> Iterator[list[NDArray[Any]]]:
        """Return the parameters of all draws, chain by chain."""
        for chain in range(self.n_chains):
            for draw in range(self.n_draws):
                yield self.point(chain, draw)

    def point(self, chain: int, draw: int) -> list[NDArray[Any]]:
        """Return the parameters of a draw."""
        pairs = zip(self._values, self._dtypes, strict=True)
        return [np.asarray(get(chain, draw), dtype=dtype) for get, dtype in pairs]

    def draw(self, rng: np.random.Generator, point: list[NDArray[Any]]) -> Weighted:
        """Draw latent variables given the parameters."""
        u = [
            rng.standard_normal(shape) if kind == "normal" else rng.random(shape)
            for kind, shape in zip(self._kinds, self._shapes, strict=True)
        ]
        *latents, log_weights = self._function(*u, *point)
        return Weighted(latents, log_weights)


def _graphs(record: Record, samples: int) -> tuple[list[Any], list[Variable], Variable]:
    weights, structure = record.weights, record.structure
    if record.blocks is None:
        u = [
            (maker.kind, pt.tensor(dtype="float64", shape=(samples, *weights.u[name].type.shape)))
            for name, maker in weights.makers.items()
        ]
        latents, log_weights = log_weights_of(weights, structure, [variable for _, variable in u])
        log_weights = pt.broadcast_to(log_weights, (samples, structure.n_factors))
    else:
        z = pt.tensor(dtype="float64", shape=(samples, *numbers_of_blocks(structure)))
        # What feeds nothing that was observed is drawn from its distribution in the model.
        unused = pt.tensor(dtype="float64", shape=(samples, n_unused(structure)))
        u = [("normal", z), ("normal", unused)]
        blocks, log_weights = record.blocks.build(z)
        numbers = from_blocks(structure, blocks, unused)
        latents, ordinary = log_weights_of(weights, structure, numbers)
        n_alone = structure.n_factors - len(structure.n_latents)
        if n_alone:
            alone = pt.broadcast_to(ordinary[:, -n_alone:], (samples, n_alone))
            log_weights = pt.concatenate([log_weights, alone], axis=1)
    return u, latents, log_weights


def _values_of(name: str, model: pm.Model, posterior: Any) -> Callable[[int, int], Any]:
    """Return where the values of a variable are, which may have been fixed after all."""
    if name in posterior:
        values = posterior[name].transpose("chain", "draw", ...).values
        return lambda chain, draw: values[chain, draw]
    variable = model.named_vars.get(name)
    fixed = value_of_data(variable)
    if variable is not None and variable in model.observed_RVs:
        fixed = model.rvs_to_values[variable].eval()
    if fixed is None:
        raise ModelError(
            f"The posterior has no draws of {name}, on which the latent variables depend."
        )
    return lambda chain, draw: fixed


def _check_read(record: Record, model: pm.Model) -> None:
    for data, value in record.structure.read:
        current = value_of_data(model.named_vars.get(data.name))
        if current is not None and not np.array_equal(current, value):
            raise ModelError(
                f"{data.name} has been changed since apm.marginalize was called, which found by it "
                "what depends on what. Set it back, or call apm.marginalize again. For predictions "
                "give new data to apm.sample_posterior_predictive(..., data=...)."
            )


def _check_same_data(idata: Any, names: list[str], model: pm.Model) -> None:
    """Refuse data that are not those of the run, given which the latent variables are wanted."""
    recorded = dataset_of(idata, "constant_data")
    for name in names if recorded is not None else []:
        current = value_of_data(model[name])
        if current is None or name not in recorded:
            continue
        if not np.array_equal(recorded[name].values, current, equal_nan=True):
            raise ModelError(
                f"{name} has been changed since the model was sampled, so that the latent "
                "variables would not be those of the data. Set it back. For predictions give new "
                "data to apm.sample_posterior_predictive(..., data=...)."
            )
