import warnings

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytest
from matplotlib.testing.compare import compare_images

import pymc_apm as apm
from pymc_apm.errors import ModelError
from pymc_apm.plots.autocorr import autocorrelation
from pymc_apm.plots.estimator import _plot_along, _plot_tail, _Slice
from tests.diagnostics.figures import BASELINE, FIGURES, made_up_run, save
from tests.diagnostics.models import black_box_model, cauchy_weights, normal_noise
from tests.diagnostics.runs import CONTAINERS, as_idata, in_container, sampled
from tests.models import PYTHON

matplotlib.use("Agg")

ROUGHLY = {"max_seconds": 0.2, "compile_kwargs": PYTHON}

TOLERANCE = 6.0
"""Root mean square of the differences between pixels, of 255."""


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def legend(axis):
    texts = [text.get_text() for text in axis.get_legend().get_texts()]
    return [*texts, axis.get_legend().get_title().get_text()]


# Images


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_looks_as_it_did(name, tmp_path):
    save(FIGURES[name](), tmp_path / "now.png")
    difference = compare_images(BASELINE / f"{name}.png", tmp_path / "now.png", tol=TOLERANCE)
    assert difference is None


@pytest.mark.parametrize("name", FIGURES)
def test_the_comparison_of_images_can_fail(name, tmp_path):
    save(FIGURES[name](seed=7), tmp_path / "now.png")
    assert compare_images(BASELINE / f"{name}.png", tmp_path / "now.png", tol=TOLERANCE)


# Traces


@pytest.mark.parametrize("container", CONTAINERS)
def test_stuck_runs_are_marked_where_they_are(container):
    idata = in_container(made_up_run(1, hold=150), container)
    axes = apm.plot_trace_sticking(idata, var_names="x", coords={"x_dim_0": 1})
    assert len(axes) == 3
    marks = [[line for line in axis.lines if line.get_linewidth() == 3] for axis in axes]
    assert [len(found) for found in marks] == [0, 1, 0]
    assert list(marks[1][0].get_xdata()) == [100, 249]
    bars = axes[1].collections[0].get_paths()[0].get_extents()
    assert (bars.x0, bars.x1) == (100, 250)
    assert axes[0].get_ylabel() == "x[1]\nchain 0"
    assert axes[-1].get_xlabel() == "draw after tuning"
    assert "parameter held for 20 draws or more (longest 149)" in legend(axes[0])
    assert "u held for 20 draws or more (longest 149)" in legend(axes[0])


def test_shorter_runs_can_be_marked():
    idata = as_idata({"x": [np.repeat(np.arange(30.0), 5)]})
    axis = apm.plot_trace_sticking(idata, min_run=4)
    assert sum(line.get_linewidth() == 3 for line in axis.lines) == 30
    assert not any("u held" in text for text in legend(axis))


def test_too_many_traces():
    with pytest.raises(ModelError, match="40 traces to plot, more than 12: choose some"):
        apm.plot_trace_sticking(as_idata({"x": np.ones((2, 10, 20))}))


# Autocorrelation


def test_autocorrelation_of_a_known_process():
    x = np.asarray(made_up_run(1, 0.9, n_chains=4, n_draws=20_000)["posterior"]["x"])
    curve = autocorrelation(x).mean(axis=0)
    np.testing.assert_allclose(curve[[0, 1, 5, 20]], [1.0, 0.9, 0.9**5, 0.9**20], atol=0.03)


@pytest.mark.parametrize("container", CONTAINERS)
def test_autocorrelation_is_stretched_by_cost(container):
    run = in_container(made_up_run(1), container)
    axis = apm.plot_cost_autocorr({"fast": run}, var_names=["x"], max_cost=60)
    per_draw = np.mean(np.asarray(run["sample_stats"]["n_evals"]))
    np.testing.assert_allclose(np.diff(axis.lines[0].get_xdata()), per_draw)
    assert axis.get_xlabel() == "lag, in estimates computed"
    assert axis.get_ylabel() == "autocorrelation of x, mean of 2 elements"
    assert legend(axis) == [
        f"fast, {per_draw:.3g} per draw",
        "bands: 2 standard errors over chains",
    ]
    assert axis.get_xlim() == (0, 60)


def test_one_chain_has_no_band():
    axis = apm.plot_cost_autocorr(made_up_run(1, n_chains=1))
    assert len(axis.collections) == 0
    assert "bands" not in legend(axis)[-1]
    assert len(apm.plot_cost_autocorr(made_up_run(1, n_chains=2)).collections) == 1


def test_the_style_of_a_curve():
    axis = apm.plot_cost_autocorr({"a": made_up_run(1)}, a={"color": "red", "label": "mine"})
    assert axis.lines[0].get_color() == "red"
    assert legend(axis)[0] == "mine"
    with pytest.raises(ModelError, match="Styles are given for b"):
        apm.plot_cost_autocorr({"a": made_up_run(1)}, b={"color": "red"})


# The estimator


def test_the_estimator_along_a_parameter():
    axes = apm.plot_estimator(
        normal_noise(0.5), points={"theta": 1.0}, draws=2000, random_seed=1, compile_kwargs=PYTHON
    )
    mean = next(line for line in axes[0].lines if line.get_label() == "log of the mean estimate")
    theta = mean.get_xdata()
    assert (theta[0], theta[-1]) == (0.0, 2.0)
    np.testing.assert_allclose(mean.get_ydata(), -0.5 * theta**2, atol=0.15)
    assert [axis.get_xlabel() for axis in axes] == [
        "theta",
        "log-estimate, log f_hat",
        "estimate over its mean, f_hat / mean",
    ]
    assert "b. over u: sd 0.5" in axes[1].get_title(loc="left")
    assert "light enough" in axes[2].get_title(loc="left")


def test_a_heavy_tail():
    axes = apm.plot_estimator(cauchy_weights(), points={"theta": 1.0}, random_seed=1)
    assert "c. tail: heavy" in axes[2].get_title(loc="left")


def test_an_element_of_a_parameter_with_coordinates():
    with pm.Model(coords={"group": ["a", "b"]}) as model:
        theta = pm.HalfNormal("theta", dims="group")
        apm.Potential("log_lik", theta.sum() * apm.StandardNormal("u"))
    options = {"draws": 100, "random_seed": 1, **ROUGHLY}
    axes = apm.plot_estimator(model, coords={"group": "b"}, **options)
    assert axes[0].get_xlabel() == "theta[b]"
    for wrong, message in [
        ({"group": "c"}, "one element along 'group'"),
        ({"x": 1}, "no dimension"),
    ]:
        with pytest.raises(ModelError, match=message):
            apm.plot_estimator(model, coords=wrong, **options)
    with pytest.raises(ModelError, match="one parameter of the model, of theta"):
        apm.plot_estimator(model, var_names="mu", **options)
    # Out of the support of theta, to the left, there is nothing to plot.
    axes = apm.plot_estimator(model, points={"theta": np.array([0.5, 1.0])}, **options)
    assert axes[0].lines[0].get_xdata().min() >= 0.0


def test_the_estimator_of_a_run_and_of_a_black_box():
    axes = apm.plot_estimator(black_box_model(apm.Seed), draws=100, random_seed=1)
    assert axes[0].get_xlabel() == "theta"
    from tests.steps.models import toy_gaussian

    axes = apm.plot_estimator(toy_gaussian(8), sampled("SS+SS"), draws=100, random_seed=1)
    assert axes[0].get_xlabel() == "theta[0]"


def test_estimates_of_zero_count_in_means():
    """Of estimates that are zero three times in four, the mean is a quarter of that of the others.

    So what is largest is larger by that, over the mean, and the shares above are smaller.
    """
    logs = np.random.default_rng(1).normal(0.0, 0.1, size=1000)
    with_zeros = np.concatenate([logs, np.full(3000, -np.inf)])
    _, axes = plt.subplots(2, 2)
    found = []
    for row, log_estimates in zip(axes, (logs, with_zeros), strict=True):
        both = np.column_stack([log_estimates, log_estimates])
        _plot_along(row[0], _Slice(np.array([0.0, 1.0]), both, "x", 0.0))
        _plot_tail(row[1], log_estimates)
        (mean,) = (line for line in row[0].lines if line.get_label() == "log of the mean estimate")
        found.append((mean.get_ydata(), *row[1].lines[0].get_data()))
    (mean, over_mean, above), (with_zeros_mean, with_zeros_over_mean, with_zeros_above) = found
    np.testing.assert_allclose(with_zeros_mean, mean - np.log(4.0))
    np.testing.assert_allclose(with_zeros_over_mean[-500:], over_mean[-500:] * 4.0)
    np.testing.assert_allclose(with_zeros_above[-500:], above[-500:] / 4.0)


def test_an_estimate_without_noise():
    with pytest.raises(ModelError, match="does not vary with u"):
        apm.plot_estimator(normal_noise(0.0), draws=100, random_seed=1, compile_kwargs=PYTHON)


# Acceptance


@pytest.mark.parametrize("container", CONTAINERS)
def test_acceptance_by_step_size(container):
    sweep = {s: in_container(made_up_run(1, hold=h), container) for s, h in [(2.0, 300), (0.5, 0)]}
    axes = apm.plot_acceptance(sweep, var_names="x", cost="n_evals")
    assert axes[0].lines[0].get_xdata().tolist() == [0.5, 2.0]
    rates = [float(np.mean(np.asarray(sweep[s]["sample_stats"]["accepted"]))) for s in (0.5, 2.0)]
    np.testing.assert_allclose(axes[0].lines[0].get_ydata(), rates)
    assert axes[1].get_ylabel() == "ESS of x per estimate computed"
    assert "0.234, optimal for random walks" in legend(axes[0])


def test_acceptance_of_methods():
    run = made_up_run(1)
    axes = apm.plot_acceptance({"PM MH": {0.1: run}, "MI+MH": {0.1: run, 0.2: run}})
    assert legend(axes[1])[:2] == ["PM MH", "MI+MH"]


@pytest.mark.parametrize(
    "runs, message",
    [
        ({}, "needs runs by step size"),
        (made_up_run(1), "needs runs by step size"),
        ({"a": made_up_run(1)}, "step size must be a number, got 'a'"),
        ({"a": {}}, "no runs of 'a'"),
        ({0.1: 7}, "but got builtins.int"),
    ],
)
def test_bad_sweeps(runs, message):
    with pytest.raises(ModelError, match=message):
        apm.plot_acceptance(runs)


# Comparison


@pytest.mark.parametrize("container", CONTAINERS)
def test_comparison(container):
    runs = {"good": made_up_run(1), "bad": made_up_run(2, hold=200)}
    runs = {name: in_container(idata, container) for name, idata in runs.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        axes = apm.plot_compare(runs)
    assert [label.get_text() for label in axes[0].get_yticklabels()] == ["good", "bad"]
    assert "the same, not to be believed: it sticks" in legend(axes[0])
    assert [axis.get_xlabel() for axis in axes] == [
        "ESS (bulk) per 1000 estimates computed",
        "acceptance rate",
        "longest run without a move (draws)",
    ]
    texts = [text.get_text() for text in axes[2].texts]
    assert texts == ["0", "199", "0", "199"]


def test_a_comparison_in_which_nothing_sticks():
    axes = apm.plot_compare({"good": made_up_run(1)})
    assert not any("not to be believed" in text for text in legend(axes[0]))


# Axes


DRAWINGS = {
    "trace": (lambda **options: apm.plot_trace_sticking(made_up_run(1), **options), 6),
    "autocorr": (lambda **options: apm.plot_cost_autocorr(made_up_run(1), **options), 1),
    "acceptance": (lambda **options: apm.plot_acceptance({0.1: made_up_run(1)}, **options), 2),
    "compare": (lambda **options: apm.plot_compare(made_up_run(1), **options), 3),
    "estimator": (
        lambda **options: apm.plot_estimator(
            normal_noise(), draws=50, random_seed=1, **ROUGHLY, **options
        ),
        3,
    ),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_axes_in_and_axes_out(name):
    draw, n_axes = DRAWINGS[name]
    _, axes = plt.subplots(n_axes, squeeze=False)
    given = axes[:, 0] if n_axes > 1 else axes[0, 0]
    returned = draw(ax=given)
    assert list(np.ravel(np.asarray(returned, dtype=object))) == list(axes[:, 0])
    for axis in axes[:, 0]:
        assert axis.get_xlabel() or axis is not axes[-1, 0]
    with pytest.raises(ModelError, match=f"ax must be {n_axes} matplotlib axes"):
        draw(ax=plt.subplots(7)[1])
    with pytest.raises(ModelError, match="either ax or figsize"):
        draw(ax=given, figsize=(3, 3))
    figure = np.ravel(np.asarray(draw(figsize=(5, 4)), dtype=object))[0].figure
    assert figure.get_size_inches().tolist() == [5.0, 4.0]


@pytest.mark.parametrize("name", ["trace", "autocorr", "compare"])
def test_bad_input(name):
    draw = {
        "trace": apm.plot_trace_sticking,
        "autocorr": apm.plot_cost_autocorr,
        "compare": apm.plot_compare,
    }[name]
    with pytest.raises(ModelError, match=r"but got builtins\.int"):
        draw(7)
    with pytest.raises(ModelError, match="no variable 'y'"):
        draw(made_up_run(1), var_names="y")
    with pytest.raises(ModelError, match="dimensions that the posterior does not have: group"):
        draw(made_up_run(1), coords={"group": 1})
