"""Which randomness is updated by the steps of a run, and who may evaluate its estimates.

An estimate is a factor of the posterior only if its randomness u is updated along with the
parameters. With a u that stays as it is, the log density of a model is that of one arbitrary
estimate, and whatever samples or maximises it is silently wrong. So each :func:`pymc_apm.Potential`
is *guarded*: a flag in its graph, a shared variable, counts those who vouch for its randomness, and
while there are none, to compute the estimate or its gradient is an error. Two do vouch for it:

- ``pm.sample``, from its start to its end, however it ends, if the steps of the run update all
  randomness of the model (:func:`take_stock`);
- somebody who wants to look at the density of one estimate, within :func:`clamped`.

A flag belongs to the graph, and so to one model: a copy of the model has flags of its own, at zero.
Its value goes with the model to the processes in which chains run.
"""

import contextlib
import copy
import multiprocessing
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pytensor.compile.mode import optdb
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.graph.traversal import ancestors
from pytensor.link.basic import Container
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import as_scalar
from pytensor.tensor.sharedvar import TensorSharedVariable
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_apm._compat import get_shared, with_gradient
from pymc_apm.errors import ModelError, UnclaimedRandomnessError, unclaimed
from pymc_apm.randomness import randomness_in

__all__ = ["Flag", "Guard", "clamped", "flags_in", "guarded", "held", "take_stock"]

_FLAG_TYPE = TensorType("int64", shape=())
_COUNTING = threading.Lock()


class _FlagContainer(Container):
    """Where the value of a flag is."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Come from a pickle, without claims."""
        self.__dict__.update(state)
        self._forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> "_FlagContainer":
        """Return a copy, without claims."""
        copied: _FlagContainer = super().__deepcopy__(memo)
        copied._forget()
        return copied

    def _forget(self) -> None:
        """Forget all claims, unless this is a process to which a run was sent, and goes on."""
        if self.storage[0] and multiprocessing.parent_process() is None:
            # In place: PyTensor checks that no function has another value than when it was pickled.
            self.storage[0][...] = 0


class Flag(TensorSharedVariable):
    """How many vouch for the randomness of an estimate; a copy of it starts at zero.

    Whoever copies the graph of a model, as ``pm.do`` and its kin do, clones its shared variables,
    and a clone of an ordinary one would have the same value forever.
    """

    def clone(self, **kwargs: Any) -> "Flag":
        """Return a flag at zero."""
        flag = new_flag(kwargs.get("name", self.name))
        flag.tag = copy.copy(self.tag)
        return flag


def new_flag(name: str | None) -> Flag:
    """Return a flag that nobody has raised."""
    container = _FlagContainer(_FLAG_TYPE, [np.array(0)], strict=True, name=name)
    return Flag(type=_FLAG_TYPE, value=None, strict=None, container=container, name=name)


@with_gradient
class Guard(CheckAndRaise):
    """Hands on a log-estimate if somebody vouches for its randomness; so does its gradient.

    Parameters
    ----------
    names : tuple of str
        The names of the randomness.
    axes : tuple of int
        The axis of each along which its parts belong to the entries of the log-estimate, if the
        user has declared that; empty otherwise.
    """

    __props__ = ("names", "axes")

    def __init__(self, names: tuple[str, ...], axes: tuple[int, ...] = ()) -> None:
        self.names = names
        self.axes = axes
        super().__init__(UnclaimedRandomnessError, unclaimed(names))

    def __str__(self) -> str:
        return f"{type(self).__name__}{{{', '.join(self.names)}}}"

    def vector_jacobian(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        output_gradients: Sequence[Variable],
    ) -> list[Variable]:
        """Guard the gradient: that of the base class would be that of an estimate without guard."""
        (gradient,) = output_gradients
        if isinstance(gradient.type, TensorType):
            gradient = self(gradient, *inputs[1:])
        return [gradient, *(disconnected_type() for _ in inputs[1:])]


@node_rewriter([Guard])
def _refuse(fgraph: Any, node: Apply) -> list[Variable] | bool:
    """Let a guard that would be left out fail where it is compiled.

    JAX and MLX cannot raise an error from compiled code; they leave out what checks something,
    unless it is known to fail. Within :func:`clamped`, where PyMC makes constants of shared
    variables before it hands a graph to JAX, a guard is known to pass and is gone by now.
    """
    value, condition = node.inputs
    if isinstance(condition, Constant):
        return False
    return [node.op(value, as_scalar(np.array(False)))]


optdb.register("apm_refuse_guards", in2out(_refuse), "jax", "mlx", position=100)


def guarded(
    log_estimate: TensorVariable, names: Sequence[str], axes: Sequence[int] = ()
) -> TensorVariable:
    """Return a log-estimate that is an error to compute while its randomness is not claimed."""
    guard = Guard(tuple(names), tuple(axes))
    return guard(log_estimate, new_flag(f"{', '.join(names)}_claimed"))


def declared_axes(term: Variable) -> dict[str, int]:
    """Return the axis of each randomness that was declared to run along the entries of a term."""
    op = term.owner.op if term.owner else None
    return dict(zip(op.names, op.axes, strict=False)) if isinstance(op, Guard) else {}


def guards_in(outputs: Iterable[Variable]) -> dict[Flag, tuple[str, ...]]:
    """Return all flags among the ancestors of some variables, with the names of the randomness."""
    found: dict[Flag, tuple[str, ...]] = {}
    for variable in ancestors(list(outputs)):
        if variable.owner is not None and isinstance(variable.owner.op, Guard):
            for flag in ancestors(variable.owner.inputs[1:]):
                if isinstance(flag, Flag):
                    found[flag] = variable.owner.op.names
    return found


def flags_in(outputs: Iterable[Variable]) -> list[Flag]:
    """Return all flags among the ancestors of some variables."""
    return list(guards_in(outputs))


def terms_of(model: pm.Model) -> list[Variable]:
    """Return all variables of a model in which there may be randomness."""
    return [*model.potentials, *model.basic_RVs, *model.deterministics]


def randomness_of_model(model: pm.Model) -> list[SharedVariable]:
    """Return the randomness on which the log density of a model depends."""
    return randomness_in([*model.potentials, *model.basic_RVs])


def unclaimed_in(model: pm.Model) -> list[str]:
    """Return the names of the randomness in the guarded terms of a model that is not claimed."""
    guards = guards_in(terms_of(model))
    names = {name for flag, names in guards.items() if not get_shared(flag) for name in names}
    return sorted(names)


@contextlib.contextmanager
def held(flags: Iterable[Flag]) -> Iterator[None]:
    """Vouch for the randomness of some estimates within a context; contexts may be nested."""
    raised: list[Flag] = []
    try:
        for flag in flags:
            _add(flag, 1)
            raised.append(flag)
        yield
    finally:
        for flag in raised:
            _add(flag, -1)


def _add(flag: Flag, number: int) -> None:
    with _COUNTING:
        flag.set_value(np.array(get_shared(flag) + number))


@contextlib.contextmanager
def clamped(model: pm.Model | None = None) -> Iterator[pm.Model]:
    """Let the log density of a model be computed with its randomness clamped.

    Within this context ``model.compile_logp()``, ``pm.find_MAP``, ``pm.fit`` and whatever else
    evaluates the log density see that of *one* estimate, at the value that the randomness u of the
    model happens to have: the same for the same parameters, but not the posterior. That is good for
    looking at it, for example for its gradient or its smoothness, and for a step that is called by
    hand and leaves some u to others. Outside of the context, and outside of ``pm.sample``, the same
    functions raise an :class:`~pymc_apm.errors.UnclaimedRandomnessError`, wherever they were
    compiled.

    ``pm.sample`` does not heed it: a run is refused unless its steps update all randomness.

    Parameters
    ----------
    model : Model, optional
        The model; the one whose context is open if not given.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model() as model:
    ...     theta = pm.Normal("theta")
    ...     u = apm.StandardNormal("u")
    ...     log_lik = apm.Potential("log_lik", -((theta - u) ** 2))
    >>> u.set_value(0.5)
    >>> logp = model.compile_logp(log_lik)
    >>> with apm.clamped(model):
    ...     float(logp({"theta": 2.5}))
    -4.0
    """
    model = pm.modelcontext(model)
    with held(flags_in(terms_of(model))):
        yield model


def take_stock(model: pm.Model, steps: Sequence[Any], assigned: Iterable[str] = ()) -> None:
    """Check that the steps of a run update all randomness of a model.

    Parameters
    ----------
    model : Model
    steps : list
        The steps that ``pm.sample`` was given. What a step updates it says by its attribute
        ``updated_randomness``, a list of shared variables; others update none.
    assigned : list of str
        The names of the randomness that is updated by steps that ``pm.sample`` will add.

    Raises
    ------
    ModelError
        If some randomness was made a constant.
    UnclaimedRandomnessError
        If some randomness is updated by none of the steps.
    """
    randomness = randomness_of_model(model)
    declared = {name for names in guards_in(terms_of(model)).values() for name in names}
    frozen = declared - {variable.name for variable in randomness}
    if frozen:
        raise ModelError(
            f"The randomness {', '.join(map(repr, sorted(frozen)))} of an estimator has been "
            "replaced in the model, for example by a constant, so that the estimate would stay the "
            "same for the whole chain and the posterior would be wrong. Leave randomness out of "
            "what is given to pm.do or to freeze_dims_and_data."
        )
    updated = {u for step in steps for u in getattr(step, "updated_randomness", ())}
    names = [u.name for u in randomness if u not in updated and u.name not in set(assigned)]
    if names:
        raise UnclaimedRandomnessError(unclaimed(names))
