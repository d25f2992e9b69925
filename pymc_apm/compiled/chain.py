"""Running blocks of draws in compiled code."""

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core.errors import NumbaError
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable

import pymc_apm
from pymc_apm._compat import cached_function, get_shared
from pymc_apm.compiled.rules import Program, Rules
from pymc_apm.compiled.source import Writer
from pymc_apm.compiled.stages import CompiledStage, compile_stage
from pymc_apm.errors import CompileError
from pymc_apm.kernels.state import FloatVector
from pymc_apm.target import Target
from pymc_apm.updates.table import N_COLUMNS

START = 5
"""Numbers that a block reports of its start: those of an Evaluation, and whether one was +inf."""


class Block(NamedTuple):
    """Some draws of a chain.

    Attributes
    ----------
    n_draws : int
        How many were made; fewer than asked for if something went wrong.
    start : ndarray
        The log density at the start, the log-estimate, the log of the prior and of the exact
        likelihood, and whether the log-estimate was +inf.
    thetas : ndarray
        The parameters of each draw.
    us : tuple of ndarray
        Each piece of randomness that is moved, for each draw.
    table : ndarray
        The statistics of each draw, in the columns of :mod:`pymc_apm.compiled.source`.
    learnt : object
        What was learnt by the end of the block.
    """

    n_draws: int
    start: FloatVector
    thetas: FloatVector
    us: tuple[FloatVector, ...]
    table: FloatVector
    learnt: Any


class Chain:
    """The transitions of a step on a target, compiled.

    Parameters
    ----------
    target : Target
    rules : Rules

    Attributes
    ----------
    keys : dict
        What identifies the code of each function on disk; ``None`` for code that is not kept.

    Raises
    ------
    CompileError
        If part of the target can only run in Python.
    """

    def __init__(self, target: Target, rules: Rules) -> None:
        self._target = target
        self._rules = rules
        self._build()

    def _build(self) -> None:
        with self._target.model:  # the compiler heeds its check_bounds
            stages = [compile_stage(p.stage.inputs, p.stage.results) for p in self._target.stages]
        self._data = [item for stage in stages for item in stage.data]
        program = Writer(self._target, stages).program(self._rules)
        namespace = {
            "__name__": __name__,
            "njit": functools.partial(numba.njit, no_cpython_wrapper=True, no_cfunc_wrapper=True),
            "np": np,
            "inf": np.inf,
            "isnan": np.isnan,
            **program.namespace,
        }
        exec(program.shared, namespace)
        self.keys = {n: _key(program, source, stages) for n, source in program.functions.items()}
        self._functions = {
            name: cached_function(source, name, namespace, self.keys[name])
            for name, source in program.functions.items()
        }

    def __getstate__(self) -> dict[str, Any]:
        """Leave the machine code behind: another process finds it on disk."""
        return {**self.__dict__, "_functions": {}}

    def run(
        self,
        learns: bool,
        rng: np.random.Generator,
        n_draws: int,
        thin: int,
        values: Sequence[FloatVector],
        options: Any,
        learnt: Any,
    ) -> Block:
        """Make some draws.

        Parameters
        ----------
        learns : bool
            Whether the chain is tuning.
        rng : Generator
        n_draws, thin : int
            Draws to make, and transitions for each.
        values : sequence of ndarray
            The value of each block of the target at the start, in their order.
        options, learnt : NamedTuple
            Those of the update of theta.
        """
        if not self._functions:
            self._build()
        arguments = self._arguments(rng, n_draws, thin, values, options, learnt)
        n_done, learnt = self._functions["learn" if learns else "run"](*arguments)
        *_, thetas, us, table, start, _ = arguments
        return Block(n_done, start, thetas, us, table, learnt)

    def compile(self, values: Sequence[FloatVector], options: Any, learnt: Any) -> None:
        """Compile now, for arguments as those of :meth:`run`."""
        arguments = self._arguments(np.random.default_rng(), 0, 1, values, options, learnt)
        types = tuple(numba.typeof(argument) for argument in arguments)
        try:
            for function in self._functions.values():
                function.compile(types)
        except NumbaError as error:
            raise CompileError(f"Numba says: {error}") from error

    def _arguments(
        self,
        rng: np.random.Generator,
        n_draws: int,
        thin: int,
        values: Sequence[FloatVector],
        options: Any,
        learnt: Any,
    ) -> tuple[Any, ...]:
        moved = [values[self._target.places[move.name]] for move in self._rules.moves]
        return (
            rng,
            n_draws,
            thin,
            tuple(_own(value) for value in values),
            tuple(_value(item) for item in self._data),
            options,
            learnt,
            np.empty((n_draws, values[0].size)),
            tuple(np.empty((n_draws, u.size)) for u in moved),
            np.empty((n_draws, N_COLUMNS)),
            np.zeros(START),
            np.zeros(4, np.int64),
        )


def _own(value: FloatVector) -> FloatVector:
    """Copy an array, so that its type is the one that was compiled for."""
    return np.array(value, dtype=np.float64, order="C")


def _value(item: NDArray[Any] | SharedVariable) -> NDArray[Any]:
    value = get_shared(item) if isinstance(item, SharedVariable) else item
    return np.require(value, requirements=["C", "W"])


def _key(program: Program, source: str, stages: Sequence[CompiledStage]) -> str | None:
    """Return what identifies a function among all functions, unless it cannot be kept on disk."""
    parts = [program.shared, source, _sources()]
    for stage in stages:
        if stage.key is None:
            return None
        parts.append(stage.key)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@functools.cache
def _sources() -> str:
    """Return a digest of the sources that programs are made from."""
    package = Path(pymc_apm.__file__).parent
    digest = hashlib.sha256()
    for part in ("adaptation.py", "kernels/*.py", "updates/*.py", "compiled/*.py"):
        for path in sorted(package.glob(part)):
            digest.update(path.read_bytes())
    return digest.hexdigest()
