"""What pm.sample says at its end."""

import logging

import numpy as np
import pymc as pm
import pytest

from pymc_apm.diagnostics.problems import problems
from tests.diagnostics.runs import CONTAINERS, STEPS, as_idata, in_container, sampled
from tests.steps.models import toy_gaussian


def lines_at_the_end(method, caplog):
    rng = np.random.default_rng(1)
    with toy_gaussian(8), caplog.at_level(logging.WARNING, logger="pymc"):
        pm.sample(
            draws=1500,
            tune=50,
            chains=2,
            cores=1,
            step=STEPS[method](),
            random_seed=1,
            initvals=[{"theta": rng.standard_normal(8)} for _ in range(2)],
            progressbar=False,
        )
    return [record.message for record in caplog.records if "stuck" in record.message]


def test_one_line_where_chains_stick(caplog):
    (line,) = lines_at_the_end("PM MH", caplog)
    assert "theta for 2" in line and "u for 2" in line and "apm.sticking(idata)" in line
    assert "\n" not in line


def test_silence_where_they_do_not(caplog):
    assert lines_at_the_end("SS+SS", caplog) == []


@pytest.mark.parametrize("container", CONTAINERS)
def test_all_problems_are_one_line(container):
    idata = in_container(sampled("PM MH"), container)
    (line,) = problems(idata)
    stats = {
        "log_estimate": np.zeros((1, 100)),
        "n_evals": np.full((1, 100), 3),
        "n_nan": np.eye(1, 100, dtype=int),
        "u_accepted": np.zeros((1, 100)),
    }
    both = as_idata({"x": np.random.default_rng(1).random((1, 100))}, stats, container)
    (line,) = problems(both)
    assert line.startswith("1 of 300 estimates after tuning were not a number (NaN)")
    assert "u for 100 draws" in line


def test_runs_of_other_samplers_are_none_of_our_business():
    assert problems(as_idata({"x": np.zeros((2, 500))}, {"accepted": np.zeros((2, 500))})) == []
    assert problems(as_idata({"x": np.zeros((2, 500))})) == []
