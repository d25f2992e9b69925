"""Recording a path of the states of a state-space model with each draw.

Given the parameters and the random numbers ``u`` of a chain, a path that is drawn from the points
or particles that they make is an exact draw of the states. A step that updates such ``u`` draws one
where it leaves the chain. Which path it is, is decided by numbers made from those of the chain, so
that the chain is the same with and without it.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from pymc_apm._compat import compile_function, get_shared
from pymc_apm.errors import ModelError, see
from pymc_apm.estimators.copies import in_model
from pymc_apm.types import Point


class Recorder:
    """Draws paths of the states of one estimate.

    Parameters
    ----------
    model : Model
    term : str
        The name of the estimate.
    """

    def __init__(self, model: pm.Model, term: str) -> None:
        self._model, self._term = model, term
        how = model[term].tag.apm_states
        self.name = f"{term}_states"
        self.shape = len(how.specification.rows), how.specification.n_dims
        self._order = np.argsort(how.specification.rows.order)
        self._compute: Callable[..., Any] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a path, as that of an element of an array."""
        return np.dtype((np.float64, self.shape))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_compute": None}

    @property
    def nothing(self) -> NDArray[np.float64]:
        """What is recorded while tuning."""
        return np.full(self.shape, np.nan)

    def __call__(self, point: Point) -> NDArray[np.float64]:
        """Return a path, given the values of the parameters and ``u`` as it is now."""
        source = self._model[self._term].tag.apm_states.source
        values = self._model.value_vars
        if self._compute is None:
            outputs = outputs_in(self._model, source)
            self._compute = compile_function([*source.inputs, *values], outputs, calls_python=True)
        us = [np.array(get_shared(self._model[u.name])) for u in source.us]
        u = us[0] if len(us) == 1 else np.concatenate(us)
        theta = [np.asarray(point[value.name]) for value in values]
        digest = hashlib.blake2b(u.tobytes())
        for value in theta:
            digest.update(value.tobytes())
        rng = np.random.default_rng(int.from_bytes(digest.digest()[:16], "big"))
        drawn = source.draw(rng, u, self._compute(*source.numbers(rng, u), *theta))
        return self.nothing if drawn is None else drawn.smoothed[self._order]


def outputs_in(model: pm.Model, source: Any) -> list[Variable]:
    """Return the outputs of a source as functions of the value variables of a model.

    The model may be a copy of that for which the source was made: variables go by their names.
    """
    outputs = in_model(source.outputs, model, source.inputs)
    made: list[Variable] = model.replace_rvs_by_values(outputs)
    if any(isinstance(v.type, RandomType) for v in ancestors(made)):
        raise ModelError(
            f"States that belong to {source.us[0].name} cannot be recorded: they depend on random "
            "draws."
        )
    return made


def recorders_of(model: pm.Model, moved: Iterable[SharedVariable]) -> list[Recorder]:
    """Return what records paths of the states of estimates whose randomness a step moves."""
    names = {variable.name for variable in moved}
    # If its numbers are several arrays, whoever moves the last of them comes last.
    return [Recorder(model, term.name) for term in _recorded(model) if _us_of(term)[-1] in names]


def records_states(model: pm.Model) -> bool:
    """Say whether paths of states are to be recorded."""
    return bool(_recorded(model))


def check_order_of_paths(
    model: pm.Model, steps: Sequence[Any], later: Iterable[Variable] = ()
) -> None:
    """Check that paths are drawn when all that they depend on has been moved.

    Parameters
    ----------
    model : Model
    steps : list
        The steps of a run, in their order.
    later : list of Variable
        Random variables that steps of PyMC will update after these.
    """
    for term in _recorded(model):
        above = set(ancestors([term]))
        parameters = [rv for rv in model.free_RVs if rv in above]
        *others, last = _us_of(term)
        late = [rv.name for rv in parameters if rv in set(later)]
        for step in reversed(steps):
            moved = {u.name for u in getattr(step, "updated_randomness", ())}
            if last in moved:
                break
            values = set(getattr(step, "vars", ()))
            late += [rv.name for rv in parameters if model.rvs_to_values[rv] in values]
            late += [name for name in others if name in moved]
        if late:
            raise ModelError(
                f"{', '.join(late)} would be updated after the step that moves {last}, which"
                f" records the states of {term.name}, and these would not be those of the draws. "
                "Give a step for every parameter, and let the one that moves u be the last: "
                f"step=[pm.NUTS([{late[0]}]), apm.APMIndependenceU()]. {see('state_space')}"
            )


def _recorded(model: pm.Model) -> list[Variable]:
    found = [term for term in model.potentials if hasattr(term.tag, "apm_states")]
    return [term for term in found if term.tag.apm_states.records]


def _us_of(term: Variable) -> list[str]:
    return [u.name for u in term.tag.apm_states.source.us]
