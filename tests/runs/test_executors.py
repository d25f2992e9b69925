"""Chains that run elsewhere: processes, loky, Dask; workers that die; versions."""

import concurrent.futures
import multiprocessing
import os
import shutil
import signal
import threading
import time

import pytest

import pymc_apm as apm
from pymc_apm.errors import RunStopped, StoreError
from pymc_apm.runs import tasks
from pymc_apm.runs.store import Store
from tests.runs.conftest import Case
from tests.runs.models import differences

pytestmark = pytest.mark.compiler  # workers compile as users do


@pytest.fixture(scope="module")
def case():
    return Case("slice stream")


@pytest.fixture(scope="module")
def client():
    """Two workers of Dask, each a process that is replaced when it dies."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def in_background(function):
    """Call a function in a thread; return that, and a list for what it raises."""
    raised = []

    def call():
        try:
            function()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread, raised


def wait_for(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def n_done(store, chain=0):
    return Store(store).progress(chain).get("n_done", 0)


@pytest.mark.slow
def test_dask_makes_the_draws_of_one_process(case, store, client):
    result = case.sample(store=store, executor=client.get_executor(), chains=3)
    assert not differences(case.sample(chains=3), result)


@pytest.mark.slow
def test_dask_workers_that_die_change_nothing(case, store, client):
    draws, total = 1500, 1530
    shares = [0.1, 0.5, 0.9]
    options = {"store": store, "executor": client.get_executor(), "chains": 2, "every": 0.2}
    thread, raised = in_background(lambda: case.sample(draws, **options))
    for share in shares:
        wait_for(lambda share=share: n_done(store) > share * total)
        busy = client.run(os.getpid)
        working = [pid for pid in busy.values() if holds(store, 0, pid)]
        os.kill(working[0], signal.SIGKILL)
    thread.join(300)
    assert not thread.is_alive()
    assert not raised
    assert not differences(case.sample(draws), case.sample(draws, store=store))


def holds(store, chain, pid):
    """Say whether a process has the lock of a chain open."""
    lock = os.path.realpath(store / ".run" / str(chain) / "lock")
    folder = f"/proc/{pid}/fd"
    return any(os.path.realpath(f"{folder}/{fd}") == lock for fd in os.listdir(folder))


@pytest.mark.slow
def test_a_run_on_dask_stops_in_time_and_goes_on(case, store, client):
    thread, raised = in_background(
        lambda: case.sample(10**6, store=store, executor=client.get_executor())
    )
    wait_for(lambda: min(n_done(store, 0), n_done(store, 1)) > 50)
    began = time.monotonic()
    apm.stop_run(store)
    thread.join(60)
    seconds = time.monotonic() - began
    assert seconds < 2.0
    assert isinstance(raised[0], RunStopped)
    n_draws = apm.open_run(store).posterior.sizes["draw"]
    result = case.sample(n_draws + 5, store=store)
    n_draws = result.posterior.sizes["draw"]
    assert not differences(case.sample(n_draws), case.sample(n_draws, store=store))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_however_they_start(case, store, method):
    result = case.sample(store=store, cores=2, mp_ctx=method)
    assert not differences(case.sample(), result)


@pytest.mark.slow
def test_executors_of_the_standard_library(case, store):
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        result = case.sample(store=store, executor=executor)
    assert not differences(case.sample(), result)


def test_threads_take_turns(case, store):
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        result = case.sample(store=store, executor=executor)
    assert not differences(case.sample(), result)


@pytest.mark.slow
def test_loky(case, store):
    loky = pytest.importorskip("loky")
    executor = loky.get_reusable_executor(max_workers=2)
    try:
        assert not differences(case.sample(), case.sample(store=store, executor=executor))
    finally:
        executor.shutdown(kill_workers=True)


@pytest.mark.slow
def test_processes_of_our_own_that_die_are_replaced(case, store):
    options = {"store": store, "cores": 2, "every": 0.05, "chains": 3}
    thread, raised = in_background(lambda: case.sample(1000, **options))
    for n in (100, 600):
        wait_for(lambda n=n: n_done(store) > n)
        victims = [p for p in multiprocessing.active_children() if holds(store, 0, p.pid)]
        os.kill(victims[0].pid, signal.SIGKILL)
    thread.join(120)
    assert not thread.is_alive()
    assert not raised
    assert not differences(case.sample(1000, chains=3), case.sample(1000, store=store, chains=3))


class Deadly(concurrent.futures.Executor):
    """Loses each task."""

    def __init__(self):
        self.n_submitted = 0

    def submit(self, function, payload, job):
        self.n_submitted += 1
        future = concurrent.futures.Future()
        future.set_exception(RuntimeError("the machine is gone"))
        return future


def test_a_chain_without_progress_is_given_up(case, store):
    executor = Deadly()
    with pytest.raises(StoreError, match=r"lost its worker 3 times .*the machine is gone"):
        case.sample(store=store, executor=executor, chains=1)
    assert executor.n_submitted == 3
    assert not differences(case.sample(chains=1), case.sample(store=store, chains=1))


class Elsewhere(concurrent.futures.Executor):
    """Runs each task in a copy of the store."""

    def __init__(self, store, other):
        self.store, self.other = store, other

    def submit(self, function, payload, job):
        shutil.copytree(self.store, self.other, dirs_exist_ok=True)
        future = concurrent.futures.Future()
        future.set_result(function(payload, job._replace(path=str(self.other))))
        return future


@pytest.mark.slow
def test_draws_that_are_somewhere_else_are_missed(case, store, tmp_path):
    case.cut(40, store)
    with pytest.raises(StoreError, match=r"lacks draws of chains that ended: 0, 1\..*same folder"):
        case.sample(store=store, executor=Elsewhere(store, tmp_path / "other"))
    assert not differences(case.sample(), case.sample(store=store))


class Forgetful(concurrent.futures.Executor):
    """Runs each task, but loses it when the chain has made some more draws."""

    def __init__(self, case, store):
        self.case, self.store, self.n_submitted = case, store, 0

    def submit(self, function, payload, job):
        self.n_submitted += 1
        future = concurrent.futures.Future()
        Store(self.store).stop_file.unlink(missing_ok=True)
        setup = tasks.cloudpickle.loads(payload.setup)
        number = 5 * self.n_submitted

        def lose(trace, draw):
            if draw.draw_idx + 1 == number:
                raise KeyboardInterrupt

        outcome = tasks.run_chain(setup._replace(callback=lose), job)
        if outcome == "done":
            future.set_result(tasks.Outcome("done"))
        else:
            future.set_exception(RuntimeError("gone"))
        return future


@pytest.mark.slow
def test_a_chain_that_makes_progress_is_never_given_up(case, store):
    executor = Forgetful(case, store)
    result = case.sample(store=store, executor=executor, chains=1, every=0.0)
    assert executor.n_submitted == 10
    assert not differences(case.sample(chains=1), result)


def test_an_executor_that_is_broken_is_told(case, store):
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        future = executor.submit(os._exit, 1)
        with pytest.raises(concurrent.futures.BrokenExecutor):
            future.result()
        with pytest.raises(StoreError, match=r"takes no more tasks.*the same call"):
            case.sample(store=store, executor=executor)


def test_other_versions_on_a_worker_are_told(case, store, monkeypatch):
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        here = tasks.versions()
        found = iter([here, here | {"numpy": "0.1"}])
        monkeypatch.setattr(tasks, "versions", lambda: next(found, here | {"numpy": "0.1"}))
        with pytest.raises(StoreError, match=f"other versions.*numpy {here['numpy']} and 0.1"):
            case.sample(store=store, executor=executor)


def test_an_error_on_a_worker_arrives_and_stops_the_others(store):
    case = Case("slice stream")
    case.cut(31, store, draws=10**6)
    checkpoint = store / ".run" / "0" / "checkpoint"
    thread, raised = in_background(
        lambda: case.sample(10**6, store=store, cores=2, callback=Trouble(store))
    )
    thread.join(120)
    assert not thread.is_alive()
    assert isinstance(raised[0], ValueError)
    assert "in trouble" in str(raised[0])
    assert checkpoint.exists()


class Trouble:
    """Raises an error in chain 1 when chain 0 is under way."""

    def __init__(self, store):
        self.store = store

    def __call__(self, trace, draw):
        if draw.chain == 1 and n_done(self.store) > 40:
            raise ValueError("in trouble")
