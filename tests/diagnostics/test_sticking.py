import warnings

import numpy as np
import pymc as pm
import pytest

import pymc_apm as apm
from pymc_apm.errors import ModelError
from tests.diagnostics.runs import CONTAINERS, as_idata, chain_of_holds, in_container, sampled


def count_by_hand(has_moved):
    """Return the largest number of False in a row."""
    longest = current = 0
    for moved in has_moved:
        current = 0 if moved else current + 1
        longest = max(longest, current)
    return longest


def quietly(idata, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return apm.sticking(idata, **options)


# Whole runs


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_run_that_sticks(container):
    idata = in_container(sampled("PM MH"), container)
    with pytest.warns(UserWarning, match="did not move for"):
        found = apm.sticking(idata)
    theta = np.asarray(idata["posterior"]["theta"])
    u_accepted = np.asarray(idata["sample_stats"]["u_accepted"])
    for chain in range(2):
        moved = [bool((theta[chain, i] != theta[chain, i - 1]).any()) for i in range(1, 1500)]
        row = found.table.loc[("theta", chain)]
        assert row["longest_run"] == count_by_hand(moved)
        assert row["moved"] == pytest.approx(np.mean(moved))
        row = found.table.loc[("u", chain)]
        assert row["longest_run"] == count_by_hand(u_accepted[chain] > 0)
        assert row["moved"] == pytest.approx(np.mean(u_accepted[chain] > 0))
    assert found.longest_run("theta") > 100
    assert [text.split()[0] for text in found.warnings] == ["theta", "u"]


@pytest.mark.parametrize("container", CONTAINERS)
def test_slice_sampling_does_not_stick(container):
    found = quietly(in_container(sampled("SS+SS"), container))
    assert found.warnings == []
    assert not found.table["stuck"].any()
    assert found.longest_run("theta") == found.longest_run("u") == 0
    assert (found.table["moved"] == 1.0).all()


def test_u_sticks_while_theta_moves():
    with pytest.warns(UserWarning, match="^u did not move"):
        found = apm.sticking(sampled("MI+SS"))
    assert found.longest_run("theta") == 0
    assert len(found.warnings) == 1


def test_one_chain():
    idata = as_idata({"x": np.random.default_rng(1).standard_normal((1, 200))})
    assert quietly(idata).longest_run("x") == 0


# Made-up chains


@pytest.mark.parametrize(
    "lengths, longest, start",
    [
        ([1, 1, 4, 1], 3, 2),  # in the middle
        ([5, 1, 1], 4, 0),  # at the start
        ([1, 1, 6], 5, 2),  # at the end
        ([7], 6, 0),  # nothing but
        ([1], 0, 0),  # a single draw
        ([3, 3, 3], 2, 0),  # the first of several
    ],
)
def test_the_longest_run(lengths, longest, start):
    found = quietly(as_idata({"x": [chain_of_holds(lengths)]}))
    row = found.table.loc[("x", 0)]
    assert (row["longest_run"], row["starts_at"]) == (longest, start)
    n_draws = sum(lengths)
    assert row["moved"] == pytest.approx((len(lengths) - 1) / (n_draws - 1) if n_draws > 1 else 1)
    assert row["ess_limit"] == pytest.approx(n_draws**2 / sum(n * n for n in lengths))


def test_an_array_has_moved_if_an_element_has():
    x = np.zeros((1, 50, 2))
    x[0, :, 1] = np.arange(50)
    assert quietly(as_idata({"x": x})).longest_run("x") == 0
    assert quietly(as_idata({"x": x}), coords={"x_dim_0": [0]}).longest_run("x") == 49


def test_u_that_was_held_from_the_start():
    accepted = np.ones((1, 100))
    accepted[0, :30] = 0.0
    idata = as_idata({"x": np.random.default_rng(1).random((1, 100))}, {"u_accepted": accepted})
    with pytest.warns(UserWarning, match="u did not move for 30 draws in a row in chain 0, 30%"):
        found = apm.sticking(idata)
    assert found.longest_run("u") == 30


def geometric_chains(acceptance, n_chains=4, n_draws=2000, seed=3):
    """Return chains that move with a constant chance, as an exact MH chain nearly does."""
    rng = np.random.default_rng(seed)
    chains = []
    for _ in range(n_chains):
        lengths = rng.geometric(acceptance, size=n_draws)
        chains.append(np.repeat(rng.standard_normal(n_draws), lengths)[:n_draws])
    return np.array(chains)


@pytest.mark.parametrize("acceptance", [0.9, 0.234, 0.1])
@pytest.mark.parametrize("seed", range(5))
def test_ordinary_rejections_are_not_sticking(acceptance, seed):
    assert quietly(as_idata({"x": geometric_chains(acceptance, seed=seed)})).warnings == []


def test_one_long_run_among_ordinary_ones_is():
    chains = geometric_chains(0.234)
    chains[2, 500:850] = chains[2, 500]
    with pytest.warns(UserWarning, match="x did not move for 3[45]. draws in a row in chain 2"):
        found = apm.sticking(as_idata({"x": chains}))
    assert found.table["stuck"].tolist() == [False, False, True, False]


def test_many_long_runs_are_not():
    """Slow is not stuck: ESS is small, but it is known."""
    assert quietly(as_idata({"x": geometric_chains(0.02, n_draws=50_000)})).warnings == []


def test_values_that_come_again_are_not_stuck():
    rng = np.random.default_rng(1)
    rare = (rng.random((2, 1000)) < 0.01).astype(float)  # an indicator, mostly zero
    posterior = {"rare": rare, "constant": np.full((2, 1000), 3.5)}
    found = quietly(as_idata(posterior, {"accepted": np.ones((2, 1000))}))
    assert found.longest_run("rare") > 100
    assert found.warnings == []


@pytest.mark.parametrize("n_chains", [1, 3])
def test_a_run_in_which_nothing_moved(n_chains):
    stuck = {"x": np.full((n_chains, 500), 0.3)}
    with pytest.warns(UserWarning, match="x did not move for 499 draws"):
        apm.sticking(as_idata(stuck, {"accepted": np.zeros((n_chains, 500))}))


def test_steps_that_leave_u_to_others():
    accepted = np.zeros((1, 100, 3))
    accepted[0, ::2, 1] = 1.0
    accepted[0, ::10, 2] = 1.0
    x = np.random.default_rng(1).random((1, 100))
    found = quietly(as_idata({"x": x}, {"u_accepted": accepted}))
    assert found.u_names == ["u[0]", "u[1]"]
    assert [found.longest_run(name) for name in found.u_names] == [1, 9]


def test_a_compound_step():
    with pm.Model():
        theta, other = pm.Normal("theta"), pm.Normal("other")
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", -((theta + u) ** 2))
        steps = [apm.APMEllipticalU(), apm.APMMetropolis([theta], u_update=None), pm.Slice([other])]
        options = {"chains": 2, "cores": 1, "random_seed": 1, "progressbar": False, "quiet": True}
        idata = pm.sample(draws=100, tune=50, step=steps, **options)
    found = quietly(idata)
    assert found.u_names == ["u"]
    assert found.longest_run("u") == 0
    assert apm.compare({"all": idata}).loc["all", "cost"] == np.sum(idata.sample_stats["n_evals"])


def test_a_parameter_called_u():
    x = np.random.default_rng(1).random((1, 100))
    found = quietly(as_idata({"u": x}, {"u_accepted": np.ones((1, 100))}))
    assert found.table.index.get_level_values("variable").tolist() == ["u", "u (randomness)"]


def test_how_it_reads():
    with pytest.warns(UserWarning):
        stuck = apm.sticking(as_idata({"x": [chain_of_holds([1] * 100 + [50] + [1] * 100)]}))
    assert "STUCK" in repr(stuck)
    assert "Warning: x did not move for 49 draws in a row in chain 0, 20% of the chain." in repr(
        stuck
    )
    assert "<table" in stuck._repr_html_() and "x did not move for 49" in stuck._repr_html_()
    fine = quietly(as_idata({"x": np.random.default_rng(1).random((1, 100))}))
    assert repr(fine).endswith("No chain sticks.")
    assert "STUCK" not in repr(fine)


# Bad input


@pytest.mark.parametrize(
    "idata, options, message",
    [
        (None, {}, "InferenceData or a DataTree with a group 'posterior', but got builtins.None"),
        ({"x": [1.0]}, {}, "but got builtins.dict"),
        (as_idata({"x": np.ones((1, 4))}), {"var_names": ["y"]}, "no variable 'y'; it has 'x'"),
        (as_idata({"x": np.ones((1, 4))}), {"var_names": []}, "none was named"),
        (as_idata({"x": np.ones((1, 4))}), {"coords": {"group": 1}}, "dimensions .* group"),
        (as_idata({"x": np.ones((1, 4, 2))}), {"coords": {"x_dim_0": [7]}}, "labels that are not"),
        (as_idata({"x": np.ones((1, 4))}), {"coords": {"chain": [0]}}, "idata.sel"),
        (as_idata({"x": np.ones((1, 4))}), {"coords": "chain"}, "coords must be a dict"),
    ],
)
def test_bad_input(idata, options, message):
    with pytest.raises(ModelError, match=message):
        apm.sticking(idata, **options)


def test_draws_that_are_not_in_their_order():
    idata = as_idata({"x": np.ones((2, 4))})
    averaged = type(idata).from_dict({"posterior": idata["posterior"].to_dataset().mean("draw")})
    with pytest.raises(ModelError, match="no dimension 'draw'"):
        apm.sticking(averaged)
