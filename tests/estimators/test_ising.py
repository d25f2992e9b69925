import pickle

import numpy as np
import pytest

from pymc_apm.errors import ModelError
from pymc_apm.estimators import Ising
from tests.estimators import truth

TRIANGLE = np.array([[0, 1], [1, 2], [2, 0]])


def sorted_edges(edges):
    return sorted(tuple(sorted(edge)) for edge in np.asarray(edges).tolist())


@pytest.mark.parametrize("shape", [(3, 3), (3, 4), (10, 30)])
def test_torus_joins_each_site_to_four_others(shape):
    ising = Ising.torus(*shape)
    assert ising.n_sites == shape[0] * shape[1]
    assert sorted_edges(ising.edges) == sorted_edges(truth.torus_edges(*shape))


def test_lattice_has_no_edges_across_its_border():
    edges = Ising.lattice(2, 3).edges
    assert sorted_edges(edges) == [(0, 1), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (4, 5)]
    assert len(Ising.lattice(1, 4).edges) == 3
    assert len(Ising.lattice(1, 1).edges) == 0


def test_sites_without_edges_count():
    assert Ising(TRIANGLE).n_sites == 3
    assert Ising(TRIANGLE, n_sites=5).n_sites == 5
    assert Ising([], n_sites=2).sample(0.3, 0.1, np.random.default_rng(1)).shape == (2,)


@pytest.mark.parametrize(
    ("edges", "n_sites", "message"),
    [
        ([[0, 1, 2]], None, "pairs of sites"),
        ([[0.0, 1.0]], None, "pairs of sites"),
        ([[-1, 1]], None, "numbered from 0"),
        ([[0, 0]], None, "to itself"),
        ([[0, 1], [1, 0]], None, "given twice"),
        ([[0, 5]], 3, "names site 5, but there are 3"),
        ([[0, 1]], 2.5, "n_sites of Ising must be an integer"),
        ([], None, "there are 0 sites"),
    ],
)
def test_bad_graphs_are_refused(edges, n_sites, message):
    with pytest.raises(ModelError, match=message):
        Ising(edges, n_sites=n_sites)


def test_bad_options_are_refused():
    with pytest.raises(ModelError, match="method of Ising must be"):
        Ising(TRIANGLE, method="gibbs")
    with pytest.raises(ModelError, match="max_sweeps of Ising"):
        Ising(TRIANGLE, max_sweeps=0)
    with pytest.raises(ModelError, match="at least 3 rows"):
        Ising.torus(2, 5)
    with pytest.raises(ModelError, match="n_rows"):
        Ising.lattice(0, 3)


def test_data_may_have_any_shape_and_type():
    ising = Ising.torus(3, 4)
    y = ising.sample(0.2, 0.0, np.random.default_rng(1))
    assert y.dtype == np.int8
    for same in (y.tolist(), y.astype(float), y.reshape(3, 4)):
        prepared = ising.prepare(same)
        assert prepared.dtype == np.int8
        np.testing.assert_array_equal(prepared, y)
        assert ising.log_g(same, 0.2, 0.1) == ising.log_g(y, 0.2, 0.1)


def test_bad_data_is_refused():
    ising = Ising(TRIANGLE)
    with pytest.raises(ModelError, match=r"become spins by 2 \* y - 1"):
        ising.prepare([0, 1, 1])
    with pytest.raises(ModelError, match="has 3 sites, got one with 2"):
        ising.prepare([1, 1])
    with pytest.raises(ModelError, match="-1 and \\+1"):
        ising.prepare(np.array([1, 2, 1], dtype=np.int8))


@pytest.mark.parametrize("coupling", [0.3, -0.2, [0.1, -0.2, 0.4]])
@pytest.mark.parametrize("field", [0.0, 0.25, [0.1, 0.2, -0.3]])
def test_log_g_is_the_sum_over_edges_and_sites(coupling, field):
    ising = Ising(TRIANGLE)
    expected = truth.log_weights(TRIANGLE, 3, np.asarray(coupling), np.asarray(field))
    values = [ising.log_g(x, coupling, field) for x in truth.configurations(3)]
    np.testing.assert_allclose(values, expected, rtol=1e-13, atol=1e-14)


def test_statistics_are_the_sums_of_products_and_of_spins():
    ising = Ising(TRIANGLE)
    assert ising.statistics([1, 1, -1]) == (-1, 1)
    assert ising.statistics([1, 1, 1]) == (3, 3)


def test_parameters_of_a_wrong_shape_are_refused():
    ising = Ising.lattice(2, 3)
    rng = np.random.default_rng(1)
    with pytest.raises(ModelError, match=r"coupling .* one for each of the 7 edges"):
        ising.sample(np.ones(6), 0.0, rng)
    with pytest.raises(ModelError, match=r"field .* one for each of the 6 sites"):
        ising.sample(0.1, np.ones(7), rng)


@pytest.mark.parametrize("coupling", [0.3, -0.4, 0.0])
@pytest.mark.parametrize("field", [0.0, -0.2])
def test_log_z_by_enumeration(coupling, field):
    edges = truth.torus_edges(3, 4)
    expected = truth.log_z(edges, 12, coupling, field)
    np.testing.assert_allclose(Ising.torus(3, 4).log_z(coupling, field), expected, rtol=1e-12)


def test_log_z_with_a_parameter_for_each_edge_and_site():
    rng = np.random.default_rng(1)
    edges = Ising.lattice(3, 3).edges
    coupling, field = rng.normal(size=len(edges)), rng.normal(size=9)
    expected = truth.log_z(edges, 9, coupling, field)
    np.testing.assert_allclose(Ising(edges).log_z(coupling, field), expected, rtol=1e-12)


@pytest.mark.parametrize("coupling", [0.3, -0.4])
@pytest.mark.parametrize("shape", [(3, 7), (7, 3)])
def test_log_z_by_the_transfer_matrix(shape, coupling):
    """With too many sites to enumerate, but not if those of one column are given."""
    parts = [
        conditioned_log_z(shape, coupling, 0.1, column) for column in truth.configurations(shape[0])
    ]
    log_z = Ising.torus(*shape).log_z(coupling, 0.1)
    np.testing.assert_allclose(log_z, np.logaddexp.reduce(parts), rtol=1e-12)


def conditioned_log_z(shape, coupling, field, column):
    """Return the log of the sum over configurations whose first column is given."""
    n_rows, n_columns = shape
    sites = np.arange(n_rows * n_columns).reshape(shape)
    fixed = dict(zip(sites[:, 0].tolist(), column.tolist(), strict=True))
    free = {site: place for place, site in enumerate(s for s in sites.ravel() if s not in fixed)}
    fields = np.full(len(free), field)
    edges, constant = [], field * sum(fixed.values())
    for a, b in truth.torus_edges(*shape).tolist():
        if a in fixed and b in fixed:
            constant += coupling * fixed[a] * fixed[b]
        elif a in fixed or b in fixed:
            spin, site = (fixed[a], b) if a in fixed else (fixed[b], a)
            fields[free[site]] += coupling * spin
        else:
            edges.append((free[a], free[b]))
    return constant + Ising(edges, n_sites=len(free)).log_z(coupling, fields)


def test_log_z_of_the_paper():
    np.testing.assert_allclose(Ising.torus(10, 30).log_z(0.3, 0.0), 237.173684, atol=5e-7)


def test_log_z_is_refused_where_it_is_unknown():
    with pytest.raises(ModelError, match=r"2\*\*169 terms"):
        Ising.torus(13, 13).log_z(0.2, 0.0)
    with pytest.raises(ModelError, match="2\\*\\*25 terms"):
        Ising.torus(5, 5).log_z(0.2, np.zeros(25))


def test_a_model_survives_pickling():
    ising = pickle.loads(pickle.dumps(Ising.torus(4, 4)))
    first = ising.sample(0.3, 0.1, np.random.default_rng(1))
    second = Ising.torus(4, 4).sample(0.3, 0.1, np.random.default_rng(1))
    np.testing.assert_array_equal(first, second)
    assert repr(ising) == "Ising(16 sites, 32 edges)"
