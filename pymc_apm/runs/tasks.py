"""Chains as tasks for an executor: here, in other processes, or on other machines.

A task is "chain k from its checkpoint". To submit it again costs what was not committed, so that
a lost worker is no trouble as long as the chain makes progress.
"""

import concurrent.futures
import contextlib
import itertools
import logging
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import cloudpickle
from threadpoolctl import threadpool_limits

from pymc_apm.errors import RunStopped, StoreError, see
from pymc_apm.runs.chain import Job, one_at_a_time, run_chain
from pymc_apm.runs.plan import Setup, versions
from pymc_apm.runs.recorder import LOOK, interrupted
from pymc_apm.runs.store import Run, Store

ATTEMPTS = 3
"""How often a chain is submitted without any progress before it is given up."""

GRACE = 30.0
"""Seconds that chains have to commit and end after Ctrl-C."""

_log = logging.getLogger("pymc.apm")


class Outcome(NamedTuple):
    """What became of a task.

    Attributes
    ----------
    status : str
        That of :func:`run_chain`, or ``"failed"``.
    error : Exception or None
        What the chain raised: another attempt would raise it again.
    """

    status: str
    error: Exception | None = None


class Payload(NamedTuple):
    """What a task needs to run a chain.

    Attributes
    ----------
    setup : bytes or int
        Pickled, or the number under which a process that was forked has it.
    versions : dict
        What it was pickled with.
    """

    setup: bytes | int
    versions: dict[str, str]


_inherited: dict[int, Setup] = {}
_numbers = itertools.count()


def run_task(payload: Payload, job: Job) -> Outcome:
    """Run a chain, wherever this is."""
    try:
        here = versions()
        different = [name for name in here if here[name] != payload.versions.get(name)]
        if different:
            told = ", ".join(f"{n} {payload.versions.get(n)} and {here[n]}" for n in different)
            raise StoreError(
                f"The worker has other versions than the process that it works for: {told}. With "
                f"these a chain would not be the same. {see('runs')}"
            )
        if isinstance(payload.setup, int):
            setup = _inherited[payload.setup]
        else:
            setup = cloudpickle.loads(payload.setup)
        with threadpool_limits(1, user_api="blas"):
            return Outcome(run_chain(setup, job))
    except Exception as error:
        return Outcome("failed", _picklable(error))


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:  # whatever the code of a user's class raises
        return StoreError(f"A chain failed with {type(error).__name__}: {error}")


# Here


def run_here(setup: Setup, jobs: Sequence[Job]) -> None:
    """Run chains in this process, one after the other."""
    with _ctrl_c_is_an_order():
        for job in jobs:
            status = run_chain(setup, job)
            if status != "done":
                _raise_stopped(job.path, status)


@contextlib.contextmanager
def _ctrl_c_is_an_order() -> Iterator[None]:
    """Let a first Ctrl-C stop chains after a draw, with a commit, and a second one at once."""
    interrupted.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: Any) -> None:
        if interrupted.is_set() and callable(before):
            before(number, frame)
        _log.warning("Stopping after this draw. Ctrl-C again stops at once.")
        interrupted.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        interrupted.clear()


# Elsewhere


class LocalProcesses:
    """Processes of this machine, which are replaced when they die.

    Parameters
    ----------
    setup : Setup
    n_processes : int
    context : multiprocessing context or str or None
        How processes are started, as ``mp_ctx`` of ``pm.sample``.
    """

    def __init__(self, setup: Setup, n_processes: int, context: Any) -> None:
        if context is None or isinstance(context, str):
            context = multiprocessing.get_context(context)
        self._context, self._n_processes = context, n_processes
        self._number = next(_numbers)
        content: bytes | int = self._number
        if context.get_start_method() == "fork":  # with all that is compiled
            _inherited[self._number] = setup
        else:
            content = cloudpickle.dumps(setup)
        self.payload = Payload(content, versions())
        self._parent = os.getpid() if context.get_start_method() in ("fork", "spawn") else None
        self._pool = self._make()

    def _make(self) -> concurrent.futures.ProcessPoolExecutor:
        pool = concurrent.futures.ProcessPoolExecutor(
            self._n_processes,
            mp_context=self._context,
            initializer=_begin_worker,
            initargs=(self._parent,),
        )
        pool.submit(os.getpid)  # forks before there are other threads
        return pool

    def submit(self, job: Job) -> "concurrent.futures.Future[Outcome]":
        """Start a task, which ends when this process does."""
        job = job._replace(parent=self._parent)
        try:
            return self._pool.submit(run_task, self.payload, job)
        except concurrent.futures.BrokenExecutor:
            self._pool.shutdown(wait=False)
            self._pool = self._make()
            return self._pool.submit(run_task, self.payload, job)

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        _inherited.pop(self._number, None)


def _begin_worker(parent: int | None) -> None:
    """Leave Ctrl-C to the parent, which tells chains to stop after a draw; do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent has, and its chain has seen that and committed."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    one_at_a_time.acquire(timeout=GRACE)
    os._exit(1)


class Elsewhere:
    """An executor of the user's.

    Parameters
    ----------
    setup : Setup
    executor : concurrent.futures.Executor
    """

    def __init__(self, setup: Setup, executor: concurrent.futures.Executor) -> None:
        self._executor = executor
        self.payload = Payload(cloudpickle.dumps(setup), versions())

    def submit(self, job: Job) -> "concurrent.futures.Future[Outcome]":
        """Start a task."""
        try:
            return self._executor.submit(run_task, self.payload, job)
        except concurrent.futures.BrokenExecutor as error:
            raise StoreError(
                f"The executor has lost its workers and takes no more tasks: {error} What was "
                f"sampled is in the store {job.path!r}; the same call with a new executor goes on. "
                f"{see('runs')}"
            ) from error

    def close(self) -> None:
        """Leave the executor as it is."""


class _Attempts:
    """Counts the attempts at each chain that were lost without any progress."""

    def __init__(self, store: Store, run: Run) -> None:
        self._store, self._run = store, run
        self._counts: dict[int, int] = {}
        self._before: dict[int, tuple[int, str, int]] = {}

    def begin(self, chain: int) -> None:
        """Take note of where a chain is before an attempt."""
        self._before[chain] = self._here(chain)

    def is_hopeless(self, chain: int) -> bool:
        """Say whether to give a chain up, after its worker was lost.

        An attempt that was lost before it began, as all do that wait when a pool breaks, does not
        count, unless there is no progress anywhere.
        """
        before, here = self._before[chain], self._here(chain)
        if here[0] > before[0]:
            self._counts[chain] = 0
        elif here[1] != before[1] or here[2] == before[2]:
            self._counts[chain] = self._counts.get(chain, 0) + 1
        return self._counts.get(chain, 0) >= ATTEMPTS

    def _here(self, chain: int) -> tuple[int, str, int]:
        total = sum(self._store.progress(k).get("n_done", 0) for k in range(self._run.chains))
        return self._store.n_done(self._run, chain), self._store.writer(chain) or "", total


def run_elsewhere(
    workers: LocalProcesses | Elsewhere, store: Store, run: Run, jobs: Sequence[Job]
) -> None:
    """Run chains by an executor, and submit those again whose worker was lost."""
    attempts = _Attempts(store, run)
    pending: dict[concurrent.futures.Future[Outcome], Job] = {}
    trouble: Exception | None = None
    is_stopped = False

    def submit(job: Job) -> None:
        attempts.begin(job.chain)
        pending[workers.submit(job)] = job

    try:
        for job in jobs:
            submit(job)
        while pending:
            done, _ = concurrent.futures.wait(pending, 1.0, concurrent.futures.FIRST_COMPLETED)
            for future in done:
                job = pending.pop(future)
                outcome = _outcome_of(future)
                is_stopped |= outcome.status in ("stopped", "replaced")
                if outcome.status == "lost" and not (is_stopped or trouble):
                    if not attempts.is_hopeless(job.chain):
                        _log.warning(f"Chain {job.chain} lost its worker, and goes on in another.")
                        submit(job)
                        continue
                    outcome = Outcome("failed", _given_up(store, job, outcome.error))
                if outcome.status == "failed" and trouble is None:
                    trouble = outcome.error
                    store.order_stop()  # the others commit
    except BaseException as error:
        store.order_stop()
        for future in pending:
            future.cancel()
        _log.warning("Stopping: chains commit what they have.")
        concurrent.futures.wait(pending, GRACE)
        if not isinstance(error, KeyboardInterrupt):
            raise
        is_stopped = True
    if trouble is not None:
        raise trouble
    if is_stopped:
        _raise_stopped(str(store.path), "stopped")


def _outcome_of(future: "concurrent.futures.Future[Outcome]") -> Outcome:
    """Return the outcome of a task: what an executor raises itself is the loss of a worker."""
    try:
        return future.result()
    except (Exception, concurrent.futures.CancelledError) as error:
        return Outcome("lost", error if isinstance(error, Exception) else RuntimeError(repr(error)))


def _given_up(store: Store, job: Job, error: Exception | None) -> StoreError:
    return StoreError(
        f"Chain {job.chain} lost its worker {ATTEMPTS} times without any progress, and is given "
        f"up. Perhaps it is killed for the memory that it takes, or before it could commit, which "
        f"it does every {job.every:g} s (every=). The last time the executor said: {error!r}. What "
        f"was sampled is in the store {job.path!r}, and the same call goes on. {see('runs')}"
    )


def _raise_stopped(path: str, status: str) -> None:
    reason = "was stopped" if status == "stopped" else "goes on in another process"
    raise RunStopped(
        f"The run in {path!r} {reason}. What was sampled is there: the same call goes on, and "
        f"apm.open_run({path!r}) opens it. {see('runs')}"
    )
