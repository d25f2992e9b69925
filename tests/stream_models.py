"""Estimators that draw as they go, in a module that a child process can import."""

from typing import Any

import numpy as np
import pymc as pm
from scipy.special import ndtr, ndtri

import pymc_apm as apm
from pymc_apm.kernels.stream import Reader, fresh_stream, make_scratch, settled
from pymc_apm.stream_generator import StreamGenerator

MEAN, SD = 1.0, 0.5
"""The posterior of each parameter of :func:`lazy_model` is N(MEAN, SD^2)."""


def lazy_log_estimate(theta: Any, rng: Any) -> float:
    """Estimate the density of N(MEAN, SD^2) with K = ceil(10 * uniform) normal numbers.

    In the joint target K is uniform on 1, ..., 10 and the normal numbers are N(1, 1).
    """
    n = max(int(np.ceil(10.0 * rng.random())), 1)
    noise = rng.standard_normal(n)
    return -0.5 * np.sum(((theta - MEAN) / SD) ** 2) + noise.sum() - 0.5 * n


def stream_generator(is_normal: bool = False, seed: int = 1) -> StreamGenerator:
    """Return what a black box receives for a stream, without a model."""
    vector = fresh_stream(np.random.default_rng(seed))
    return StreamGenerator(Reader(vector, is_normal, make_scratch()), "u")


def declare(kind: str, name: str = "u") -> Any:
    return apm.Seed(name) if kind == "seed" else apm.Stream(name, kind=kind)


def lazy_model(kind: str, dim: int = 2, fn: Any = lazy_log_estimate) -> pm.Model:
    """Build a model whose estimator draws from a stream ("normal", "uniform") or a seed."""
    with pm.Model() as model:
        theta = pm.Flat("theta", shape=dim)
        apm.Potential("log_lik", apm.black_box(fn)(theta, declare(kind)))
    return model


def exact_lazy_draw(rng: np.random.Generator, kind: str, dim: int = 2) -> tuple[Any, Any]:
    """Draw (theta, u) from the joint target of :func:`lazy_model`, as a point and as ``step.u``."""
    theta = rng.normal(MEAN, SD, dim)
    first = rng.random()
    noise = rng.normal(1.0, 1.0, max(int(np.ceil(10.0 * first)), 1))
    used = np.append(ndtri(first), noise) if kind == "normal" else np.append(first, ndtr(noise))
    return {"theta": theta}, {"u": settled(rng, used)}


def mixed_model() -> pm.Model:
    """Build a model with every kind of randomness, in three potentials."""

    def from_streams(theta, first, second):
        n = first.integers(1, 6)
        return -0.5 * theta**2 + first.normal(-0.5, 1.0) + 0.1 * np.mean(second.random(n)) - 0.05

    def from_arrays_and_seed(theta, u, v, rng):
        return 0.1 * theta * np.mean(u) + 0.1 * np.mean(v) - 0.05 + rng.normal(-0.005, 0.1)

    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=(2, 3))
        v = apm.StandardUniform("v", shape=4)
        streams = apm.Stream("normals", kind="normal"), apm.Stream("uniforms", kind="uniform")
        apm.Potential("first", apm.black_box(from_streams)(theta, *streams))
        apm.Potential("second", apm.black_box(from_arrays_and_seed)(theta, u, v, apm.Seed("seed")))
        apm.Potential("third", 0.1 * u.sum() * theta)
    return model
