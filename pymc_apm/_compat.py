"""The only file that knows that PyMC 5 and PyMC 6 differ."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
from pymc.pytensorf import compile as compile_pymc
from pymc.util import get_random_generator
from pytensor.compile.mode import Mode, get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor import subtensor

from pymc_apm.errors import CompileError


def compile_function(
    inputs: Sequence[Variable],
    outputs: Sequence[Variable],
    *,
    calls_python: bool = False,
    **compile_kwargs: Any,
) -> Callable[..., list[np.ndarray]]:
    """Compile a function that takes its inputs as they are, without a check of their type.

    PyTensor 3 compiles with Numba by default, from which a call of Python takes a detour. A graph
    that calls Python is left to the C virtual machine, if there is a compiler for that.
    """
    if calls_python and "mode" not in compile_kwargs and pytensor.config.cxx:
        compile_kwargs["mode"] = Mode(linker="cvm_nogc", optimizer="fast_run")
    function = compile_pymc(inputs, outputs, on_unused_input="ignore", **compile_kwargs)
    function.trust_input = True
    return function


def uses_numba(compile_kwargs: Mapping[str, Any] | None) -> bool:
    """Say whether options for the compiler leave it to Numba."""
    mode = (compile_kwargs or {}).get("mode")
    return mode is None or isinstance(get_mode(mode).linker, NumbaLinker)


def numba_graph(
    inputs: Sequence[Variable],
    outputs: Sequence[Variable],
    with_rewrites: Callable[[Mode], Mode],
) -> FunctionGraph:
    """Return a graph as the Numba backend of PyTensor wants it, after all rewrites."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what runs in Python is reported where it is compiled
        function = compile_pymc(
            list(inputs),
            list(outputs),
            mode=with_rewrites(get_mode("NUMBA")),
            on_unused_input="ignore",
        )
    return function.maker.fgraph


def numba_function(graph: FunctionGraph) -> Any:
    """Return a graph as a function for Numba.

    The function returns a tuple. It has not been compiled yet, and can be called from compiled
    code alone.
    """
    from pytensor.link.numba.dispatch.basic import numba_funcify_ensure_cache

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function, _ = numba_funcify_ensure_cache(graph)
    in_python = [str(warning.message) for warning in caught]
    in_python = [text for text in in_python if "object mode" in text]
    if in_python:
        raise CompileError(
            "Numba cannot compile the model, because some of its ops run in Python: "
            + " ".join(dict.fromkeys(text.split(". ")[0] + "." for text in in_python))
        )
    return function


def _classes(*names: str) -> tuple[type[Op], ...]:
    return tuple(getattr(subtensor, name) for name in names if hasattr(subtensor, name))


INDEXING = _classes("Subtensor", "AdvancedSubtensor", "AdvancedSubtensor1")
"""Ops that take elements of an array. PyTensor 3 has no op of its own for an index of one axis."""

INDEXED_UPDATES = _classes("IncSubtensor", "AdvancedIncSubtensor", "AdvancedIncSubtensor1")
"""Ops that add to, or set, elements of an array."""


def index_of(op: Op, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the index of an op that indexes, from the values of its inputs after the arrays."""
    return tuple(subtensor.indices_from_subtensor(values, getattr(op, "idx_list", None)))


def axis_of(node: Apply) -> Any:
    """Return the axis along which a node joins, splits or sorts, maybe as a variable.

    PyTensor 2 has it among the inputs, where it is the only one that is not an array.
    """
    if hasattr(node.op, "axis"):
        return node.op.axis
    return next(source for source in node.inputs if getattr(source.type, "ndim", 0) == 0)


def storage_of(variable: SharedVariable) -> list[np.ndarray]:
    """Return the list of one element that holds the value of a shared variable."""
    storage: list[np.ndarray] = variable.container.storage
    return storage


def get_shared(variable: SharedVariable) -> np.ndarray:
    """Return the value of a shared variable, not a copy of it."""
    return variable.container.storage[0]


def set_shared(variable: SharedVariable, value: np.ndarray) -> None:
    """Give a value of the right type and shape to a shared variable, without a copy or a check.

    The checks of ``set_value`` cost more than an update of a small u.
    """
    variable.container.storage[0] = value


def with_gradient(op: type[Op]) -> type[Op]:
    """Let PyTensor find the method ``vector_jacobian`` of an op, whatever name it looks for.

    PyTensor 2 calls ``L_op``; PyTensor 3 calls ``pullback`` and deprecates the other.
    """
    name = "pullback" if hasattr(Op, "pullback") else "L_op"
    setattr(op, name, op.vector_jacobian)
    return op


_announced = (0, 0)


@contextlib.contextmanager
def announcing(n_tune: int, n_draws: int) -> Iterator[None]:
    """Tell steps how long the chains of a run are, where PyMC does not (up to 6.2)."""
    global _announced
    before, _announced = _announced, (n_tune, n_draws)
    try:
        yield
    finally:
        _announced = before


class StartsChains:
    """Gives a step one method that is called where a chain starts, :meth:`start_chain`.

    PyMC up to 6.2 announces a chain by ``set_rng``, later ones by ``setup_chain``. With
    ``cores > 1`` that is the only notice that a step gets.
    """

    rng: np.random.Generator
    n_tune: int = 0
    n_draws: int = 0

    def start_chain(self) -> None:
        """Forget the last chain; ``self.rng`` is the generator of the new one.

        Its length, ``n_tune`` and ``n_draws``, is 0 where PyMC does not tell.
        """
        raise NotImplementedError

    def set_rng(self, rng: Any) -> None:
        """Start a chain (PyMC 5.28 to 6.2)."""
        self.setup_chain(rng, *_announced)

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Start a chain (PyMC 6.3 and later)."""
        self.rng = get_random_generator(rng, copy=False)
        self.n_tune, self.n_draws = tune, draws
        self.start_chain()


def dataset_of(idata: Any, group: str) -> Any:
    """Return a group of what ``pm.sample`` returned as a dataset; None if it is not there.

    The result of ``pm.sample`` is an InferenceData, whose groups are datasets, on PyMC 5 and a
    DataTree, whose groups are nodes, on PyMC 6.
    """
    import xarray

    found: Any = getattr(idata, group, None)
    if hasattr(found, "to_dataset"):
        found = found.to_dataset()
    return found if isinstance(found, xarray.Dataset) else None


def tail_index(log_weights: np.ndarray) -> float:
    """Return ArviZ's Pareto k-hat of the largest of some weights.

    ArviZ 0.23 takes the logs of weights, ArviZ 1 those of likelihoods, the inverse of weights.
    """
    import arviz

    if hasattr(arviz, "psislw"):
        _, k = arviz.psislw(log_weights)
    else:
        from arviz_stats.base import array_stats

        _, k = array_stats.psislw(-log_weights)
    return float(k)


def plot_pit(ranks: Any, **options: Any) -> Any:
    """Let ArviZ plot how far numbers are from uniform; return None if it is ArviZ 0.23."""
    import arviz
    import xarray

    if not hasattr(arviz, "plot_ecdf_pit"):
        return None
    tree = xarray.DataTree.from_dict({"prior_sbc": ranks})
    return arviz.plot_ecdf_pit(tree, group="prior_sbc", **options)


def groups_of(idata: Any) -> dict[str, Any]:
    """Return the groups of what ``pm.sample`` returned as datasets, by name."""
    names = idata.groups() if callable(idata.groups) else list(idata.children)
    return {name: dataset_of(idata, name) for name in names}


def result_of(groups: Mapping[str, Any]) -> Any:
    """Make of some datasets what ``pm.sample`` returns."""
    import arviz
    import xarray

    if hasattr(arviz, "psislw"):
        return arviz.InferenceData(**groups)
    return xarray.DataTree.from_dict(dict(groups))


def default_tune(step: Any) -> int:
    """Return how many draws PyMC takes for tuning if it is not told; later ones ask the steps."""
    import pymc.sampling.mcmc

    ask = getattr(pymc.sampling.mcmc, "get_default_tune_steps", None)
    return ask(step, None) if ask else 1000


def default_transform(rv: Any) -> Any:
    """Return the transform that PyMC gives to a random variable if the user gives none."""
    from pymc.distributions.transforms import _default_transform

    return _default_transform(rv.owner.op, rv)
