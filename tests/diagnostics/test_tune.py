import time

import matplotlib
import numpy as np
import pymc as pm
import pytest

import pymc_apm as apm
from pymc_apm.errors import ModelError
from tests.diagnostics.models import cauchy_weights, normal_noise
from tests.diagnostics.runs import as_idata
from tests.models import PYTHON

matplotlib.use("Agg")

AT = {"points": {"theta": 0.5}, "random_seed": 1, "compile_kwargs": PYTHON}


def noisy(size):
    """The sd of log f_hat is 4.8 / sqrt(size): 1.2 with 16."""
    return normal_noise(4.8, size)


def test_the_size_at_which_the_sd_is_as_wanted():
    found = apm.tune_estimator(noisy, [4, 16, 64], **AT)
    np.testing.assert_allclose(found.table["sd"], [2.4, 1.2, 0.6], rtol=0.06)
    assert found.proposal == pytest.approx(16, rel=0.15)
    assert found.warnings == []


def test_outside_of_the_sizes_measured():
    assert apm.tune_estimator(noisy, [64, 256], **AT).proposal == pytest.approx(16, rel=0.15)
    assert apm.tune_estimator(noisy, [2, 4], **AT).proposal == pytest.approx(16, rel=0.15)
    found = apm.tune_estimator(noisy, [16], target_sd=2.4, **AT)
    assert found.proposal == pytest.approx(4, abs=1)


def costly(size):
    """The noise hardly matters, and the cost grows with the size: one is best."""

    @apm.black_box
    def log_estimate(theta, u):
        time.sleep(0.0005 * size)
        return -0.5 * theta**2 + 0.1 * u / np.sqrt(size)

    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.Potential("log_lik", log_estimate(theta, apm.StandardNormal("u")))
    return model


@pytest.mark.slow
def test_the_most_effective_draws_per_second():
    found = apm.tune_estimator(costly, [6, 1], "slice", draws=100, pilot_draws=60, **AT)
    assert list(found.table.index) == [1, 6]
    assert found.proposal == 1
    table = found.table
    np.testing.assert_allclose(table["ess_per_second"], table["ess"] / table["seconds"])
    assert table.loc[6, "seconds_u"] > 0.003 > table.loc[1, "seconds_u"]


def test_without_points_there_is_a_pilot_run():
    found = apm.tune_estimator(noisy, [16], n_points=2, random_seed=1)
    assert found.proposal == pytest.approx(16, rel=0.15)


def test_the_points_of_a_run():
    idata = as_idata({"theta": np.random.default_rng(1).standard_normal((2, 50))})
    found = apm.tune_estimator(noisy, [16], idata=idata, random_seed=1)
    assert found.proposal == pytest.approx(16, rel=0.15)


def test_heavy_tails():
    found = apm.tune_estimator(lambda size: cauchy_weights(), [4, 8], **AT)
    assert any("heavy tails at every size" in text for text in found.warnings)


def test_how_it_reads():
    found = apm.tune_estimator(noisy, [16], **AT)
    assert f"Proposed: {found.proposal}" in repr(found)
    assert "<table" in found._repr_html_() and "Proposed" in found._repr_html_()
    axes = found.plot()
    assert [axis.get_ylabel() for axis in axes] == [
        "sd of log f_hat over u",
        "time of an evaluation, microseconds",
    ]


@pytest.mark.parametrize(
    "build_model, options, message",
    [
        (noisy, {"sizes": []}, "sizes of tune_estimator must be a list"),
        (noisy, {"sizes": 16}, "sizes of tune_estimator must be a list"),
        (noisy, {"sizes": [0]}, "Each of sizes"),
        (noisy, {"sizes": [4], "method": "gibbs"}, "method of tune_estimator"),
        (noisy, {"sizes": [4], "target_sd": 0}, "target_sd"),
        (noisy, {"sizes": [4], "draws": 3}, "draws"),
        (noisy(4), {"sizes": [4]}, "must be a function that returns a pm.Model"),
        (lambda size: None, {"sizes": [4]}, r"build_model\(4\) must return a pm.Model, .*NoneType"),
        (lambda size: normal_noise(0.0), {"sizes": [4]}, "no noise at these points"),
    ],
)
def test_bad_input(build_model, options, message):
    with pytest.raises(ModelError, match=message):
        apm.tune_estimator(build_model, **AT, **options)
