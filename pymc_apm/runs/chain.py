"""One chain of a run: a call of ``pm.sample`` that goes on from a checkpoint."""

import contextlib
import math
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from pymc.step_methods.compound import CompoundStep, flatten_steps
from pytensor.compile.mode import Mode
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from pymc_apm._compat import compile_function
from pymc_apm.claims import clamped
from pymc_apm.errors import StoreError, describe_value, see
from pymc_apm.randomness import randomness_in
from pymc_apm.runs.files import locked
from pymc_apm.runs.plan import Setup, like
from pymc_apm.runs.recorder import HIDDEN, Ended, Recorder, Writer
from pymc_apm.runs.seeds import SeedOfRun
from pymc_apm.runs.store import Checkpoint, Run, Store
from pymc_apm.types import Point

PATIENCE = 60.0
"""Seconds to wait for whoever wrote a chain before, and has been replaced."""

IN_PYTHON = Mode(linker="py", optimizer="fast_compile")
"""How to compute a density that is wanted once a minute."""

one_at_a_time = threading.Lock()
"""PyTensor is not made for threads: chains that meet in a process run one after the other."""


class Job(NamedTuple):
    """Which chain to run.

    Attributes
    ----------
    path : str
        The store.
    chain : int
    every : float
        Seconds from one commit to the next.
    parent : int or None
        The process without which the chain is not to go on.
    """

    path: str
    chain: int
    every: float
    parent: int | None = None


def run_chain(setup: Setup, job: Job) -> str:
    """Run a chain from its checkpoint to its end, or until it is stopped.

    Returns
    -------
    str
        ``"done"``, ``"stopped"``, or ``"replaced"`` if another process goes on with the chain.
    """
    store = Store(job.path)
    name = uuid.uuid4().hex
    folder = store.chain_folder(job.chain)
    folder.mkdir(exist_ok=True)
    store.claim(job.chain, name)
    busy = f"{store}: another process writes chain {job.chain}."
    with one_at_a_time, locked(folder / "lock", seconds=PATIENCE, otherwise=busy):
        run = store.read_run()
        checkpoint = store.checkpoint(run, job.chain)
        if checkpoint is not None and checkpoint.n_done >= run.tune + run.draws:
            return "done"
        if store.stop_file.exists():
            return "stopped"
        with _left_as_it_was(setup.step):
            return _sample(setup, job, store, run, checkpoint, name)


@contextlib.contextmanager
def _left_as_it_was(step: Any) -> Iterator[None]:
    """Put a step back where it was: it serves other chains, or is the user's."""
    initial = step.sampling_state
    try:
        yield
    finally:
        step.sampling_state = initial


def _sample(
    setup: Setup, job: Job, store: Store, run: Run, checkpoint: Checkpoint | None, name: str
) -> str:
    check = make_check(setup)
    writer = Writer(
        *(store, run, job.chain, setup.step, checkpoint),
        name=name,
        every=job.every,
        check=check,
        parent=job.parent,
    )
    trace = like(setup.trace, Recorder)
    trace.writer = writer
    restore = None
    start = setup.starts[job.chain] if setup.starts else None
    if checkpoint is not None:
        start = point_of(checkpoint, setup.model)

        def restore() -> None:
            restore_state(setup.step, checkpoint, store)
            _compare(setup.step, check, start, checkpoint, store)

    initvals = setup.initvals
    if isinstance(initvals, list | tuple):
        initvals = initvals[job.chain]
    try:
        pm.sample(
            draws=run.draws - max(writer.n_before - run.tune, 0),
            tune=max(run.tune - writer.n_before, 0),
            chains=1,
            cores=1,
            random_seed=SeedOfRun(*run.seed).generator(job.chain),
            step=GoingOn(setup.step, run, writer.n_before, start, restore),
            initvals=initvals,
            trace=trace,
            callback=_callback(setup.callback, writer) if setup.callback else None,
            model=setup.model,
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
        )
    except Ended:
        return writer.status
    raise AssertionError("a chain ends by its trace")


class GoingOn(CompoundStep):
    """All steps of a run as one, which go on from a checkpoint.

    Parameters
    ----------
    step : BlockedStep or CompoundStep
    run : Run
    n_before : int
        How many draws have been made.
    start : dict or None
        The point to go on from; None is that of PyMC.
    restore : callable or None
        Puts the steps into the state that they had.
    """

    def __init__(
        self,
        step: Any,
        run: Run,
        n_before: int,
        start: Point | None,
        restore: Callable[[], None] | None,
    ) -> None:
        self._step, self._run, self._n_before = step, run, n_before
        self._start, self._restore = start, restore
        self.methods = flatten_steps(step)
        self.stats_dtypes = step.stats_dtypes
        self.stats_dtypes_shapes = step.stats_dtypes_shapes
        self.name = "GoingOn"

    @property
    def tune(self) -> bool:
        """Whether the chain is tuning."""
        return bool(self._step.tune)

    @tune.setter
    def tune(self, tune: bool) -> None:
        self._step.tune = tune

    @property
    def sampling_state(self) -> Any:
        """The state of the steps."""
        return self._step.sampling_state

    @sampling_state.setter
    def sampling_state(self, state: Any) -> None:
        self._step.sampling_state = state

    def set_rng(self, rng: Any) -> None:
        """Start a chain (PyMC 5.28 to 6.2)."""
        self._step.set_rng(rng)

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Start a chain (PyMC 6.3 and later), which is as long as the whole of it."""
        self._step.setup_chain(rng, self._run.tune, self._run.draws)

    def reset_tuning(self) -> None:
        """Forget what was learnt: the last that PyMC does before the first draw."""
        if hasattr(self._step, "reset_tuning"):
            self._step.reset_tuning()
        if self._restore is not None:
            self._restore()

    def stop_tuning(self) -> None:
        """Freeze what was learnt, unless that has been done before."""
        if self._n_before <= self._run.tune:
            self._step.stop_tuning()

    def step(self, point: Point) -> Any:
        """Make the first draw; for others PyMC finds the method of the steps themselves."""
        self.step = self._step.step  # type: ignore[method-assign]
        return self._step.step(point if self._start is None else self._start)


# Going on


def check_model(setup: Setup, store: Store, run: Run) -> None:
    """Refuse a model that is not that of the draws in a store, where there are any.

    Chains that go on find out by themselves, but some may have ended, and others not begun.
    """
    found = (store.checkpoint(run, chain) for chain in range(run.chains))
    checkpoint = next((one for one in found if one is not None), None)
    if checkpoint is None:
        return
    point = point_of(checkpoint, setup.model)
    with _left_as_it_was(setup.step), clamped(setup.model):
        restore_state(setup.step, checkpoint, store)
        _compare(setup.step, make_check(setup), point, checkpoint, store)
        _compare_recorded(setup, store, run, checkpoint, point)


def point_of(checkpoint: Checkpoint, model: pm.Model) -> Point:
    """Return the point of a checkpoint, in the order that PyMC wants."""
    stored = checkpoint.packed.get("point")
    point: Point = model.initial_point()
    for name, value in point.items():
        found = stored.get(name)
        if not isinstance(found, np.ndarray) or found.shape != value.shape:
            raise StoreError(f"{checkpoint.packed.name} has no value for the parameter {name!r}.")
        point[name] = found.astype(value.dtype)
    return point


def restore_state(step: Any, checkpoint: Checkpoint, store: Store) -> None:
    """Put steps into the state that they had at a checkpoint."""
    try:
        step.sampling_state = checkpoint.packed.get("state", step.sampling_state)
    except (AssertionError, ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{store} was made by other steps: {error}") from error
    for one, hidden in zip(flatten_steps(step), checkpoint.packed.get("hidden"), strict=True):
        for name in HIDDEN:
            if name in hidden:
                setattr(one, name, int(hidden[name]))


def _compare(
    step: Any,
    check: Callable[[Point], float | None],
    point: Point | None,
    checkpoint: Checkpoint,
    store: Store,
) -> None:
    """Compute the density at the last draw again: for another model it is another one."""
    pairs: list[tuple[Any, Any]] = []
    for one in flatten_steps(step):
        found = one.chain.find_again() if hasattr(one, "chain") else None
        if found is not None:
            pairs.append(found)
    before = checkpoint.packed.get("check")
    if before is not None and point is not None:
        pairs.append(((before,), (check(point),)))
    for before, now in pairs:
        if not np.allclose(before, now, rtol=1e-8, atol=1e-8, equal_nan=True):
            parts = zip(("log density", "log-estimate"), before, now, strict=False)
            told = ", ".join(f"the {name} was {was} and is {new} now" for name, was, new in parts)
            raise StoreError(
                f"{store} was made with another model, other data or another estimator: at the "
                f"last draw of chain {checkpoint.chain} {told}. {see('runs')}"
            )


def _compare_recorded(
    setup: Setup, store: Store, run: Run, checkpoint: Checkpoint, point: Point
) -> None:
    """Compute what was recorded of the last draw again: the density tells nothing of some of it."""
    section = store.sections(run)[int(checkpoint.n_done > run.tune)]
    chunk, row = divmod(checkpoint.n_done - 1 - section.start, run.rows)
    trace = setup.trace
    found = dict(zip(trace.varnames, trace.fn(*point.values()), strict=True))
    drawn = [
        v.name for v in trace.vars if any(isinstance(a.type, RandomType) for a in ancestors([v]))
    ]
    for column in section.columns:
        if not column.group.endswith("posterior") or column.name in drawn or not column.n_bytes:
            continue
        before = store.read_chunk(column, run, checkpoint.chain, chunk)[row]
        if not np.allclose(before, found[column.name], rtol=1e-6, equal_nan=True):
            raise StoreError(
                f"{store} was made with another model: at the last draw of chain "
                f"{checkpoint.chain} {column.name} was {describe_value(before)} and is "
                f"{describe_value(found[column.name])} now. {see('runs')}"
            )


def make_check(setup: Setup) -> Callable[[Point], float | None]:
    """Return a function whose value at a point tells a model from others.

    Our steps have such values in their states, so that it is for runs without them.
    """
    steps = flatten_steps(setup.step)
    if any(hasattr(step, "chain") for step in steps):
        return lambda point: None
    model = setup.model
    functions: list[Callable[..., Any]] = []

    def check(point: Point) -> float:
        if not functions:
            terms = [*model.free_RVs, *model.observed_RVs, *model.potentials]
            exact = [term for term in terms if not randomness_in([term])]
            with model:  # the compiler heeds its check_bounds
                logp = model.logp(vars=exact)
                functions.append(compile_function(model.value_vars, [logp], mode=IN_PYTHON))
        values = [np.asarray(point[v.name], v.dtype) for v in model.value_vars]
        found = [float(functions[0](*values)[0])]
        found += [s.log_unnormalised(point) for s in steps if hasattr(s, "log_unnormalised")]
        return math.fsum(found)

    return check


def _callback(callback: Any, writer: Writer) -> Callable[..., None]:
    """Return a callback for PyMC that calls the user's, with the numbers of chain and draw."""
    writer.ends_late = True

    def call(trace: Any, draw: Any) -> None:
        number = draw.draw_idx + writer.n_before
        tuning = number < writer.run.tune
        callback(
            trace=trace,
            draw=draw._replace(chain=writer.chain, draw_idx=number, tuning=tuning),
        )
        if writer.status != "running":
            raise Ended

    return call
