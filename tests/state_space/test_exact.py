"""Whole runs with few points against Kalman's filter and quadrature."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.typing import NDArray

import pymc_apm as apm
from tests.state_space.truth import kalman, posterior_moments

N_CHECKS = 8
Z = 4.0
"""The bar; 8 checks of z < 4 have a false alarm rate of 1 in 2000."""


def simulate(n: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(20)
    x = np.empty(n)
    x[0] = rng.normal(0, 1 / np.sqrt(1 - 0.9**2))
    for t in range(1, n):
        x[t] = 0.9 * x[t - 1] + rng.normal()
    return x + rng.normal(size=n)


def exact_autoregression(y: NDArray[np.float64]) -> list[tuple[float, float]]:
    a, s = np.linspace(-0.2, 0.9999, 121), np.linspace(0.05, 3.0, 101)
    log_density = np.array(
        [
            [kalman(y, 0.0, v**2 / (1 - r**2), r, 0.0, v**2, 1.0).log_likelihood for v in s]
            for r in a
        ]
    )
    return posterior_moments(log_density - 0.5 * s**2, a, s)


def autoregression(y: NDArray[np.float64], points: int) -> pm.Model:
    with pm.Model() as model:
        a, s = pm.Uniform("a", -1, 1), pm.HalfNormal("s", 1)
        apm.estimators.state_space(
            "y",
            y,
            initial=pm.Normal.dist(0, s / pt.sqrt(1 - a**2)),
            transition=lambda x: pm.Normal.dist(a * x, s),
            observation=lambda x: pm.Normal.dist(x, 1),
            points=points,
        )
    return model


def check(idata: Any, exact: list[tuple[float, float]], names: list[str]) -> None:
    for name, (mean, sd) in zip(names, exact, strict=True):
        draws = idata.posterior[name].values
        for values, truth in ((draws, mean), ((draws - mean) ** 2, sd**2)):
            error = _mcse(values)
            assert abs(values.mean() - truth) < Z * error, (name, values.mean(), truth, error)


def _mcse(values: NDArray[np.float64]) -> float:
    """Return a standard error by batches."""
    means = values.reshape(-1, values.shape[-1])
    means = means[:, : means.shape[1] // 20 * 20].reshape(-1, means.shape[1] // 20).mean(axis=1)
    return float(means.std(ddof=1) / np.sqrt(means.size))


@pytest.mark.slow
def test_autoregression_with_four_points() -> None:
    y = simulate(100)
    with autoregression(y, 4):
        idata = pm.sample(3000, tune=1000, chains=2, cores=1, random_seed=5, progressbar=False)
    check(idata, exact_autoregression(y), ["a", "s"])


@pytest.mark.slow
def test_gradient_with_four_points() -> None:
    y = simulate(100)
    with autoregression(y, 4) as model:
        steps = [apm.APMIndependenceU(), pm.NUTS(model.free_RVs)]
        idata = pm.sample(
            1500, tune=700, chains=2, cores=1, random_seed=6, progressbar=False, step=steps
        )
    assert not idata.sample_stats["diverging"].values.any()
    check(idata, exact_autoregression(y), ["a", "s"])


NILE = np.array(
    """1120 1160 963 1210 1160 1160 813 1230 1370 1140 995 935 1110 994 1020 960 1180 799 958 1140
    1100 1210 1150 1250 1260 1220 1030 1100 774 840 874 694 940 833 701 916 692 1020 1050 969 831
    726 456 824 702 1120 1100 832 764 821 768 845 864 862 698 845 744 796 1040 759 781 865 845 944
    984 897 822 1010 771 676 649 846 812 742 801 1040 860 874 848 890 744 749 838 1050 918 986 797
    923 975 815 1020 906 901 1170 912 746 919 718 714 740""".split(),
    dtype=float,
)
"""Annual flow of the Nile at Aswan, 1871 to 1970."""


@pytest.mark.slow
def test_local_level() -> None:
    with pm.Model():
        level, error = pm.HalfNormal("level", 100), pm.HalfNormal("error", 200)
        apm.estimators.state_space(
            "flow",
            NILE,
            initial=pm.Normal.dist(1000, 300),
            transition=lambda x: pm.Normal.dist(x, level),
            observation=lambda x: pm.Normal.dist(x, error),
            points=6,
        )
        idata = pm.sample(3000, tune=1000, chains=2, cores=1, random_seed=7, progressbar=False)
    levels, errors = np.linspace(0.5, 250, 111), np.linspace(70, 200, 81)
    log_density = np.array(
        [
            [kalman(NILE, 1000, 9e4, 1.0, 0.0, v**2, e**2).log_likelihood for e in errors]
            for v in levels
        ]
    )
    log_density -= 0.5 * (levels[:, None] / 100) ** 2 + 0.5 * (errors / 200) ** 2
    check(idata, posterior_moments(log_density, levels, errors), ["level", "error"])
