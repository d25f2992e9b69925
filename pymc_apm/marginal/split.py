"""Taking latent variables, and all that depends on them, out of a model."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.model.fgraph import fgraph_from_model, model_from_fgraph
from pymc.model.transform.optimization import freeze_dims_and_data
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable, equal_computations
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.scan.op import Scan
from pytensor.tensor.variable import TensorVariable

from pymc_apm._compat import INDEXING, default_transform
from pymc_apm.density.labels import Joined, UnknownError, Walk, nodes_to, static_shape
from pymc_apm.errors import ModelError, see
from pymc_apm.randomness import randomness_in, randomness_of

__all__ = ["Split", "check_indices", "copy_of", "split", "value_of_data"]


class Split(NamedTuple):
    """A model in two parts.

    Attributes
    ----------
    model : Model
        A new model, of all that does not depend on the latent variables.
    latents : dict
        The latent variables, as distributions whose parameters are functions of the rest of the
        model, and of each other, in this order.
    observed : dict
        What was observed of them: the distribution and the value.
    potentials : dict
        Other terms that depend on them.
    proposals : dict
        Proposals of the user's own, as distributions.
    stand_ins : dict
        Variables that stand for random variables of the new model in all of these graphs.
    unobserved : list of str
        Random variables that depend on latent ones, and that nothing that was observed depends on:
        their densities integrate to 1.
    deterministics : list of str
        Functions of latent variables, by name.
    """

    model: pm.Model
    latents: dict[str, TensorVariable]
    observed: dict[str, tuple[TensorVariable, TensorVariable]]
    potentials: dict[str, TensorVariable]
    proposals: dict[str, TensorVariable]
    stand_ins: dict[Variable, TensorVariable]
    unobserved: list[str]
    deterministics: list[str]


class _WithoutInitialValues:
    """A model as PyMC copies it: models with initial values it does not copy."""

    def __init__(self, model: pm.Model) -> None:
        self._model = model
        self.rvs_to_initial_values: dict[Variable, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def copy_of(model: pm.Model) -> pm.Model:
    """Return a copy of a model, without initial values."""
    copyable: Any = _WithoutInitialValues(model)
    return model_from_fgraph(fgraph_from_model(copyable)[0], mutate_fgraph=True)


def split(model: pm.Model, names: Sequence[str], proposals: Mapping[str, TensorVariable]) -> Split:
    """Split a model, which is not changed, into what depends on latent variables and the rest.

    Lengths of dimensions are fixed from then on.
    """
    _check_latents(model, names)
    copyable: Any = _WithoutInitialValues(model)
    whole = freeze_dims_and_data(copyable, data=[])
    latents = {name: whole[name] for name in names}
    taken = set(latents.values())
    downstream = {
        variable: taken.intersection(ancestors([variable])) - {variable}
        for variable in (*whole.basic_RVs, *whole.potentials, *whole.deterministics)
    }
    observed = [rv for rv in whole.observed_RVs if downstream[rv]]
    potentials = [term for term in whole.potentials if downstream[term]]
    deterministics = [variable for variable in whole.deterministics if downstream[variable]]
    others = [rv for rv in whole.free_RVs if downstream[rv] and rv not in taken]
    fed = set(ancestors([*observed, *potentials]))
    for rv in others:
        if rv in fed:
            raise ModelError(
                f"{rv.name} depends on {_list(v.name for v in downstream[rv])}, and "
                f"{_list(v.name for v in (*observed, *potentials) if rv in ancestors([v]))} "
                f"depends on {rv.name}. Name it too, to integrate both out, or leave both in the "
                "model."
            )
        if not _has_usual_transform(model, model[rv.name]):
            raise ModelError(
                f"{rv.name} depends on {_list(v.name for v in downstream[rv])} and has a transform "
                "of the user's own, so that its density may not integrate to 1, as it would have "
                "to be left out. Take the transform away."
            )
    for name, rv in latents.items():
        if rv not in fed:
            raise ModelError(
                f"Nothing that was observed depends on {name}, so that there is nothing to "
                "integrate. Sample without it, and draw it afterwards with "
                "pm.sample_posterior_predictive."
            )
    outside = {*taken, *observed, *potentials, *deterministics, *others}
    _check_graph([*latents.values(), *observed, *potentials], taken)
    check_indices(whole, [*latents.values(), *observed, *potentials])

    rest = _without(whole, outside)
    _copy_initial_values(model, rest)
    stand_ins = {rv: whole[rv.name].type(name=rv.name) for rv in rest.basic_RVs}
    shapes = {data: pt.specify_shape(data, data.get_value().shape) for data in data_of(rest)}

    def mapping(source: pm.Model) -> dict[Variable, Variable]:
        known = {source[rv.name]: stand_in for rv, stand_in in stand_ins.items()}
        return known | {source[data.name]: shaped for data, shaped in shapes.items()}

    for name, rv in proposals.items():
        wrong = [model[v.name] for v in outside if model[v.name] in ancestors([rv])]
        if wrong:
            raise ModelError(
                f"The proposal of {name} depends on {_list(v.name for v in wrong)}. It may depend "
                "on parameters and data alone."
            )
    given = clone_replace(list(proposals.values()), mapping(model), rebuild_strict=False)
    graphs = clone_replace(
        [
            *latents.values(),
            *observed,
            *(whole.rvs_to_values[rv] for rv in observed),
            *potentials,
        ],
        mapping(whole),
        rebuild_strict=False,
    )
    found = iter(graphs)
    order = {name: next(found) for name in latents}
    rvs = [next(found) for _ in observed]
    values = [next(found) for _ in observed]
    return Split(
        rest,
        _in_order(order),
        {rv.name: pair for rv, pair in zip(observed, zip(rvs, values, strict=True), strict=True)},
        {term.name: next(found) for term in potentials},
        dict(zip(proposals, given, strict=True)),
        {stand_in: rv for rv, stand_in in stand_ins.items()},
        [rv.name for rv in others],
        [variable.name for variable in deterministics],
    )


def _list(names: Any) -> str:
    return ", ".join(sorted(names))


def _in_order(latents: dict[str, TensorVariable]) -> dict[str, TensorVariable]:
    """Put those first that others depend on."""
    upstream = {name: set(ancestors([rv])) for name, rv in latents.items()}
    depth = {name: sum(other in upstream[name] for other in latents.values()) for name in latents}
    return {name: latents[name] for name in sorted(latents, key=lambda name: depth[name])}


def _without(whole: pm.Model, outside: set[Variable]) -> pm.Model:
    graph, memo = fgraph_from_model(whole)
    gone = {memo[variable] for variable in outside}
    kept: Any = FunctionGraph(
        outputs=[output for output in graph.outputs if output not in gone], clone=False
    )
    kept._coords = graph._coords
    kept._dim_lengths = graph._dim_lengths
    return model_from_fgraph(kept, mutate_fgraph=True)


def _copy_initial_values(model: pm.Model, rest: pm.Model) -> None:
    for rv, value in model.rvs_to_initial_values.items():
        if value is not None and rv.name in rest.named_vars:
            if isinstance(value, Variable):
                raise ModelError(
                    f"The initial value of {rv.name} is a function of other variables, which "
                    "cannot be copied. Make it a number, or give none."
                )
            rest.set_initval(rest[rv.name], value)


def _check_latents(model: pm.Model, names: Sequence[str]) -> None:
    free = {rv.name: rv for rv in model.free_RVs}
    for name in names:
        if name not in free:
            raise ModelError(
                f"{name!r} is not a random variable of the model that was not observed. There is: "
                f"{', '.join(free) or 'none'}."
            )
        rv = free[name]
        if not _has_usual_transform(model, rv):
            raise ModelError(
                f"{name} has a transform of the user's own, {model.rvs_to_transforms[rv]}. It may "
                "make its density another one than that of its distribution (transforms.ordered "
                "does, by leaving out all other orders), which cannot be drawn from. Take the "
                "transform away, or "
                f"leave {name} in the model."
            )


def _has_usual_transform(model: pm.Model, rv: Variable) -> bool:
    given, default = model.rvs_to_transforms[rv], default_transform(rv)
    if given is None:
        return True
    if type(given) is not type(default):
        return False
    value = given.forward(rv, *rv.owner.inputs).type()
    mine, usual = (t.backward(value, *rv.owner.inputs) for t in (given, default))
    return equal_computations([mine], [usual])


def _check_graph(variables: Sequence[Variable], latents: set[Variable]) -> None:
    """Refuse what cannot be integrated, although nothing in the model says so."""
    names = _list(latent.name for latent in latents)
    for variable in variables:
        estimates = randomness_in([variable])
        if estimates:
            raise ModelError(
                f"{variable.name} is an estimate itself, with the randomness {estimates[0].name}, "
                f"and depends on {names}. An estimate of an estimate is not supported: integrate "
                "all of these variables out in one call."
            )
        loops = {v for v in ancestors([variable]) if v.owner and isinstance(v.owner.op, Scan)}
        if not latents.isdisjoint(ancestors(loops)):
            raise ModelError(
                f"{variable.name} depends on {names} by a loop (pytensor.scan), which ties all of "
                "its steps together, so that they are one integral of many dimensions. For a "
                "state-space model there are estimators that take its steps one by one. "
                + see("estimators")
            )


def check_indices(model: pm.Model, outputs: Sequence[Variable]) -> None:
    """Refuse indices that are out of bounds: compiled by Numba, they read whatever is there.

    Those are looked at that depend on data alone, in a model whose lengths are fixed.
    """
    walk = Walk(Joined(0))
    for data in data_of(model):
        walk.give_value(data, data.get_value())
    for node in nodes_to(outputs):
        if not isinstance(node.op, INDEXING):
            continue
        array, *indices = node.inputs
        try:
            values = [np.broadcast_to(0, static_shape(array)), *map(walk.value_of, indices)]
        except UnknownError:
            continue
        try:
            node.op.perform(node, values, [[None]])
        except IndexError as error:
            raise ModelError(
                f"{array.name or 'An array'} has the shape {values[0].shape}, and an index into it "
                f"is out of bounds: {error}."
            ) from error


def value_of_data(variable: Variable | None) -> NDArray[Any] | None:
    """Return the value of a data container, which may have been frozen; None if it is none."""
    if isinstance(variable, SharedVariable):
        return np.asarray(variable.get_value())
    return np.asarray(variable.data) if isinstance(variable, Constant) else None


def data_of(model: pm.Model) -> list[SharedVariable]:
    """Return the data containers of a model, without randomness."""
    return [
        variable
        for variable in model.data_vars
        if isinstance(variable, SharedVariable) and randomness_of(variable) is None
    ]
