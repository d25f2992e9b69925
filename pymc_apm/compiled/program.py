"""A transition compiled by Numba, and what identifies it on disk."""

import functools
import hashlib
import importlib.metadata
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytensor
from numba.core.errors import NumbaError
from numba.extending import register_jitable

import pymc_apm
from pymc_apm.adaptive.report import Report
from pymc_apm.adaptive.transition import Transition, drawing, in_batches
from pymc_apm.compiled.cache import ProgramCache
from pymc_apm.compiled.fingerprint import walk
from pymc_apm.compiled.graphs import Densities
from pymc_apm.compiled.parts import PartCompiler, WholeCompiler
from pymc_apm.compiled.primitives import PRIMITIVES
from pymc_apm.density.target import Target
from pymc_apm.errors import CompileError
from pymc_apm.types import Evaluation, FloatVector, LogDensity

Build = Callable[[Callable[..., Any]], Transition]
"""``build(density)`` makes a transition; ``density(*names)`` is the log density along inputs."""

COMPILED: dict[tuple[str | None, tuple[Any, ...]], Any] = {}
"""What was compiled, or loaded, in this process, by the digest of its program and its types."""

REGISTERED: set[Any] = set(PRIMITIVES)
"""Functions that Numba knows how to compile where another one calls them."""


SMALL = 200
"""Functions of less byte code are copied to where they are called: what they hand to each other
then stays in registers. Larger ones would be copied often, and take long to compile."""


class Batch(NamedTuple):
    """Some draws of a chain.

    Attributes
    ----------
    evaluation : Evaluation
        The last draw, as compiled code wants it.
    learnt : object
        What was learnt by then.
    positions : ndarray
        The parameters and each u that is moved, a row a draw.
    report : Report
        What was reported: an array for each entry.
    log_estimate, log_density, sign : ndarray
    """

    evaluation: Evaluation
    learnt: Any
    positions: FloatVector
    report: Report
    log_estimate: FloatVector
    log_density: FloatVector
    sign: FloatVector


class Program:
    """A transition on a target, to be compiled or to be found on disk.

    Parameters
    ----------
    target : Target
    build : callable
        Makes the transition from densities.
    moved : dict
        The inputs that it moves, in the order in which they are recorded, and their sizes.

    Attributes
    ----------
    digest : str or None
        What tells the program from all others; None if that cannot be said, so that it is not kept.
    """

    def __init__(self, target: Target, build: Build, moved: Mapping[str, int]) -> None:
        self._build = build
        self._places = [target.places[name] for name in moved]
        self._signs = target.sums["sign"]
        self._starts = [0, *np.cumsum(list(moved.values())).tolist()]
        self.densities = Densities(target)
        # The very closures that are compiled, with graphs in place of compiled densities.
        walked = walk(self._run_with(self.densities.essence))
        found = walk([walked.digest, _sources(), _flags(), bool(target.model.check_bounds)])
        self.digest = found.digest if walked.digest is not None else None
        self._function: Any = None

    def _run_with(self, density: Callable[..., Any]) -> Callable[..., Any]:
        transition = self._build(density)
        return in_batches(drawing(transition), self._places, self._starts, self._signs)

    def is_at_hand(self, arguments: tuple[Any, ...]) -> bool:
        """Say whether it was compiled for such arguments before, in this process or on disk."""
        if self.digest is None:
            return False
        types = signature_of(arguments)
        if (self.digest, types) in COMPILED:
            return True
        context = numba.core.registry.cpu_target.target_context
        return ProgramCache(self.digest).has(types, context)

    def compile(self, arguments: tuple[Any, ...]) -> None:
        """Load it, or compile it, for arguments like these.

        Raises
        ------
        CompileError
            If part of it can only run in Python.
        """
        types = signature_of(arguments)
        key = self.digest, types
        self._function = COMPILED.get(key) or self._load(types)
        if self._function is None:
            self._function = self._make()
            try:
                self._function.compile(types)
            except NumbaError as error:
                raise CompileError(f"Numba says: {error}") from error
        if self.digest is not None:
            COMPILED[key] = self._function

    def _load(self, types: tuple[Any, ...]) -> Any:
        """Return the function that was compiled for such types; None if it is not on disk."""
        if self.digest is None:
            return None
        function = numba.njit(_on_disk)
        found = ProgramCache(self.digest).load_overload(types, function.targetctx)
        if found is None:
            return None
        function.targetctx.insert_user_function(found.entry_point, found.fndesc, [found.library])
        function.add_overload(found)
        function.disable_compile()
        return function

    def _make(self) -> Any:
        """Return a function that is to be compiled."""

        @functools.cache
        def density(*names: str) -> LogDensity:
            return self.densities.density(*names)

        made = with_parts(self._run_with(density))
        if self.digest is not None:
            made._cache = ProgramCache(self.digest)
        return made

    def run(self, *arguments: Any) -> Batch:
        """Make some draws."""
        evaluation, learnt, positions, table = self._function(*arguments)
        *columns, log_estimate, log_density, sign = table.T
        report = Report(*columns)
        return Batch(evaluation, learnt, positions, report, log_estimate, log_density, sign)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the machine code behind: another process finds it on disk."""
        return self.__dict__ | {"_function": None}


def with_parts(function: Callable[..., Any]) -> Any:
    """Return a function for Numba to compile, with all functions that it calls as its parts."""
    walked = walk(function)
    for part in walked.functions:
        if part is not function and part not in REGISTERED:
            is_inlined = len(part.__code__.co_code) < SMALL or walked.references[part] == 1
            register_jitable(forceinline=is_inlined, pipeline_class=PartCompiler)(part)
            REGISTERED.add(part)
    return numba.njit(function, pipeline_class=WholeCompiler)


def signature_of(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the types of some arguments, as Numba has them."""
    return tuple(numba.typeof(argument) for argument in arguments)


def _on_disk(
    rng: Any, evaluation: Any, options: Any, learnt: Any, tunes: Any, thin: Any, n_draws: Any
) -> None:
    """Stand in for a function whose code is on disk: it is never compiled itself."""


def _flags() -> dict[str, str]:
    """Return the flags of PyTensor that change what it compiles."""
    names = (
        "numba__fastmath",
        "floatX",
        "cast_policy",
        "mode",
        "optimizer",
        "optimizer_including",
        "optimizer_excluding",
        "optimizer_requiring",
    )
    return {name: str(getattr(pytensor.config, name)) for name in names}


@functools.cache
def _sources() -> str:
    """Return the versions of all that programs are made with, and a digest of our own sources."""
    versions = {
        name: importlib.metadata.version(name)
        for name in ("numpy", "numba", "llvmlite", "pytensor", "pymc", "pymc_apm")
    }
    sources = hashlib.sha256()
    package = Path(pymc_apm.__file__).parent
    for path in sorted(package.rglob("*.py")):
        sources.update(path.read_bytes())
    return repr((sys.version, versions, sources.hexdigest()))
