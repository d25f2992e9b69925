"""Kill runs at random moments and compare what becomes of them with runs that were left alone.

python -m tests.runs.kills --kills 50 [--kinds "slice,seed"]
"""

import argparse
import os
import signal
import tempfile
import time
from typing import Any

import numpy as np

import pymc_apm as apm
from pymc_apm.runs.store import Store
from tests.runs.models import KINDS, differences

TUNE, CHAINS, EVERY = 100, 2, 0.1


def fork(call: Any) -> int:
    """Call a function in a child process, which ends with it."""
    child = os.fork()
    if child == 0:
        try:
            call()
            os._exit(0)
        except BaseException as error:
            print(f"child: {error!r}", flush=True)
            os._exit(1)
    return child


def killed(call: Any, seconds: float) -> bool:
    """Call a function in a child process, and kill it after a while; say whether it was alive."""
    child = fork(call)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0
            return False
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def check(name: str, n_kills: int, draws: int = 400, cores: int = 1, seed: int = 1) -> str:
    """Kill runs of some kind as often as is wanted; return what was found, in words."""
    model = KINDS[name].model()
    with model:
        step = KINDS[name].step(model)
    rng = np.random.default_rng(seed)

    def sample(path: str, every: float = EVERY) -> Any:
        with model:
            return apm.sample(
                draws,
                tune=TUNE,
                chains=CHAINS,
                cores=cores,
                random_seed=7,
                step=step,
                store=path,
                every=every,
                quiet=True,
            )

    n_done = n_runs = n_amid = 0
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        expected = sample(f"{folder}/undisturbed", every=60.0).load()
        seconds = time.monotonic() - began
        while n_done < n_kills:
            n_runs += 1
            path = f"{folder}/run-{n_runs}"
            while n_done < n_kills and killed(
                lambda path=path: sample(path), 0.05 + rng.random() * min(seconds, 1.0)
            ):
                n_done += 1
                n_amid += is_amid(path)
            found = differences(expected, sample(path, every=60.0))
            assert not found, (name, found)
    told = f"{n_done} kills ({n_amid} of them between two commits) in {n_runs} runs"
    return f"{name}: {told}, same draws and statistics"


def is_amid(path: str) -> bool:
    """Say whether a store has a checkpoint, and is not at its end."""
    store = Store(path)
    if not store.exists:
        return False
    run = store.read_run()
    n_draws = [store.n_done(run, chain) for chain in range(run.chains)]
    return 0 < sum(n_draws) < run.chains * (run.tune + run.draws)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--cores", type=int, default=1)
    arguments = parser.parse_args()
    for kind in arguments.kinds.split(","):
        start = time.monotonic()
        told = check(kind, arguments.kills, arguments.draws, arguments.cores)
        print(f"{told} ({time.monotonic() - start:.0f} s)", flush=True)
