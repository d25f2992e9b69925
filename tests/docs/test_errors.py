"""Messages for the common mistakes name a page of the documentation, and the page is there."""

import logging
import re
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from pymc_apm.errors import DOCUMENTATION, PAGES, see

ROOT = Path(__file__).parents[2]
SHORT = {"draws": 5, "tune": 5, "chains": 1, "cores": 1, "progressbar": False}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_that_messages_name_exists_and_has_that_title(page):
    path = ROOT / DOCUMENTATION.format(page=page)
    assert path.read_text().splitlines()[0] == f"# {PAGES[page]}"


def test_every_page_that_the_code_names_is_known():
    code = "\n".join(path.read_text() for path in (ROOT / "pymc_apm").rglob("*.py"))
    named = re.findall(r"see\([\"'](\w+)[\"']\)", code)
    assert set(named) == set(PAGES)


def hidden_noise():
    mu = pm.Normal("mu")
    apm.Potential("log_lik", mu + pm.Normal.dist())


def no_randomness():
    apm.Potential("log_lik", pm.Normal("mu") * 2.0)


def matrix():
    apm.Potential("log_lik", pm.Normal("mu") * apm.StandardNormal("u", shape=(2, 2)))


def shared_stream():
    u = apm.Stream("u")
    box = apm.black_box(lambda mu, rng: rng.random() * mu)
    mu = pm.Normal("mu")
    apm.Potential("log_lik", box(mu, u) + box(2 * mu, u))


def noise_in_a_black_box():
    rng = np.random.default_rng(1)
    box = apm.black_box(lambda mu, u: float(rng.random()))
    apm.Potential("log_lik", box(pm.Normal("mu"), apm.StandardNormal("u")))
    pm.sample(**SHORT)


def zero_everywhere():
    apm.Potential("log_lik", pt.log(0.0 * pm.Normal("mu") * apm.StandardNormal("u")))
    pm.sample(**SHORT)


def infinite():
    apm.Potential("log_lik", np.inf + pm.Normal("mu") * apm.StandardNormal("u"))
    pm.sample(**SHORT)


def no_estimator():
    pm.Normal("mu")
    apm.APMSlice()


def nobody_updates_u():
    mu = pm.Normal("mu")
    apm.Potential("log_lik", mu * apm.StandardNormal("u"))
    pm.sample(step=pm.Metropolis([mu]), **SHORT)


def discrete():
    apm.Potential("log_lik", pm.Poisson("n", 2) * apm.StandardNormal("u"))
    apm.APMSlice(vars=[pm.modelcontext(None)["n"]])


def no_gradient():
    box = apm.black_box(lambda mu, u: mu * u)
    mu = pm.Normal("mu")
    apm.Potential("log_lik", box(mu, apm.StandardNormal("u")))
    pm.NUTS([mu])


def correlated_seed():
    box = apm.black_box(lambda mu, rng: mu * rng.random())
    apm.Potential("log_lik", box(pm.Normal("mu"), apm.Seed("u")))
    apm.PseudoMarginalMH(correlation=0.9)


def sum_of_log_likelihoods():
    cov = pm.HalfNormal("sd") * np.eye(2)
    apm.estimators.laplace_importance("y", lambda f: -(f**2).sum(), cov)


def no_family():
    apm.estimators.doubly_intractable("y", object(), [pm.Normal("mu")], 1.0)


MISTAKES = {
    hidden_noise: "estimators",
    no_randomness: "estimators",
    matrix: "estimators",
    shared_stream: "estimators",
    noise_in_a_black_box: "estimators",
    zero_everywhere: "estimators",
    infinite: "estimators",
    no_estimator: "getting_started",
    nobody_updates_u: "recipes",
    discrete: "recipes",
    no_gradient: "recipes",
    correlated_seed: "choosing",
    sum_of_log_likelihoods: "latent_gaussian",
    no_family: "doubly_intractable",
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_the_message_for_a_mistake_names_the_page(mistake):
    with pm.Model(), pytest.raises(Exception, match=re.escape(see(MISTAKES[mistake]))):
        mistake()


def test_the_line_at_the_end_of_a_run_that_stuck_names_the_page(caplog):
    with pm.Model(), caplog.at_level(logging.WARNING, logger="pymc"):
        theta = pm.Normal("theta", shape=5)
        u = apm.StandardNormal("u", shape=5)
        apm.Potential("log_lik", -10 * (theta**2).sum() - 5 * (u * theta).sum())
        step = apm.PseudoMarginalMH(scaling=1.0)
        pm.sample(300, tune=5, chains=2, cores=1, progressbar=False, step=step, random_seed=1)
    assert see("diagnosing") in caplog.text


def test_an_exact_sampler_that_gives_up_names_the_page():
    ising = apm.estimators.Ising.torus(10, 10, max_sweeps=8)
    with pytest.raises(apm.errors.CoalescenceError, match=re.escape(see("doubly_intractable"))):
        ising.sample(0.4, 0.0, np.random.default_rng(1))
