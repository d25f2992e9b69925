"""Looking at a run while it goes on, and stopping it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import xarray

import pymc_apm as apm
from pymc_apm.errors import RunStopped, StoreError
from pymc_apm.runs.progress import shown, told
from pymc_apm.runs.reading import rectangle
from pymc_apm.runs.store import Store
from tests.runs.models import differences


def test_the_package_imports_neither_zarr_nor_dask():
    """PyMC 5 imports Zarr itself where it is installed."""
    code = """
import sys, pymc
before = set(sys.modules)
import pymc_apm
print([name for name in sys.modules if name in ("zarr", "dask", "distributed")
       and name not in before])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.in_python
def test_the_package_can_be_imported_without_them():
    code = "import sys; sys.modules.update(zarr=None, dask=None); import pymc_apm"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_xarray_opens_a_store_as_any_result(case, copied, recwarn):
    tree = xarray.open_datatree(copied, engine="zarr")
    assert set(tree.children) >= {"posterior", "sample_stats"}
    assert np.array_equal(tree["posterior"]["mu"].values, case.sample().posterior["mu"].values)
    assert not [warning for warning in recwarn if "hierarchy" in str(warning.message)]


def test_nothing_is_loaded_before_it_is_used(copied):
    result = apm.open_run(copied)
    assert not result.posterior["mu"].variable._in_memory


def test_a_flipped_bit_is_found_where_it_is_used_at_the_latest(copied):
    path = copied / "posterior/mu/c/0/0"
    data = bytearray(path.read_bytes())
    data[8] ^= 1
    path.write_bytes(bytes(data))
    result = apm.open_run(copied, verify=False)
    with pytest.raises(Exception, match=r"(?i)checksum"):
        result.posterior["mu"].load()


def test_a_chunk_that_is_missing_is_found_without_reading(copied):
    """It would be read as zeros."""
    (copied / "sample_stats/n_evals/c/1/0").unlink()
    with pytest.raises(StoreError, match=r"n_evals.* is not there"):
        apm.open_run(copied, verify=False)


def test_a_run_that_goes_on_can_be_looked_at(case, store):
    seen = []

    def look(trace, draw):
        if draw.chain == 1 and draw.draw_idx in (40, 45):
            seen.append(apm.open_run(store))
            apm.sticking(seen[-1])

    expected = case.sample()
    case.sample(store=store, callback=look, every=0.0)
    for result in seen:
        for name in ("mu", "both"):
            found = result.posterior[name]
            wanted = expected.posterior[name].sel(chain=found.chain, draw=found.draw)
            assert np.array_equal(found.values, wanted.values)
    assert [result.posterior.sizes["draw"] for result in seen] == [11, 16]
    assert [result.posterior.sizes["chain"] for result in seen] == [2, 2]


def test_a_run_that_is_still_tuning_has_no_draws(case, store):
    case.cut(10, store)
    assert apm.open_run(store).posterior.sizes["draw"] == 0


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([5, 5], ([0, 1], 5)),
        ([5, 0], ([0], 5)),
        ([100, 10, 90], ([0, 2], 90)),
        ([0, 0], ([0, 1], 0)),
    ],
)
def test_the_most_draws_are_shown(lengths, expected):
    assert rectangle(np.array(lengths)) == expected


@pytest.mark.slow
@pytest.mark.in_python
def test_a_run_is_stopped_within_two_seconds(case, store):
    timer = threading.Thread(target=stop_when_under_way, args=(store,))
    timer.start()
    with pytest.raises(RunStopped, match=store.name):
        case.sample(10**6, store=store)
    assert time.monotonic() - stopped[0] < 2.0
    timer.join()
    n_done = Store(store).n_done(Store(store).read_run(), 0)
    assert n_done > 30
    result = case.sample(n_done, store=store)
    assert not differences(case.sample(n_done), result)


stopped = []


def stop_when_under_way(store):
    while Store(store).progress(0).get("n_done", 0) < 40:
        time.sleep(0.02)
    stopped[:] = [time.monotonic()]
    apm.stop_run(store)


def test_ctrl_c_keeps_what_was_sampled(case, store):
    def interrupt(trace, draw):
        if draw.draw_idx == 38:
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(RunStopped):
        case.sample(10**6, store=store, callback=interrupt)
    assert signal.getsignal(signal.SIGINT) is handler
    n_done = Store(store).n_done(Store(store).read_run(), 0)
    assert n_done >= 39  # a commit, although none was due
    assert not differences(case.sample(), case.sample(store=store))


@pytest.mark.slow
@pytest.mark.in_python
def test_ctrl_c_twice_stops_at_once(case, store):
    def interrupt(trace, draw):
        if draw.draw_idx == 38:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(RunStopped):
        case.sample(10**6, store=store, callback=interrupt)
    assert not differences(case.sample(), case.sample(store=store))


def test_progress_is_told(case, store, capsys):
    options = {"tune": 30, "chains": 2, "cores": 1, "store": store, "step": case.step}
    with case.model:
        apm.sample(20, compute_convergence_checks=False, **options)
    shown_text = capsys.readouterr().out
    assert "Chain 0" in shown_text
    assert "100/100" in shown_text or "50/50" in shown_text
    assert "evals" in shown_text
    progress = Store(store).progress(1)
    assert progress["n_done"] == 50
    assert progress["status"] == "done"
    assert 0 < progress["accepted"] <= 1


def test_progress_of_many_chains_is_told_together(case, store, capsys):
    case.sample(2, tune=2, chains=20, store=store)
    with shown(Store(store), Store(store).read_run(), True):
        pass
    assert "20 chains" in capsys.readouterr().out


def test_a_chain_that_does_not_move_is_named():
    assert told([{"accepted": 0.0}, {"accepted": 0.5}]) == "θ moves 25%, 1 do not move"


def test_progress_that_cannot_be_read_is_none(copied):
    path = copied / ".run" / "0" / "progress.json"
    for content in (b"", b"[1]", b"\xff"):
        path.write_bytes(content)
        assert Store(copied).progress(0) == {}
    path.write_text(json.dumps({"n_done": 3}))
    assert Store(copied).progress(0) == {"n_done": 3}
