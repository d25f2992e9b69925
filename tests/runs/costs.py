"""What a store costs: CPU time, and memory while more is written than there would be room for.

python -m tests.runs.costs cpu
python -m tests.runs.costs slow
python -m tests.runs.costs memory
"""

import argparse
import resource
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

import pymc_apm as apm


def cpu_seconds(call: Any) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def compare(model: pm.Model, step: Any, draws: int, repetitions: int) -> tuple[float, float, float]:
    """Return the CPU seconds of a chain of ``pm.sample`` and of ``apm.sample``, the least of some.

    The third number is what a store with a tenth of the draws costs: little of it is for the draws.
    """
    options = {"tune": 500, "chains": 1, "cores": 1, "random_seed": 1, "quiet": True, "step": step}
    options["compute_convergence_checks"] = False
    plain, stored, fixed = [], [], []
    with model:
        pm.sample(10, **options)  # what is compiled once
        for _ in range(repetitions):
            plain.append(cpu_seconds(lambda: pm.sample(draws, **options)))
            with tempfile.TemporaryDirectory() as folder:
                store = f"{folder}/run.zarr"
                stored.append(cpu_seconds(lambda s=store: apm.sample(draws, store=s, **options)))
                store = f"{folder}/short.zarr"
                short = cpu_seconds(lambda: pm.sample(draws // 10, **options))
                fixed.append(
                    cpu_seconds(lambda s=store: apm.sample(draws // 10, store=s, **options)) - short
                )
    return min(plain), min(stored), min(fixed)


def of_quick_draws(draws: int = 400_000, repetitions: int = 3) -> tuple[float, float, float]:
    """Compare for compiled draws, which take some 16 microseconds each."""
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=2)
        u = apm.StandardNormal("u", shape=2)
        apm.Potential("log_lik", -(theta**2).sum() - (u * theta).sum())
        step = apm.APMSlice(compile=True)
    return compare(model, step, draws, repetitions)


def of_slow_draws(draws: int = 12_000, repetitions: int = 2) -> tuple[float, float, float]:
    """Compare for draws that take about a millisecond each."""
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=2)

        def log_estimate(theta: Any, rng: Any) -> float:
            noise = rng.standard_normal(20)
            for _ in range(300):
                noise = np.tanh(noise + 0.1 * theta[0])
            return float(noise.sum() * 0.1 - theta[1] ** 2)

        apm.Potential("log_lik", apm.black_box(log_estimate)(theta, apm.Stream("u")))
        step = apm.APMSlice()
    return compare(model, step, draws, repetitions)


def growth_of_memory(megabytes: int = 2000) -> tuple[float, float]:
    """Return by how many MB the memory grows, and how many are written meanwhile."""
    size = 2**17
    draws = megabytes * 10**6 // (8 * size)
    with pm.Model():
        theta = pm.Normal("theta")
        apm.Potential("log_lik", -((theta + apm.StandardNormal("u", shape=())) ** 2))
        pm.Deterministic("large", theta * np.ones(size))
        options = {"tune": 20, "chains": 1, "cores": 1, "quiet": True}
        with tempfile.TemporaryDirectory(dir=".") as folder:
            store = Path(folder) / "run.zarr"
            apm.sample(40, store=store, compute_convergence_checks=False, **options)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            apm.sample(draws, store=store, compute_convergence_checks=False, **options)
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            written = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
            shutil.rmtree(store)
    return (after - before) / 1000, written / 10**6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["cpu", "slow", "memory"])
    what = parser.parse_args().what
    if what == "memory":
        grown, total = growth_of_memory()
        print(f"memory grew by {grown:.0f} MB while {total:.0f} MB were written")
    else:
        n_draws, measure = {"cpu": (400_000, of_quick_draws), "slow": (12_000, of_slow_draws)}[what]
        plain, stored, fixed = measure(n_draws)
        each = 1e6 * plain / n_draws
        print(f"{each:.1f} us a draw; CPU: {plain:.2f} s, with a store {stored:.2f} s ", end="")
        print(f"({stored / plain - 1:+.1%}, of which {fixed:.2f} s or {fixed / plain:.1%} once)")
