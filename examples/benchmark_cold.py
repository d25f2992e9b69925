"""What a user waits for who has compiled nothing yet: new processes, with empty caches."""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

EXAMPLES = Path(__file__).parent
ROUNDS = 3
MILLION = 1_000_000


def in_new_process(code: str) -> float:
    """Run some code in a new process, without any cache, and return the number that it prints."""
    with tempfile.TemporaryDirectory() as folder:
        flags = os.environ.get("PYTENSOR_FLAGS", "")
        flags = f"{flags},base_compiledir={folder}".strip(",")
        environment = os.environ | {"PYTENSOR_FLAGS": flags, "NUMBA_CACHE_DIR": folder}
        environment.pop("PYMC_APM_COMPILE", None)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env=environment,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1])


# The first draw


UNTIL_FIRST_DRAW = """
import os
import time

START = time.perf_counter()


def stop(trace, draw):
    print(time.perf_counter() - START, flush=True)
    os._exit(0)


"""

ORDINARY = """
import arviz as az
import numpy as np
import pymc as pm

rng = np.random.default_rng(1)
counts = rng.poisson(np.exp(1.0 + 0.5 * rng.standard_normal(30)))
with pm.Model() as model:
    mu, sigma = pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 1)
    pm.Normal("y", mu, sigma, observed=np.log1p(counts))
    SAMPLE
"""


def until_first_draw(code: str) -> float:
    """Return the seconds from the first import to the first draw of a chain."""
    options = "chains=1, cores=1, random_seed=1, progressbar=False, callback=stop"
    return in_new_process(UNTIL_FIRST_DRAW + code.replace("SAMPLE", f"pm.sample({options})"))


def first_contact() -> float:
    """Return how much longer the first draw of the README's model takes than one of NUTS."""
    readme = (EXAMPLES.parent / "README.md").read_text()
    code = re.search(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)[1]
    code, n_found = re.subn(r"pm\.sample\(.*\)", "SAMPLE", code)
    if n_found != 1:
        raise SystemExit("the first code of the README does not call pm.sample once")
    differences = []
    for _ in range(ROUNDS):
        ours, theirs = until_first_draw(code), until_first_draw(ORDINARY)
        print(f"  first draw after {ours:.1f} s, with NUTS after {theirs:.1f} s", flush=True)
        differences.append(ours - theirs)
    return statistics.median(differences)


# A million draws


LONG_RUN = """
import os
import sys

sys.path.insert(0, {folder!r})
import numpy as np
import pymc as pm
import pymc_apm as apm
from toy_gaussian import build_model

with build_model():
    start = sum(os.times()[:4])  # with the processes that compile
    step = apm.APMSlice(width=4.0, factorwise=False, compile={choice!r})
    options = {{"chains": 1, "cores": 1, "tune": 1000, "progressbar": False, "quiet": True}}
    options |= {{"compute_convergence_checks": False, "initvals": {{"theta": np.zeros(5)}}}}
    pm.sample({draws}, step=step, random_seed=1, **options)
    print(sum(os.times()[:4]) - start)
"""


def long_run(choice: str | bool) -> float:
    """Return the CPU seconds of a million draws of the toy, compilation included."""
    return in_new_process(LONG_RUN.format(folder=str(EXAMPLES), choice=choice, draws=MILLION))


def waiting_for_the_right_moment() -> float:
    """Compare a long run that compiles when it pays with one that does so from the start."""
    ratios = []
    for _ in range(ROUNDS):
        auto, always = long_run("auto"), long_run(True)
        print(f'  compile="auto" {auto:.1f} s, compile=True {always:.1f} s', flush=True)
        ratios.append(auto / always)
    return statistics.median(ratios)


BENCHMARKS: list[tuple[str, Callable[[], float], float]] = [
    ("first contact: first draw - first draw of NUTS, no cache, s", first_contact, 3.0),
    (
        "1,000,000 draws, no cache: when it pays / compiled at once",
        waiting_for_the_right_moment,
        1.5,
    ),
]
"""What is measured, how, and what it may be at the most."""
