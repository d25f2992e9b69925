"""The progress bar shows evaluations per draw, and whether theta and u move."""

import pymc as pm
import pytest

import pymc_apm as apm
from pymc_apm.steps.base import APMStep
from tests.steps.models import STEPS, run, sample, start_chain, toy_gaussian

SHOWN = {"evals_per_draw", "theta_moves", "u_moves"}


@pytest.mark.parametrize("n_chains", [1, 3])
def test_there_is_a_column_for_each_number_and_a_start_for_each_chain(n_chains):
    columns, stats = apm.APMSlice._progressbar_config(n_chains)
    headers = [column.get_table_column().header for column in columns]
    assert headers[0].startswith("Evals")
    assert headers[1:] == ["θ moves", "u moves"]
    assert set(stats) == SHOWN
    assert all(len(values) == n_chains for values in stats.values())


@pytest.mark.parametrize("name", [name for name in STEPS if name != "reflective u"])
def test_the_numbers_come_from_the_statistics_of_each_step(name):
    model = toy_gaussian(dim=2)
    with model:
        step = STEPS[name]()
    (update,) = step._make_progressbar_update_functions()
    start_chain(step, 1)
    _, stats = run(step, model.initial_point(), 10)
    for stat in stats:
        shown = update(stat)
        assert set(shown) <= SHOWN
        assert {"evals_per_draw", "u_moves"} <= set(shown)
        assert ("theta_moves" in shown) == ("accepted" in stat)


def test_the_numbers_are_averages_of_recent_draws():
    (update,) = apm.APMMetropolis._make_progressbar_update_functions()
    update({"n_evals": 2, "accepted": 1.0, "u_accepted": 0.0})
    assert update({"n_evals": 4, "accepted": 0.0, "u_accepted": 0.0}) == {
        "evals_per_draw": "3.0",
        "theta_moves": "50%",
        "u_moves": "0%",
    }
    for _ in range(1000):
        shown = update({"n_evals": 7, "accepted": 0.0, "u_accepted": 1.0})
    assert shown == {"evals_per_draw": "7.0", "theta_moves": "0%", "u_moves": "100%"}


@pytest.fixture
def shown(monkeypatch):
    """What PyMC was given to show, in the order of the draws."""
    record = []
    original = APMStep._make_progressbar_update_functions

    def make():
        (update,) = original()

        def recorded(stats):
            record.append(update(stats))
            return record[-1]

        return (recorded,)

    monkeypatch.setattr(APMStep, "_make_progressbar_update_functions", staticmethod(make))
    return record


@pytest.mark.parametrize("cores", [1, 2])
def test_a_run_with_a_progress_bar(cores, shown):
    model = toy_gaussian(dim=2)
    with model:
        step = apm.APMSlice(factorwise=False)
    sample(model, step, progressbar=True, cores=cores, mp_ctx="fork")
    assert set(shown[-1]) == SHOWN
    assert shown[-1]["theta_moves"] == shown[-1]["u_moves"] == "100%"


def test_a_run_with_a_progress_bar_for_several_steps(shown):
    model = toy_gaussian(dim=2)
    with model:
        step = [apm.APMEllipticalU(), pm.Metropolis([model["theta"]])]
    sample(model, step, progressbar=True)
    assert set(shown[-1]) == SHOWN - {"theta_moves"}
