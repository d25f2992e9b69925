"""Posteriors of Ising models, against exact ones from the transfer matrix and enumeration."""

import functools

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from pymc_apm.estimators import Ising, doubly_intractable
from tests.estimators import truth
from tests.statistical.checks import assert_exact, z_scores_of_run
from tests.steps.models import sample

TORUS = Ising.torus(10, 30)
REFERENCE = {"coupling": 0.3, "field": 0.0}
Y = TORUS.sample(0.3, 0.0, np.random.default_rng(20160509))


def torus_model(anneal, reference=REFERENCE):
    """Return the paper's model, with parameters on their own scale."""
    with pm.Model() as model:
        coupling = pm.Uniform("coupling", 0.0, 0.4, default_transform=None)
        field = pm.Uniform("field", -1.0, 1.0, default_transform=None)
        doubly_intractable("y", TORUS, [coupling, field], Y, anneal=anneal, reference=reference)
    return model


def moments(log_posterior, axes, weights=1.0):
    """Return means and variances of a density on a grid, with the weights of a quadrature."""
    density = np.exp(log_posterior - log_posterior.max()) * weights
    grids = np.meshgrid(*axes, indexing="ij")
    means = [np.average(grid, weights=density) for grid in grids]
    return means, [
        np.average((grid - mean) ** 2, weights=density)
        for grid, mean in zip(grids, means, strict=True)
    ]


def exact_moments(n_couplings, n_fields):
    """Return exact means and variances of coupling and field, by quadrature.

    Gauss-Legendre for the coupling, which ends at 0.4 where the posterior does not; equal steps for
    the field. Z(coupling, field) = Z(coupling, -field). Beyond the box the posterior is nothing.
    """
    nodes, weights = np.polynomial.legendre.leggauss(n_couplings)
    couplings = 0.4 - 0.13 * (nodes + 1.0)
    half = np.linspace(0.0, 0.15, n_fields)
    log_z = np.array([[TORUS.log_z(j, h) for h in half] for j in couplings])
    fields = np.concatenate((-half[:0:-1], half))
    log_z = np.concatenate((log_z[:, :0:-1], log_z), axis=1)
    interactions, magnetisation = TORUS.statistics(Y)
    log_g = couplings[:, None] * interactions + fields * magnetisation
    return moments(log_g - log_z, (couplings, fields), weights[:, None])


@pytest.fixture(scope="module")
def exact():
    return exact_moments(14, 14)


def check_posterior(idata, exact, z=4.0):
    draws = np.stack([idata.posterior[name].values for name in ("coupling", "field")], axis=-1)
    assert_exact(z_scores_of_run(draws, *exact), z)


def longest_run_of_zeros(moved):
    """Return the largest number of draws in a row, of any chain, that did not move."""
    longest = 0
    for chain in np.asarray(moved) > 0:
        ends = np.flatnonzero(np.concatenate(([True], chain, [True])))
        longest = max(longest, int(np.diff(ends).max()) - 1)
    return longest


@pytest.mark.slow
def test_slices_give_the_exact_posterior_and_never_stick(exact):
    """The paper's SS+SS without annealing, over 16,000 draws; and what PM MH does meanwhile."""
    model = torus_model(anneal=0)
    with model:
        step = apm.APMSlice(width=0.1, directions="coordinate")
    idata = sample(model, step, draws=8_000, tune=200)
    check_posterior(idata, exact)
    stats = idata.sample_stats
    assert longest_run_of_zeros(stats["accepted"].values) < 3
    assert longest_run_of_zeros(stats["u_accepted"].values) < 50

    with model:
        step = apm.PseudoMarginalMH(scaling=0.04, directions="coordinate")
    stuck = sample(model, step, draws=8_000, tune=200).sample_stats["accepted"].values
    assert longest_run_of_zeros(stuck) > 100


@pytest.mark.slow
@pytest.mark.parametrize("method", ["SS+SS", "PM MH", "MI+MH", "SS+MH", "MI+SS"])
def test_annealing_gives_the_exact_posterior(exact, method):
    model = torus_model(anneal=35)
    with model:
        step, draws = {
            "SS+SS": lambda: (apm.APMSlice(width=0.1, directions="coordinate"), 2500),
            "MI+SS": lambda: (apm.APMSlice(u_update="independence"), 2500),
            "PM MH": lambda: (apm.PseudoMarginalMH(scaling=0.04, directions="coordinate"), 8000),
            "MI+MH": lambda: (apm.APMMetropolis(u_update="independence"), 6000),
            "SS+MH": lambda: (apm.APMMetropolis(), 4000),
        }[method]()
    check_posterior(sample(model, step, draws=draws, tune=500), exact, z=4.8)


@pytest.mark.slow
def test_the_exchange_algorithm_gives_the_exact_posterior(exact):
    model = torus_model(anneal=0)
    with model:
        step = apm.ExchangeMH()
    check_posterior(sample(model, step, draws=20_000, tune=1000), exact)


@pytest.mark.slow
def test_the_reference_of_the_pilot_and_all_defaults_give_the_exact_posterior(exact):
    model = torus_model(anneal=35, reference=None)
    check_posterior(sample(model, draws=2500, tune=500), exact)


# An autologistic regression: a graph, and a field for each site by covariates

LATTICE = Ising.lattice(3, 4)
X = np.column_stack((np.ones(12), np.linspace(-1.0, 1.0, 12)))
PRESENCE = LATTICE.sample(0.2, X @ [0.2, 0.5], np.random.default_rng(1))


def autologistic_model(anneal):
    with pm.Model() as model:
        coupling = pm.Uniform("coupling", -0.3, 0.4)
        beta = pm.Normal("beta", 0.0, 0.6, shape=2)
        doubly_intractable("y", LATTICE, [coupling, pt.dot(X, beta)], PRESENCE, anneal=anneal)
    return model


@functools.cache
def exact_autologistic():
    """Sum over all configurations on a grid of coupling, intercept and slope."""
    couplings = -0.3 + 0.7 * (np.arange(40) + 0.5) / 40
    betas = np.linspace(-2.7, 2.7, 55)
    x = truth.configurations(12).astype(float)
    edges = LATTICE.edges
    interactions = (x[:, edges[:, 0]] * x[:, edges[:, 1]]).sum(axis=1)
    covariates = x @ X
    observed = int(truth.index_of(PRESENCE))
    log_posterior = np.empty((40, 55, 55))
    slopes = betas[:, None] * covariates[:, 1]
    for i, coupling in enumerate(couplings):
        for j, intercept in enumerate(betas):
            log_g = coupling * interactions + intercept * covariates[:, 0] + slopes
            log_posterior[i, j] = log_g[:, observed] - np.logaddexp.reduce(log_g, axis=1)
    log_posterior -= 0.5 * (betas[:, None] ** 2 + betas**2) / 0.36
    return moments(log_posterior, (couplings, betas, betas))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["SS+SS", "SS+SS annealed", "PM MH", "exchange"])
def test_autologistic_regression_has_the_enumerated_posterior(method):
    model = autologistic_model(anneal=10 if method == "SS+SS annealed" else 0)
    with model:
        step = {"PM MH": apm.PseudoMarginalMH, "exchange": apm.ExchangeMH}.get(
            method, apm.APMSlice
        )()
    draws = 4000 if method.startswith("SS") else 12_000
    posterior = sample(model, step, draws=draws, tune=1000).posterior
    draws = np.concatenate(
        (posterior["coupling"].values[..., None], posterior["beta"].values), axis=-1
    )
    assert_exact(z_scores_of_run(draws, *exact_autologistic()))
