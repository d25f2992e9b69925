"""Upper bounds of the log density of each row of data, whatever its state is.

A probability is at most 1. So where the distribution of the data is discrete, the log of its
density is at most 0; and less where the largest value that it has for any state is known: the
likelihood of a rate of a Poisson distribution, say, is largest where the rate is what was observed.
A negative binomial distribution is a mixture of Poisson ones, and a beta-binomial one a mixture of
binomial ones.

Of a distribution that is written by the user nothing is known: its density may leave out constants.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.tensor.random.basic import BetaBinomialRV, BinomialRV, NegBinomialRV, PoissonRV
from pytensor.tensor.variable import TensorVariable

from pymc_apm._compat import compile_function
from pymc_apm.errors import ModelError
from pymc_apm.estimators.states.parts import (
    Part,
    draw_of,
    is_draw,
    make_part,
    vectorise,
    with_data,
    without_checks,
)
from pymc_apm.estimators.states.rows import filled
from pymc_apm.estimators.states.specification import Specification, attached
from pymc_apm.validation import numbers

ROUNDING = 1e-5, 1e-9
"""How far a density may be above its bound by rounding: at all, and for each of what is counted.

A log density of counts is a difference of terms that are as large as the counts.
"""


def bounds_of_rows(specification: Specification, bound: Any = None) -> TensorVariable | None:
    """Return an upper bound of the log density of each row, in the order of rows.

    Parameters
    ----------
    specification : Specification
    bound : number, array or callable, optional
        What the user says. By default what is known of the distributions of the data.

    Returns
    -------
    TensorVariable or None
        None if no bound is known.
    """
    if bound is not None:
        made = _given(specification, bound)
        made = made + ROUNDING[0] + ROUNDING[1] * abs(made)
    else:
        found = _known(specification)
        if found is None:
            return None
        made = found
    is_empty = np.ones(len(specification.rows), dtype=bool)
    for array in specification.data.values():
        is_empty &= np.isnan(array.reshape(len(array), -1)).all(axis=1)
    made = pt.switch(is_empty, 0.0, made) if is_empty.any() else made
    if all(isinstance(source, Constant) for source in graph_inputs([made])):
        (values,) = compile_function([], [made], mode="FAST_COMPILE")()
        return pt.as_tensor_variable(values)
    return made


# What the user says


def _given(specification: Specification, bound: Any) -> TensorVariable:
    label, n_rows = f"bound of {specification.label}", len(specification.rows)
    if callable(bound):
        return _computed(specification, label, bound)
    array = numbers(label, bound)
    if array.shape not in ((), (n_rows,)):
        raise ModelError(
            f"{label} must be a number, an array with one for each of the {n_rows} rows of the "
            f"data, or a function that returns one, got the shape {array.shape}."
        )
    ordered = array[specification.rows.order] if array.ndim else np.full(n_rows, array)
    return pt.as_tensor_variable(ordered)


def _computed(
    specification: Specification, label: str, function: Callable[..., Any]
) -> TensorVariable:
    names, n_rows = list(specification.data), len(specification.rows)
    states = [state.name for state in specification.states]
    data = {
        "y" if len(names) == 1 else name: filled(label, specification.data[name], False).values
        for name in names
    }
    known = {name: s for name, s in specification.symbols().items() if name not in states}
    symbols = {
        name: pt.tensor(name, dtype="float64", shape=array.shape[1:])
        for name, array in data.items()
    }
    known = with_data(label, function, known, symbols)
    part = make_part(label, function, known, ["bound"], specification.model)
    (number,) = part.results.values()
    if part.draws or number.type.ndim:
        raise ModelError(f"{label} must return a number, without a draw.")
    replace = specification.batch_of_rows(part.arguments, slice(None), 0)
    replace |= {
        part.arguments[name]: pt.as_tensor_variable(array)
        for name, array in data.items()
        if name in part.arguments
    }
    (made,) = attached(vectorise([number], replace), part.closure)
    return pt.zeros(n_rows) + made.astype("float64")


# What is known


def _known(specification: Specification) -> TensorVariable | None:
    part, n_rows = specification.observation, len(specification.rows)
    if specification.gives_log_density or not all(map(_is_probability, part.results.values())):
        return None
    total = pt.zeros(n_rows)
    for name, array in specification.data.items():
        data = filled(specification.label, array, True)
        size = np.abs(data.values).reshape(n_rows, -1).sum(axis=1)
        total += ROUNDING[0] + ROUNDING[1] * size
        value = pt.tensor(name, dtype="int64", shape=data.values.shape[1:])
        largest = next(_largest(specification, part, name, value), None)
        if largest is None or largest.type.ndim != value.type.ndim:
            continue
        replace = specification.batch_of_rows(part.arguments, slice(None), 0)
        replace[value] = pt.as_tensor_variable(data.values)
        (made,) = attached(vectorise([largest], replace), part.closure)
        made = pt.switch(data.is_observed, made, 0.0)
        total += pt.sum(made, axis=-1) if value.type.ndim else made
    return total


def _is_probability(result: TensorVariable) -> bool:
    """Say whether the density of a draw is a probability, by a distribution of PyMC."""
    nodes = [variable.owner for variable in ancestors([result])]
    draws = [node for node in nodes if node is not None and is_draw(node)]
    return result.owner in draws and all(
        type(node.op).__module__.partition(".")[0] in ("pymc", "pytensor")
        and draw_of(node).type.dtype.startswith(("int", "uint", "bool"))
        for node in draws
    )


def _largest(
    specification: Specification, part: Part, name: str, value: TensorVariable
) -> Iterator[TensorVariable]:
    """Return the largest log densities that a draw can have, those that depend on no state."""
    result = part.results[name]
    kinds = [kind for kind in LARGEST if isinstance(result.owner.op, kind)]
    states = {part.arguments.get(state.name) for state in specification.states}
    for kind in kinds if part.depends_on_no_other(name) else ():
        for draw in LARGEST[kind](value, *result.owner.op.dist_params(result.owner)):
            (made,) = without_checks([pm.logp(draw, value)])
            if states.isdisjoint(ancestors([made])):
                # Where nothing was counted, some distributions refuse what makes that certain.
                yield pt.switch(pt.gt(value, 0), made, 0.0)


LARGEST: Mapping[Any, Callable[..., list[TensorVariable]]] = {
    PoissonRV: lambda y, mu: [pm.Poisson.dist(y)],
    NegBinomialRV: lambda y, n, p: [
        pm.NegativeBinomial.dist(n=n, p=n / (n + y)),
        pm.Poisson.dist(y),
    ],
    BinomialRV: lambda y, n, p: [pm.Binomial.dist(n, y / n)],
    BetaBinomialRV: lambda y, n, alpha, beta: [pm.Binomial.dist(n, y / n)],
}
"""Distributions with the largest density at a value of those of a kind, the best ones first."""
