"""What another run is told when it is given the store of one."""

import sys
from typing import ClassVar

import numpy as np
import pymc as pm
import pytest
from pymc.step_methods.compound import BlockedStep

import pymc_apm as apm
from pymc_apm.errors import ModelError, RunStopped, StoreError
from pymc_apm.runs.store import Store
from tests.runs.conftest import Case
from tests.runs.models import differences, ising, symbolic


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"chains": 3}, "it has 2 chains, not 3"),
        ({"tune": 31}, "it has 30 draws of tuning, not 31"),
        ({"random_seed": 6}, "random_seed"),
        ({"var_names": ["mu"]}, "other variables were recorded: posterior/both, posterior/sigma"),
        ({"discard_tuned_samples": False}, "other variables were recorded: warmup_posterior"),
    ],
)
def test_another_run_is_refused(case, copied, options, told):
    with pytest.raises(StoreError, match=f"{copied.name}.*another run.*{told}"):
        case.sample(store=copied, **options)
    assert not differences(case.sample(), case.sample(store=copied))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: apm.APMMetropolis(compile=False), "APMSlice.*APMMetropolis"),
        (lambda: apm.APMSlice(compile=False, width=2.0), "options"),
        (lambda: apm.APMSlice(compile=False, step_out=True), "options"),
        (lambda: apm.APMSlice(compile=False, thin=2), "thin"),
        (lambda: apm.APMSlice(compile=False, u_update="independence"), "u_update"),
        (lambda: apm.APMSlice(compile=False, directions="coordinate"), "options"),
        (lambda: [apm.APMSlice(compile=False), apm.APMEllipticalU()], "steps differ"),
    ],
)
def test_other_steps_are_refused(case, copied, make, told):
    with case.model:
        step = make()
    with pytest.raises(StoreError, match=f"steps differ.*{told}|{told}"):
        case.sample(store=copied, step=step)


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        (apm.APMSlice, {"width": 1.0}, {"width": 2.0}),
        (apm.APMMetropolis, {"scaling": 1.0}, {"scaling": 2.0}),
        (apm.APMMetropolis, {"covariance": [1.0, 1.0]}, {"covariance": [1.0, 2.0]}),
    ],
)
def test_other_widths_and_scales_are_refused(case, store, kind, first, second):
    with case.model:
        case.sample(store=store, step=kind(compile=False, **first))
        with pytest.raises(StoreError, match="steps differ: options: start"):
            case.sample(30, store=store, step=kind(compile=False, **second))


def test_an_option_of_a_step_of_pymc_is_noticed(store):
    model = symbolic()
    with model:
        for depth, is_refused in ((5, False), (6, True)):
            step = [apm.APMEllipticalU(), pm.NUTS(model.free_RVs, max_treedepth=depth)]
            options = {"tune": 2, "chains": 1, "cores": 1, "quiet": True, "store": store}
            if not is_refused:
                apm.sample(2, step=step, **options)
                continue
            with pytest.raises(StoreError, match="max_treedepth"):
                apm.sample(3, step=step, **options)


def other_model(model):
    case = Case("slice")
    case.model = model
    with model:
        case.step = apm.APMSlice(compile=False)
    return case


def test_another_estimator_is_noticed_by_what_it_estimates(copied):
    other = other_model(symbolic(np.array([2, 4, 1, 0, 3, 6])))
    with pytest.raises(StoreError, match=r"last draw of chain 0 the log density was .* and is"):
        other.sample(30, store=copied)


def test_another_prior_is_noticed(copied):
    with pytest.raises(StoreError, match="another model"):
        other_model(symbolic(prior_sd=1.1)).sample(30, store=copied)


def test_another_prior_is_noticed_when_all_chains_have_ended(case, copied):
    with pytest.raises(StoreError, match="another model"):
        other_model(symbolic(prior_sd=1.1)).sample(store=copied)
    assert not differences(case.sample(), case.sample(store=copied))


def test_another_prior_is_noticed_when_the_chains_left_have_not_begun(case, store):
    def interrupt(trace, draw):
        if draw.chain == 1:
            raise KeyboardInterrupt

    with pytest.raises(RunStopped):
        case.sample(store=store, callback=interrupt)
    with pytest.raises(StoreError, match="another model"):
        other_model(symbolic(prior_sd=1.1)).sample(store=store)
    assert not differences(case.sample(), case.sample(store=store))


def test_another_model_leaves_the_store_as_long_as_it_was(copied):
    with pytest.raises(StoreError, match="another model"):
        other_model(symbolic(prior_sd=1.1)).sample(30, store=copied)
    assert Store(copied).read_run().draws == 20


def test_another_deterministic_is_noticed(store):
    for power, is_refused in ((1.0, False), (2.0, True)):
        with pm.Model():
            theta = pm.Normal("theta", shape=2)
            apm.Potential("log_lik", (theta * apm.StandardNormal("u", shape=2)).sum())
            pm.Deterministic("eta", theta**power)
            options = {"tune": 2, "chains": 1, "cores": 1, "quiet": True, "store": store}
            if not is_refused:
                apm.sample(2, **options)
                continue
            with pytest.raises(StoreError, match=r"another model: .* chain 0 eta was \["):
                apm.sample(3, **options)


def test_a_deterministic_that_is_drawn_is_no_other_one(store):
    with pm.Model():
        theta = pm.Normal("theta")
        apm.Potential("log_lik", theta * apm.StandardNormal("u", shape=()))
        pm.Deterministic("copy", pm.Normal.dist(theta, 1))
        options = {"tune": 2, "chains": 1, "cores": 1, "quiet": True, "store": store}
        apm.sample(2, **options)
        assert apm.sample(3, **options).posterior["copy"].shape == (1, 3)


def test_other_parameters_and_randomness_are_named(copied):
    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.Potential("log_lik", theta * apm.StandardNormal("v", shape=()))
    with pytest.raises(StoreError, match=r"its parameters differ: .*theta.*its randomness"):
        other_model(model).sample(30, store=copied)


def test_other_data_are_named(store):
    for value, is_refused in ((1.0, False), (2.0, True)):
        with pm.Model():
            theta = pm.Normal("theta")
            apm.Potential("log_lik", theta * apm.StandardNormal("u", shape=()))
            pm.Normal("y", theta, observed=value)
            options = {"tune": 2, "chains": 1, "cores": 1, "quiet": True, "store": store}
            if not is_refused:
                apm.sample(2, **options)
                continue
            with pytest.raises(StoreError, match="its data differ: observed_data"):
                apm.sample(3, **options)


@pytest.mark.parametrize("draws", [2, 3])
@pytest.mark.parametrize(("dims", "places"), [("place", ["b", "a"]), ("town", ["a", "b"])])
def test_other_labels_are_named(store, draws, dims, places):
    options = {"tune": 2, "chains": 1, "cores": 1, "quiet": True, "store": store}
    for n, dim, names in ((2, "place", ["a", "b"]), (draws, dims, places)):
        with pm.Model(coords={dim: names}):
            theta = pm.Normal("theta", dims=dim)
            apm.Potential("log_lik", (theta * apm.StandardNormal("u", shape=2)).sum())
            if (dim, names) == ("place", ["a", "b"]):
                apm.sample(n, **options)
                continue
            with pytest.raises(StoreError, match="its labels differ: posterior"):
                apm.sample(n, **options)


def test_other_data_of_an_exchange_step_are_noticed(store):
    case = Case("exchange")
    case.sample(5, store=store)
    case.model = ising((1, 1, 1, 1))
    with case.model:
        case.step = apm.ExchangeMH()
    with pytest.raises(StoreError, match="log density was"):
        case.sample(6, store=store)


def test_another_model_is_noticed_without_any_estimator(store):
    for sd, is_refused in ((1.0, False), (2.0, True)):
        with pm.Model() as model:
            theta = pm.Normal("theta", 0, sd)
            options = {"tune": 2, "chains": 1, "cores": 1, "quiet": True, "store": store}
            if not is_refused:
                apm.sample(2, step=pm.Slice([theta]), **options)
                continue
            with pytest.raises(StoreError, match="another model"):
                apm.sample(3, step=pm.Slice([theta]), **options)
    assert len(model.free_RVs) == 1


def test_a_refused_run_leaves_the_store_as_it_was(case, copied):
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    with pytest.raises(StoreError):
        other_model(symbolic(prior_sd=1.1)).sample(store=copied, chains=3)
    after = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    assert before == after


def test_a_folder_with_something_else_is_left_alone(case, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(StoreError, match="something else is there"):
        case.sample(store=tmp_path)
    with pytest.raises(StoreError, match="something else is there"):
        case.sample(store=tmp_path / "letter.txt")
    assert (tmp_path / "letter.txt").read_text() == "dear"


@pytest.mark.parametrize(
    "options",
    [
        {"trace": object()},
        {"return_inferencedata": False},
        {"keep_warning_stat": True},
        {"nuts_sampler": "nutpie"},
        {"draws": 0},
        {"tune": -1},
        {"tune": 10.0},
        {"every": -1.0},
        {"var_names": ["nothing"]},
        {"idata_kwargs": {"log_likelihood": True}},
        {"idata_kwargs": {"log_prior": ["mu"]}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_without_a_meaning_are_refused(case, store, options):
    with pytest.raises((ModelError, ValueError)):
        case.sample(**({"draws": 5} | options), store=store)
    assert not store.exists()


def test_an_executor_needs_a_store(case):
    with pytest.raises(ModelError, match="store="):
        case.sample(executor=object())


def test_steps_that_do_not_go_together_are_refused_before_there_is_a_store(store):
    with ising() as model:
        steps = [apm.ExchangeMH(), pm.Slice([model["field"]])]
        with pytest.raises(ModelError, match="Another step than ExchangeMH"):
            apm.sample(2, tune=2, chains=1, cores=1, quiet=True, store=store, step=steps)
    assert not store.exists()


def test_a_step_that_runs_all_chains_together_is_refused(store):
    with pm.Model():
        theta = pm.Normal("theta", shape=2)
        with pytest.raises(ModelError, match="DEMetropolisZ"):
            apm.sample(5, step=pm.DEMetropolis([theta]), store=store, chains=4)


class Secretive(BlockedStep):
    """A step that does not say what its state is."""

    stats_dtypes_shapes: ClassVar = {}

    def __init__(self, vars, rng=None, model=None, **kwargs):
        self.vars = vars
        self.rng = np.random.default_rng(1)

    def step(self, point):
        return point, [{}]


def test_a_step_whose_state_is_not_known_is_refused(store):
    with pm.Model() as model:
        pm.Normal("theta")
        with pytest.raises(ModelError, match="Secretive cannot be used with a store"):
            apm.sample(5, step=Secretive(model.value_vars), store=store)
    assert not store.exists()


@pytest.mark.parametrize("path", ["s3://bucket/run.zarr", "http://here/run.zarr"])
def test_a_store_is_a_folder(case, path):
    with pytest.raises(StoreError, match="A store is a folder"):
        case.sample(store=path)
    with pytest.raises(StoreError, match="A store is a folder"):
        apm.open_run(path)


def test_a_run_in_another_version_is_told(case, copied, caplog, monkeypatch):
    monkeypatch.setattr("pymc_apm.runs.sampling.versions", lambda: {"numpy": "0.1"})
    case.sample(store=copied)
    assert "(now 0.1)" in caplog.text


@pytest.mark.parametrize("package", ["zarr.codecs", "google_crc32c"])
def test_what_to_install_is_told(case, copied, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    for function in (lambda: case.sample(store=copied), lambda: apm.open_run(copied)):
        with pytest.raises(ModelError, match=r"pip install 'pymc_apm\[runs\]'"):
            function()


def test_what_is_not_a_run_is_not_opened(tmp_path):
    for function in (apm.open_run, apm.stop_run):
        with pytest.raises(StoreError, match="does not exist, or is not that of a run"):
            function(tmp_path / "nothing")


def test_an_error_of_an_estimator_arrives_and_the_store_goes_on(store):
    limit = {"calls": 100}

    def log_estimate(theta, rng):
        limit["calls"] -= 1
        if limit["calls"] == 0:
            raise ValueError("no luck")
        return -0.5 * float(theta) ** 2 + 0.1 * rng.normal()

    with pm.Model():
        theta = pm.Normal("theta")
        apm.Potential("log_lik", apm.black_box(log_estimate)(theta, apm.Stream("u")))
        options = {"tune": 10, "chains": 1, "cores": 1, "random_seed": 1, "quiet": True}
        with pytest.raises(ValueError, match="no luck"):
            apm.sample(50, store=store, every=0.0, **options)
        result = apm.sample(50, store=store, **options)
        assert not differences(apm.sample(50, **options), result)


def test_a_callback_can_stop_a_run(case, store):
    def stop(trace, draw):
        apm.stop_run(store)

    with pytest.raises(RunStopped, match="the same call goes on"):
        case.sample(10**6, store=store, callback=stop, every=0.0)
