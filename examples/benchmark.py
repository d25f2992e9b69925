"""Time the samplers against PyMC's own and against what they cannot do without.

Every figure is a ratio of CPU times that were measured in turns within one run, because absolute
times say more about the machine than about the code. The bound beside each is what the project
promises; the script exits with an error if one is broken.
"""

import argparse
import functools
import math
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import benchmark_cold
import benchmark_compiled
import numba
import numpy as np
import pymc as pm
import pytensor
import xarray
from common import save
from gp_classification import build_model as build_classifier
from gp_classification import load, squared_distances
from scipy.linalg.blas import dsymv, dtrmv, dtrsv
from scipy.linalg.lapack import dpotrf
from threadpoolctl import threadpool_limits
from toy_gaussian import build_model

import pymc_apm as apm
from pymc_apm.black_box import nodes_between
from pymc_apm.density.target import THETA
from pymc_apm.estimators.laplace.dense import CHORD_STEPS
from pymc_apm.estimators.laplace.ops import LaplaceFit
from pymc_apm.kernels.reflective import reflected_line
from pymc_apm.kernels.stream import HEADER, Reader, make_scratch, stream_reflected_line
from pymc_apm.stream_generator import StreamGenerator

ROUNDS = 7
N_U = 3  # evaluations of an update of u; the first one finds nothing in the processor's cache
MILLION = 1_000_000


def start_chain(step: Any, seed: int) -> None:
    """Start a chain after tuning, on either line of PyMC."""
    rng = np.random.default_rng(seed)
    if hasattr(step, "set_rng"):
        step.set_rng(rng)
    else:
        step.setup_chain(rng, 0, 1)
    step.stop_tuning()


class Chain:
    """A step and the point at which its chain is."""

    def __init__(self, step: Any, point: dict[str, np.ndarray]) -> None:
        self.step = step
        self.point = point
        self.stats: dict[str, float] = {}
        start_chain(step, seed=1)

    def run(self, n_draws: int) -> None:
        """Make some draws, and add up their statistics."""
        for _ in range(n_draws):
            self.point, (stats,) = self.step.step(self.point)
            for name in ("n_evals", "n_theta_evals"):
                self.stats[name] = self.stats.get(name, 0) + stats.get(name, 0)


def cpu_time(work: Callable[[], Any]) -> float:
    """Return the CPU time that some work takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def ratio(ours: Callable[[], Any], theirs: Callable[[], Any]) -> float:
    """Return the median, over rounds in which both are timed, of the ratio of CPU times."""
    ours()
    theirs()
    return statistics.median(cpu_time(ours) / cpu_time(theirs) for _ in range(ROUNDS))


def toy(step: Callable[[], Any]) -> Chain:
    """Start a chain on the toy Gaussian."""
    with build_model():
        return Chain(step(), {"theta": np.zeros(5)})


def normal(step: Callable[[], Any]) -> Chain:
    """Start a chain of PyMC's own on a five-dimensional normal distribution."""
    with pm.Model():
        pm.Normal("theta", shape=5)
        return Chain(step(), {"theta": np.zeros(5)})


def slice_against_pymc() -> float:
    """Compare a draw of APM SS+SS on the toy with one of ``pm.Slice``."""
    ours, theirs = (
        toy(lambda: apm.APMSlice(width=4.0, factorwise=False, compile=False)),
        normal(pm.Slice),
    )
    return ratio(lambda: ours.run(2000), lambda: theirs.run(1000)) / 2


def metropolis_against_pymc() -> float:
    """Compare a draw of APM MI+MH on the toy with one of ``pm.Metropolis``."""
    ours = toy(
        lambda: apm.APMMetropolis(
            u_update="independence", scaling=0.85, factorwise=False, compile=False
        )
    )
    theirs = normal(pm.Metropolis)
    return ratio(lambda: ours.run(2000), lambda: theirs.run(2000))


def overhead_of_costly_estimator() -> float:
    """Compare a run of APM SS+SS on the toy with the time in an estimator that costs 1 ms."""
    spent = 0.0

    @apm.black_box
    def log_estimate(theta: Any, u: Any) -> float:
        nonlocal spent
        start = time.process_time()
        end = time.perf_counter() + 1e-3
        while time.perf_counter() < end:
            pass
        result = -float(np.dot(theta, theta) + np.dot(u, theta))
        spent += time.process_time() - start
        return result

    with pm.Model():
        theta = pm.Flat("theta", shape=5)
        u = apm.StandardNormal("u", shape=5)
        apm.Potential("log_lik", log_estimate(theta, u))
        step = apm.APMSlice()
        options = {"chains": 1, "cores": 1, "progressbar": False, "quiet": True}
        ratios = []
        for _ in range(3):
            spent = 0.0
            whole = cpu_time(
                lambda: pm.sample(step=step, initvals={"theta": np.zeros(5)}, **options)
            )
            ratios.append(whole / spent)
    # What disturbs the machine between two evaluations is added to the one side alone.
    return min(ratios)


def big_u_chain() -> Chain:
    """Start a chain whose estimator uses a million normal numbers."""
    with pm.Model():
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=MILLION)
        apm.Potential("log_lik", -0.5 * (theta + u.sum() / math.sqrt(MILLION)) ** 2)
        return Chain(apm.APMEllipticalU(), {"theta": np.zeros(())})


def big_u_update() -> float:
    """Compare an update of a million normal numbers with drawing and rotating them in numpy."""
    chain = big_u_chain()
    rng = np.random.default_rng(2)
    u = rng.standard_normal(MILLION)

    def draw_and_rotate() -> None:
        direction = rng.standard_normal(MILLION)
        _ = math.cos(0.5) * u + math.sin(0.5) * direction

    return ratio(lambda: chain.run(10), lambda: [draw_and_rotate() for _ in range(10)])


def big_u_memory() -> float:
    """Return the growth of resident memory, in MB, over 2000 draws with a million numbers."""
    chain = big_u_chain()
    chain.run(20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chain.run(2000)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def evaluate_estimate(step: Any) -> Callable[[], Any]:
    """Return a function that evaluates the estimate anew at the u of a chain."""
    name = next(iter(step.u))
    density = step.target.along(name)
    evaluation = step.target.settle(step.evaluation, name, step.rng)
    u = step.target.value(evaluation, name)
    return lambda: density(u, evaluation)


def black_box_chain(fn: Callable[..., float], kind: str) -> Chain:
    """Start a chain whose estimator is a function that draws from a stream."""
    with pm.Model():
        theta = pm.Normal("theta")
        apm.Potential("log_lik", apm.black_box(fn)(theta, apm.Stream("u", kind=kind)))
        chain = Chain(apm.APMSlice(), {"theta": np.zeros(())})
    chain.run(10)
    return chain


def black_box_overhead() -> float:
    """Return how much longer, in microseconds, a function of 10 numbers takes as a black box."""

    def estimate(theta: float, rng: Any) -> float:
        return -0.5 * theta**2 + 0.1 * float(rng.standard_normal(10).sum())

    evaluate = evaluate_estimate(black_box_chain(estimate, "normal").step)
    rng = np.random.default_rng(3)

    def calls(work: Callable[[], Any]) -> float:
        return cpu_time(lambda: [work() for _ in range(2000)]) / 2000

    differences = [
        calls(evaluate) - calls(lambda: estimate(np.float64(0.1), rng)) for _ in range(ROUNDS)
    ]
    return 1e6 * statistics.median(differences)


def long_stream() -> float:
    """Compare an evaluation with 10,000 numbers of a stream with drawing and moving as many."""

    def estimate(theta: float, rng: Any) -> float:
        return -0.5 * theta**2 + 0.001 * float(rng.random(10_000)[-1])

    step = black_box_chain(estimate, "uniform").step
    density = step.target.along("u")
    evaluation = step.target.settle(step.evaluation, "u", step.rng)
    stream = step.target.value(evaluation, "u")
    rng = np.random.default_rng(4)
    direction = np.concatenate(([1.0], rng.standard_normal(10_000)))

    def move_and_evaluate() -> None:
        density(stream_reflected_line(stream, direction, 0.1), evaluation)

    def draw_and_move() -> None:
        reflected_line(rng.random(10_000), direction[1:], 0.1)

    return ratio(
        lambda: [move_and_evaluate() for _ in range(500)],
        lambda: [draw_and_move() for _ in range(500)],
    )


# Exact samples of the Ising model


@numba.njit
def bare_coupling(neighbours: Any, coupling: float, field: float, u: Any) -> Any:
    """Run two chains from the past: what such a loop looks like if it does nothing else."""
    n_sites = len(neighbours)
    table = 1.0 / (1.0 + np.exp(-2.0 * (coupling * np.arange(-4, 5) + field)))
    start = 1
    while True:
        upper, lower = np.ones(n_sites, np.int8), -np.ones(n_sites, np.int8)
        for t in range(start - 1, -1, -1):
            for site in range(n_sites):
                sum_upper = sum_lower = 4
                for j in range(4):
                    sum_upper += upper[neighbours[site, j]]
                    sum_lower += lower[neighbours[site, j]]
                upper[site] = 1 if u[t, site] < table[sum_upper] else -1
                lower[site] = 1 if u[t, site] < table[sum_lower] else -1
        if np.all(upper == lower):
            return upper
        start *= 2


@numba.njit
def bare_summary_states(neighbours: Any, coupling: float, field: float, u: Any) -> Any:
    """Run summary states from the past, with the probabilities in a table."""
    n_sites = len(neighbours)
    table = 1.0 / (1.0 + np.exp(-2.0 * (coupling * np.arange(-4, 5) + field)))
    start = 1
    while True:
        states = np.zeros(n_sites, np.int8)
        for t in range(start - 1, -1, -1):
            for site in range(n_sites):
                known = unknown = 0
                for j in range(4):
                    state = states[neighbours[site, j]]
                    known += state
                    unknown += state == 0
                if u[t, site] < table[known - unknown + 4]:
                    states[site] = 1
                elif u[t, site] >= table[known + unknown + 4]:
                    states[site] = -1
                else:
                    states[site] = 0
        if np.all(states != 0):
            return states
        start *= 2


def exact_samples(method: str, bare: Callable[..., Any], coupling: float) -> float:
    """Compare exact samples from a stream with a bare loop over the same numbers."""
    n_samples = 50
    ising = apm.estimators.Ising.torus(10, 30, method=method)
    rng = np.random.default_rng(5)
    numbers = [rng.random((4096, ising.n_sites)) for _ in range(n_samples)]
    streams = [np.concatenate((np.zeros(HEADER), u.ravel())) for u in numbers]
    scratch = make_scratch()
    neighbours = ising._table_of_neighbours

    def ours() -> list[Any]:
        return [
            ising.sample(coupling, 0.0, StreamGenerator(Reader(stream, False, scratch), "u"))
            for stream in streams
        ]

    def theirs() -> list[Any]:
        return [bare(neighbours, coupling, 0.0, u) for u in numbers]

    if not all(np.array_equal(a, b) for a, b in zip(ours(), theirs(), strict=True)):
        raise SystemExit("the exact sampler and the bare loop disagree")
    return ratio(ours, theirs)


def ising_run() -> float:
    """Compare a run of APM SS+SS on the Ising model with the time in the exact sampler."""
    spent = 0.0

    class TimedIsing(apm.estimators.Ising):
        def sample(self, coupling: Any, field: Any, rng: Any) -> Any:
            nonlocal spent
            start = time.process_time()
            result = super().sample(coupling, field, rng)
            spent += time.process_time() - start
            return result

    ising = TimedIsing.torus(10, 30)
    y = ising.sample(0.3, 0.0, np.random.default_rng(20160509))
    with pm.Model():
        coupling = pm.Uniform("coupling", 0.0, 0.4, default_transform=None)
        field = pm.Uniform("field", -1.0, 1.0, default_transform=None)
        apm.estimators.doubly_intractable(
            "y", ising, [coupling, field], y, reference={"coupling": 0.3, "field": 0.0}
        )
        step = apm.APMSlice(width=0.1, directions="coordinate")
        options = {"draws": 2000, "tune": 0, "chains": 1, "cores": 1, "random_seed": 1}
        ratios = []
        for _ in range(3):
            spent = 0.0
            whole = cpu_time(lambda: pm.sample(step=step, progressbar=False, quiet=True, **options))
            ratios.append(whole / spent)
    return min(ratios)


# Latent Gaussian models


def moves(name: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return evaluations of the model at hand at a new theta and at a new u."""
    step = apm.APMMetropolis(compile=False)
    chain = Chain(step, pm.modelcontext(None).initial_point())
    chain.run(10)
    target, evaluation = step.target, step.evaluation
    theta, u = target.value(evaluation, THETA), target.value(evaluation, name)
    along_theta, along_u = target.along(THETA), target.along(name)
    rng = np.random.default_rng(7)
    return (
        lambda: along_theta(theta + 0.01 * rng.standard_normal(theta.shape), evaluation),
        lambda: along_u(u, evaluation),
    )


@functools.cache
def classification() -> dict[str, float]:
    """Time the GP classifier of Pima: a new theta, a new u, the fit alone, and bare LAPACK."""
    inputs, labels = load("pima")
    size = len(labels)
    with build_classifier(inputs, labels) as model:
        new_theta, new_u = moves("y_u")
    fit_op = next(
        node.op for node in nodes_between(model.potentials) if isinstance(node.op, LaplaceFit)
    )
    distances = squared_distances(inputs, inputs)
    cov = 2.5 * np.exp(distances * (-0.5 / 4.5**2))
    zeros = np.zeros(size)
    matrix = np.asfortranarray(cov + np.eye(size))
    first, second = matrix.copy(order="F"), matrix.copy(order="F")

    def bare() -> None:
        # What a fit and a draw cannot do without: two Cholesky factorisations, and products and
        # solves with what these leave. As both overwrite their input, it has to be copied.
        np.copyto(first, matrix)
        np.copyto(second, matrix)
        dpotrf(first, lower=1, clean=0, overwrite_a=1)
        dpotrf(second, lower=1, clean=0, overwrite_a=1)
        for _ in range(CHORD_STEPS):
            dsymv(1.0, cov.T, labels, lower=1)
            dsymv(1.0, cov.T, dtrsv(first, dtrsv(first, labels, lower=1), lower=1), lower=1)
        dtrsv(second, dtrsv(second, dtrmv(first, labels, lower=1), lower=1), lower=1)
        dsymv(1.0, cov.T, labels, lower=1)

    works = {
        "theta": new_theta,
        "u": lambda: [new_u() for _ in range(N_U)],
        "fit": lambda: fit_op.fit(cov, zeros, []),
        "bare": bare,
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    with threadpool_limits(1):
        for _ in range(10 * ROUNDS):
            for name, work in works.items():
                times[name].append(cpu_time(work))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return medians | {"u": medians["u"] / N_U}


def grouped() -> float:
    """Return the milliseconds of an evaluation at a new theta, for 2000 groups of 5 counts."""
    group = np.repeat(np.arange(2000), 5)
    rng = np.random.default_rng(8)
    counts = rng.poisson(np.exp(0.3 + 0.7 * rng.standard_normal(2000))[group])
    with pm.Model():
        level, sd = pm.Normal("level"), pm.HalfNormal("sd")
        apm.estimators.laplace_importance(
            "y",
            lambda f: pm.logp(pm.Poisson.dist(pm.math.exp(level + f[group])), counts),
            sd**2,
            groups=group,
            samples=8,
        )
        new_theta, _ = moves("y_u")
    return 1e3 * statistics.median(cpu_time(new_theta) for _ in range(10 * ROUNDS))


def large_run() -> Any:
    """Make up a run of 4 chains of 100,000 draws of 5 parameters, of which a third are moves."""
    rng = np.random.default_rng(6)
    moved = rng.random((4, 100_000)) < 1 / 3
    last_move = np.maximum.accumulate(np.where(moved, np.arange(100_000), 0), axis=1)
    fresh = rng.standard_normal((4, 100_000, 5))
    dims = ("chain", "draw")
    statistics = {"n_evals": (dims, np.full((4, 100_000), 2)), "u_accepted": (dims, 1.0 * moved)}
    return xarray.DataTree.from_dict(
        {
            "posterior": xarray.Dataset(
                {"theta": ((*dims, "dim"), np.take_along_axis(fresh, last_move[..., None], axis=1))}
            ),
            "sample_stats": xarray.Dataset(statistics),
        }
    )


def seconds_for_large_run(work: Callable[[Any], Any]) -> float:
    """Return how long a diagnostic takes for a large run, in seconds."""
    idata = large_run()
    return cpu_time(lambda: work(idata))


BENCHMARKS: list[tuple[str, Callable[[], float], float]] = [
    *benchmark_compiled.BENCHMARKS,
    *benchmark_cold.BENCHMARKS,
    ("APMSlice in Python on the toy / pm.Slice on a 5-D normal", slice_against_pymc, 0.5),
    ("APMMetropolis with MI / pm.Metropolis, per draw", metropolis_against_pymc, 1.0),
    ("whole run / estimator that costs 1 ms", overhead_of_costly_estimator, 1.1),
    ("black box with 10 random numbers - the function alone, us", black_box_overhead, 25.0),
    ("moving and using 10,000 of a stream / drawing and moving them", long_stream, 3.0),
    (
        "exact sample at J = .3 / a bare loop, summary states",
        lambda: exact_samples("summary_states", bare_summary_states, 0.3),
        2.0,
    ),
    (
        "exact sample at J = .3 / a bare loop, coupling from the past",
        lambda: exact_samples("monotone", bare_coupling, 0.3),
        2.0,
    ),
    (
        "exact sample at J = .4 / a bare loop, summary states",
        lambda: exact_samples("summary_states", bare_summary_states, 0.4),
        2.0,
    ),
    ("whole run of SS+SS on the Ising model / exact sampler", ising_run, 1.25),
    (
        "GP classifier, n = 768: fit / LAPACK and BLAS calls it needs",
        lambda: classification()["fit"] / classification()["bare"],
        1.3,
    ),
    (
        "  the same with covariance, draw and weight, a new theta",
        lambda: classification()["theta"] / classification()["bare"],
        1.45,
    ),
    (
        "  a new u / a new theta",
        lambda: classification()["u"] / classification()["theta"],
        0.05,
    ),
    ("2000 groups of 5, 8 importance draws: a new theta, ms", grouped, 5.0),
    ("apm.compare, 4 x 100,000 draws, s", lambda: seconds_for_large_run(apm.compare), 5.0),
    ("apm.sticking, 4 x 100,000 draws, s", lambda: seconds_for_large_run(apm.sticking), 5.0),
    ("update of a million normals / drawing and rotating them", big_u_update, 3.0),
    ("growth of memory in 2000 draws of a million normals, MB", big_u_memory, 200.0),
]


def main() -> None:
    """Run the benchmarks."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", default="", help="run those whose name contains this text")
    options.add_argument(
        "--save", type=Path, help="write what is found to this file of JSON, beside what is there"
    )
    options.set_defaults(seed=1)
    arguments = options.parse_args()
    wanted = arguments.only
    if not any(wanted in name for name, _, _ in BENCHMARKS):
        options.error(f"no name contains {wanted!r}: {[name for name, _, _ in BENCHMARKS]}")
    print(f"PyMC {pm.__version__}, PyTensor {pytensor.__version__}")
    broken = False
    for name, measure, bound in BENCHMARKS:
        if wanted in name:
            value = measure()
            broken |= value > bound
            verdict = "OK" if value <= bound else "BROKEN"
            print(f"{name:62s} {value:8.3f}  (at most {bound:g})  {verdict}", flush=True)
            made = {"name": name, "pymc": pm.__version__}
            save(
                arguments,
                [made | {"value": value, "bound": bound}],
                add=True,
                instead_of=lambda record, of=made: of.items() <= record.items(),
            )
    sys.exit(broken)


if __name__ == "__main__":
    main()
