"""Which part of u feeds which factor: what is proved, and that nothing is proved that is wrong."""

import time
import warnings

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.raise_op import Assert
from pytensor.tensor.extra_ops import CumOp

import pymc_apm as apm
from pymc_apm.density import labels
from pymc_apm.density.factors import find_factors, unsummed
from pymc_apm.density.staging import Term, _simplify
from pymc_apm.density.target import Target

N, G = 6, 4
"""Samples and groups."""

GROUP = np.array([0, 0, 1, 1, 1, 2, 3, 3])
"""The groups of observations."""

Y = np.array([1, 2, 0, 1, 3, 2, 1, 0])
MEMBERSHIP = np.eye(G)[GROUP]
BY_COLUMN = np.tile(np.arange(G), N)
BY_ROW = np.repeat(np.arange(G), N)
ONE = np.zeros(N * G, dtype=int)


def new_inputs():
    """Return u, as a flat vector, and theta."""
    return pt.vector("u", shape=(N * G,)), pt.vector("theta", shape=(G,))


def rewritten(outputs, inputs):
    """Put a graph into the form that it is cut in."""
    graph = FunctionGraph(list(inputs), list(outputs), clone=False)
    rewrite_graph(graph, include=("canonicalize", "stabilize"), clone=False)
    return graph.outputs


def refute(found, outputs, u, theta, seed=0):
    """Fail if an element of the outputs changes with an element of u that is not of its factor.

    Returns which element of the outputs reacts to which element of u.
    """
    with pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""):
        function = pytensor.function([u, theta], outputs, on_unused_input="ignore")
    rng = np.random.default_rng(seed)
    size = u.type.shape[0]

    def evaluate(value):
        with np.errstate(all="ignore"):
            return np.concatenate([np.ravel(r) for r in function(value, parameters)])

    parameters = rng.uniform(0.2, 0.8, theta.type.shape[0])
    reacts = None
    for _ in range(5):
        at = rng.uniform(0.05, 0.95, size)
        before = evaluate(at)
        if reacts is None:
            reacts = np.zeros((len(before), size), dtype=bool)
        for place in range(size):
            changed = at.copy()
            changed[place] = rng.uniform(0.05, 0.95)
            after = evaluate(changed)
            reacts[:, place] |= ~((after == before) | (np.isnan(after) & np.isnan(before)))
    if found is not None:
        of_outputs = np.concatenate(found.of_outputs)
        assert of_outputs.shape == (len(reacts),)
        assert found.of_u.shape == (size,)
        assert found.of_u.min() == 0
        assert found.of_u.max() < found.n_factors
        wrong = reacts & (of_outputs[:, None] != found.of_u)
        assert not wrong.any(), np.argwhere(wrong)
    return reacts


def ways(build, check=True):
    """Find the factors of a graph as it is written, and after rewrites; check both."""
    u, theta = new_inputs()
    outputs = build(u, theta)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    found = find_factors(outputs, u)
    if check:
        refute(found, outputs, u, theta)
    again = rewritten(outputs, [u, theta])
    after = find_factors(again, u)
    if check:
        refute(after, again, u, theta)
    return found, after


# What is proved


def log_mean(log_weights):
    return apm.estimators.log_mean_exp(log_weights, axis=0)


def columns(u):
    return u.reshape((N, G))


def normal(x, theta):
    return -0.5 * ((x - theta[0]) / pt.exp(theta[1])) ** 2


def segments(u, theta):
    log_p = normal(columns(u)[:, GROUP], theta)
    return log_mean(pt.inc_subtensor(pt.zeros((N, G))[:, GROUP], log_p))


def segments_one_axis(u, theta):
    log_p = normal(columns(u).T[GROUP], theta)
    return log_mean(pt.zeros((G, N))[GROUP].inc(log_p).T)


def padded(u, theta, mask):
    index = np.array([[0, 1, 0], [2, 3, 4], [5, 0, 0], [6, 7, 0]])
    log_p = normal(columns(u)[:, GROUP], theta)[:, index]
    keep = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]])
    log_p = pt.switch(keep, log_p, 0.0) if mask == "switch" else keep * log_p
    return log_mean(log_p.sum(axis=-1))


def inner_graph(u, theta):
    x, t = pt.matrix("x", shape=(N, G)), pt.scalar("t")
    return OpFromGraph([x, t], [pt.logsumexp(x * t, axis=0)])(columns(u), theta[0])


def quickstart(u, theta):
    logit_p = theta[GROUP] + theta[3] * columns(u)[:, GROUP]
    log_p = pm.logp(pm.Binomial.dist(n=np.full(8, 9), logit_p=logit_p), Y)
    return log_mean(pt.dot(log_p, MEMBERSHIP))


def by_quantiles(u, theta):
    x = pm.icdf(pm.Normal.dist(theta, 1.0), columns(u))
    return log_mean(pm.logp(pm.Poisson.dist(pt.exp(x)), np.array([1, 0, 3, 2])))


def in_pairs(u, theta):
    x = pt.concatenate([columns(u), -columns(u)])
    return log_mean(normal(x, theta))


def mv_normal(u, theta):
    """Two latent variables a group, with a matrix for all groups."""
    cov = pt.stack([pt.stack([1.0, theta[0]]), pt.stack([theta[0], 1.0])])
    chol = pt.linalg.cholesky(cov)
    z = u.reshape((N // 2, G, 2))
    by_dot, by_sum = pt.dot(z, chol.T), (chol * z[..., None, :]).sum(axis=-1)
    return log_mean(normal(by_dot, theta).sum(axis=-1) + by_sum.prod(axis=-1))


def looked_up(u, theta, axis):
    """Look elements up along an axis for one sample, and then for all of them."""
    x = pt.vector("x", shape=(G,))
    log_p = pt.special.log_softmax(x[:, None] * np.array([1.0, -2.0, 0.5]), axis=-1)
    places = np.array([[0], [2], [1], [1]]) if axis == 1 else np.array([[1, 3, 0], [3, 3, 2]])
    found = pt.take_along_axis(log_p, pt.as_tensor(places), axis=axis) * theta[0]
    return vectorize_graph(found, {x: columns(u)})[..., 0].max(axis=0)


TWO_EACH = np.tile(np.repeat(np.arange(G), 2), N // 2)

PROVED = {
    "columns": (lambda u, t: pt.logsumexp(normal(columns(u), t), axis=0), BY_COLUMN),
    "rows": (lambda u, t: pt.logsumexp(normal(u.reshape((G, N)), t), axis=1), BY_ROW),
    "log_mean_exp": (lambda u, t: log_mean(normal(columns(u), t)), BY_COLUMN),
    "naive": (lambda u, t: pt.log(pt.exp(normal(columns(u), t)).mean(axis=0)), BY_COLUMN),
    "theta of groups": (lambda u, t: log_mean(columns(u) * t + pt.sum(t)), BY_COLUMN),
    "membership": (
        lambda u, t: log_mean(pt.dot(normal(columns(u)[:, GROUP], t), MEMBERSHIP)),
        BY_COLUMN,
    ),
    "membership from the left": (
        lambda u, t: pt.logsumexp(pt.dot(MEMBERSHIP.T, columns(u).T[GROUP]), axis=1),
        BY_COLUMN,
    ),
    "membership of batches": (
        lambda u, t: log_mean(pt.matmul(columns(u)[:, None, GROUP], MEMBERSHIP[None])[:, 0]),
        BY_COLUMN,
    ),
    "tensordot": (
        lambda u, t: log_mean(pt.tensordot(columns(u)[:, GROUP], MEMBERSHIP, axes=[[1], [0]])),
        BY_COLUMN,
    ),
    "einsum": (
        lambda u, t: log_mean(pt.einsum("so,og->sg", columns(u)[:, GROUP], MEMBERSHIP)),
        BY_COLUMN,
    ),
    "quickstart": (quickstart, BY_COLUMN),
    "segment sums": (segments, BY_COLUMN),
    "segment sums along one axis": (segments_one_axis, BY_COLUMN),
    "padded, switch": (lambda u, t: padded(u, t, "switch"), BY_COLUMN),
    "padded, product": (lambda u, t: padded(u, t, "product"), BY_COLUMN),
    "uniform by erfinv": (
        lambda u, t: log_mean(t[0] * pt.erfinv(2.0 * columns(u) - 1.0)),
        BY_COLUMN,
    ),
    "uniform by icdf": (by_quantiles, BY_COLUMN),
    "antithetic": (in_pairs, BY_COLUMN),
    "vectors of each group": (mv_normal, TWO_EACH),
    "two vectors": (
        lambda u, t: (log_mean(columns(u) * t), log_mean(columns(u)[:3] ** 2)),
        BY_COLUMN,
    ),
    "two vectors that overlap": (
        lambda u, t: (u[::2] * t[0], u[:12].reshape((6, 2)).sum(axis=1)),
        np.r_[np.repeat(np.arange(6), 2), [v for g in range(6, 12) for v in (g, 0)]],
    ),
    "a group that feeds nothing": (
        lambda u, t: columns(u)[:, [0, 2, 3]].sum(axis=0),
        np.tile([0, 0, 1, 2], N),
    ),
    "all elements by themselves": (lambda u, t: pt.exp(u) * t[0], np.arange(N * G)),
    "softmax of samples": (lambda u, t: pt.special.softmax(columns(u), axis=0)[0], BY_COLUMN),
    "log_softmax of samples": (
        lambda u, t: pt.special.log_softmax(columns(u), axis=0).min(axis=0),
        BY_COLUMN,
    ),
    "sorted samples": (lambda u, t: pt.sort(columns(u), axis=0)[2], BY_COLUMN),
    "order of samples": (lambda u, t: pt.argsort(columns(u), axis=0) * t[0], BY_COLUMN),
    "running sum of samples": (lambda u, t: pt.cumsum(columns(u), axis=0), BY_COLUMN),
    "best sample": (lambda u, t: pt.argmax(columns(u), axis=0) + columns(u).max(0), BY_COLUMN),
    "spread of samples": (lambda u, t: columns(u).var(axis=0) / t, BY_COLUMN),
    "stacked": (
        lambda u, t: pt.stack([columns(u)[:, g].sum() * t[g] for g in range(G)]),
        BY_COLUMN,
    ),
    "split": (
        lambda u, t: pt.stack([p.sum() for p in pt.split(u, splits_size=[N] * G, n_splits=G)]),
        BY_ROW,
    ),
    "set": (
        lambda u, t: pt.set_subtensor(columns(u)[:, ::-1][:], t * columns(u)).sum(axis=0),
        BY_COLUMN,
    ),
    "diagonal": (
        lambda u, t: pt.diagonal(u[:16].reshape((4, 4))) * t,
        np.r_[0, ONE[:4], 1, ONE[:4], 2, ONE[:4], 3, ONE[:8]],
    ),
    "mask": (
        lambda u, t: columns(u)[:, np.array([True, False, True, True])].sum(axis=0),
        np.tile([0, 0, 1, 2], N),
    ),
    "inner graph": (inner_graph, BY_COLUMN),
    "blocks": (
        lambda u, t: pt.linalg.det(u.reshape((G, 3, 2)) @ u.reshape((G, 2, 3)) + pt.eye(3)),
        BY_ROW,
    ),
    "looked up in each group": (lambda u, t: looked_up(u, t, 1), BY_COLUMN),
    "looked up in other groups": (
        lambda u, t: looked_up(u, t, 0),
        np.tile([0, 0, 0, 1], N),  # of the first column alone, where groups 1 and 3 are wanted
    ),
    "filled": (lambda u, t: log_mean(pt.zeros_like(columns(u)) + columns(u) * t), BY_COLUMN),
    "assertion": (
        lambda u, t: Assert("positive")(columns(u), pt.all(u > 0.0)).sum(axis=0),
        BY_COLUMN,
    ),
}


@pytest.mark.parametrize("name", PROVED)
def test_factors_are_found_before_and_after_rewrites(name):
    build, expected = PROVED[name]
    for found in ways(build):
        assert found is not None
        np.testing.assert_array_equal(found.of_u, expected)
        assert found.n_factors == expected.max() + 1


def test_vectors_name_the_factors_of_their_entries():
    build = PROVED["two vectors"][0]
    for found in ways(lambda u, t: (*build(u, t), t[0] + t)):
        assert [of.tolist() for of in found.of_outputs] == [[0, 1, 2, 3], [0, 1, 2, 3], [-1] * 4]


# The estimators of the package


def importance_model(antithetic):
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
        counts = np.array([3, 0, 8, 2])
        apm.estimators.importance(
            "log_lik",
            lambda x: (
                pm.logp(pm.Normal.dist(mu, sigma), x)
                + pm.logp(pm.Poisson.dist(pm.math.exp(x)), counts)
            ),
            pm.StudentT.dist(nu=5, mu=mu + np.zeros(4), sigma=sigma),
            samples=6,
            antithetic=antithetic,
        )
    return model


def laplace_model(size, samples, defensive):
    with pm.Model() as model:
        beta, sd = pm.Normal("beta"), pm.HalfNormal("sd")

        def log_lik(f):
            effects = f[GROUP] if size == 1 else f[GROUP, 0] + np.linspace(-1, 1, 8) * f[GROUP, 1]
            return pm.logp(pm.Poisson.dist(pt.exp(beta + effects)), Y)

        apm.estimators.laplace_importance(
            "log_lik",
            log_lik,
            sd**2 if size == 1 else sd**2 * np.eye(2),
            groups=GROUP,
            samples=samples,
            defensive=defensive,
            reference={"beta": 0.3, "sd": 0.5},
        )
    return model


MODELS = {
    "importance": lambda: importance_model(False),
    "importance, antithetic": lambda: importance_model(True),
    "laplace": lambda: laplace_model(1, 4, False),
    "laplace, odd and defensive": lambda: laplace_model(1, 5, True),
    "laplace, two effects": lambda: laplace_model(2, 4, True),
}


@pytest.mark.parametrize("name", MODELS)
def test_estimators_have_a_factor_for_each_group(name):
    model = MODELS[name]()
    target = Target(model, model.value_vars, model.initial_point())
    (randomness,) = target.randomness
    u = target.inputs[randomness.name]
    values = target._as_functions_of_inputs(model.replace_rvs_by_values(model.potentials))
    shape = randomness.type.shape
    in_order = np.arange(G).reshape((1, G) + (1,) * (len(shape) - 2))
    expected = np.broadcast_to(in_order, shape).ravel()
    before = find_factors(values, u)
    _, terms, _ = _simplify([Term("estimate", value) for value in values], target.inputs, [])
    after = find_factors([term.value for term in terms], u)
    for found in (before, after):
        np.testing.assert_array_equal(found.of_u, expected)
        assert found.of_outputs[0].tolist() == [0, 1, 2, 3]


# What mixes


def scanned(u, t):
    def step(row, before):
        return 0.5 * before + row.sum()

    result = pytensor.scan(
        step, sequences=[columns(u).T], outputs_info=[pt.zeros(())], return_updates=False
    )
    return pt.specify_shape(result, (G,))


def through_a_branch(u, t):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTensor 3 has it elsewhere
        from pytensor.ifelse import ifelse

    return ifelse(pt.gt(u[0], 0.5), columns(u).sum(axis=0), columns(u)[0] * t)


class ReverseOp(pytensor.graph.op.Op):
    """An op of which nothing is known."""

    __props__ = ()

    def make_node(self, x):
        return pytensor.graph.basic.Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0][:, ::-1].copy()


def mixing_inner_graph(u, t):
    x = pt.matrix("x", shape=(N, G))
    return OpFromGraph([x], [pt.cumsum(x, axis=1).sum(axis=0)])(columns(u))


MIXED = {
    "sum": lambda u, t: columns(u).sum(axis=0) + u.sum(),
    "mean": lambda u, t: columns(u)[0] - u.mean(),
    "centred": lambda u, t: (columns(u) - columns(u).mean(axis=1, keepdims=True)).prod(axis=0),
    "maximum": lambda u, t: columns(u).sum(axis=0) * u.max(),
    "product": lambda u, t: columns(u).sum(axis=0) + u.prod(),
    "any": lambda u, t: columns(u).sum(axis=0) + pt.any(u[:3] > 0.6),
    "sorted groups": lambda u, t: pt.sort(columns(u), axis=1).sum(axis=0),
    "sorted all": lambda u, t: pt.sort(u)[: G * N].reshape((N, G)).sum(axis=0),
    "ranks of groups": lambda u, t: columns(u).sum(0) + pt.argsort(columns(u), axis=1).sum(0),
    "running sum of groups": lambda u, t: pt.cumsum(columns(u), axis=1).sum(axis=0),
    "running sum of all": lambda u, t: pt.cumsum(u).reshape((N, G)).sum(axis=0),
    "running product": lambda u, t: pt.cumprod(columns(u), axis=1)[-1],
    "differences": lambda u, t: pt.concatenate(
        [columns(u)[:, :1], pt.diff(columns(u), axis=1)], axis=1
    ).sum(axis=0),
    "rolled": lambda u, t: (columns(u) * pt.roll(columns(u), 1, axis=1)).sum(axis=0),
    "reversed": lambda u, t: (
        (columns(u) * columns(u)[:, ::-1] * t).sum(axis=0)
        + columns(u)[0] * columns(u)[0, [1, 2, 3, 0]]
    ),
    "matrix product over groups": lambda u, t: pt.dot(columns(u), np.ones((G, G))).sum(axis=0),
    "triangular constant": lambda u, t: pt.dot(columns(u), np.tri(G)).sum(axis=0),
    "nearly diagonal": lambda u, t: pt.dot(columns(u), np.eye(G) + np.eye(G, k=1) * 1e-8).sum(0),
    "matrix of parameters": lambda u, t: pt.dot(columns(u), pt.diag(t) + t[0]).sum(axis=0),
    "two matrices of u": lambda u, t: pt.dot(columns(u).T, columns(u)).sum(axis=0),
    "batches of products": lambda u, t: (columns(u)[:, None] @ pt.outer(t, t)).sum(axis=(0, 1)),
    "tensordot": lambda u, t: pt.tensordot(columns(u), pt.outer(t, t), axes=[[1], [0]]).sum(0),
    "einsum": lambda u, t: pt.einsum("sg,gh->h", columns(u), pt.outer(t, t)),
    "indexed by a parameter": lambda u, t: (
        columns(u).sum(0)
        + columns(u)[0, pt.cast(pt.floor(4 * t), "int64")]
        + columns(u)[1, pt.cast(pt.floor(4 * t[::-1]) % 4, "int64")]
    ),
    "indexed by u": lambda u, t: columns(u)[0, pt.cast(pt.floor(4 * columns(u)[1]), "int64")],
    "position found in u": lambda u, t: columns(u).sum(axis=0) + columns(u)[pt.argmax(u) % N],
    "slice bound of u": lambda u, t: (
        pt.zeros(G) + columns(u)[: pt.cast(1 + 5 * u[0], "int64")].sum(axis=0) + columns(u)[3]
    ),
    "written where a parameter says": lambda u, t: (
        pt.inc_subtensor(
            pt.zeros(G)[pt.cast(pt.floor(4 * t[[0, 0, 1, 1]]), "int64")], columns(u)[0]
        )
        + pt.roll(columns(u)[0], 1)
    ),
    "wrong group numbers": lambda u, t: (
        pt.zeros((N, G))[:, np.array([0, 1, 1, 2, 3, 2, 0, 3])]
        .inc(columns(u)[:, GROUP])
        .sum(axis=0)
    ),
    "shifted membership": lambda u, t: pt.dot(
        columns(u)[:, GROUP], np.eye(G)[np.roll(GROUP, 1)]
    ).sum(axis=0),
    "scan": scanned,
    "branch on u": through_a_branch,
    "switch on u": lambda u, t: pt.switch(u[0] > 0.5, columns(u)[1], columns(u)[2] * t),
    "softmax of groups": lambda u, t: pt.special.softmax(columns(u), axis=1).sum(axis=0),
    "log_softmax of groups": lambda u, t: pt.special.log_softmax(columns(u), axis=1).sum(axis=0),
    "logsumexp of groups": lambda u, t: (
        columns(u) - pt.logsumexp(columns(u), axis=1, keepdims=True)
    ).sum(axis=0),
    "norm": lambda u, t: (columns(u) / pt.sqrt((u**2).sum())).sum(axis=0),
    "linear system": lambda u, t: pt.linalg.solve(pt.eye(G) * 4 + columns(u)[:4], columns(u)[4]),
    "cholesky": lambda u, t: pt.linalg.cholesky(pt.dot(columns(u).T, columns(u)) + pt.eye(G)).sum(
        axis=0
    ),
    "inverse of parameters": lambda u, t: pt.dot(
        pt.linalg.inv(pt.eye(G) + pt.outer(t, t)), columns(u).T
    ).sum(axis=1),
    "transposed as if not": lambda u, t: (
        columns(u)[:4].T.reshape((16,)).reshape((8, 2)).sum(0) * u[16]
    ),
    "reshaped the wrong way": lambda u, t: columns(u).sum(axis=0) + u.reshape((G, N)).sum(axis=1),
    "flattened and cut": lambda u, t: (
        columns(u)[:, ::-1].ravel()[: 3 * G].reshape((G, 3)).sum(1) + columns(u)[0]
    ),
    "an op without a rule": lambda u, t: (
        (ReverseOp()(columns(u)) + columns(u))[:, 1:].sum(axis=0) * u[3]
    ),
    "mixing inner graph": mixing_inner_graph,
    "median": lambda u, t: columns(u).sum(axis=0) + pt.sort(u)[12],
    "searchsorted": lambda u, t: columns(u).sum(0) + pt.searchsorted(pt.sort(u[:6]), columns(u)[2]),
    "quantile residual": lambda u, t: (columns(u) - pt.sort(u)[::6]).sum(axis=0),
    "convolution": lambda u, t: sum(
        columns(u)[:, i : i + 2].sum() * np.eye(G)[i] for i in range(G)
    ),
    "scalar": lambda u, t: (columns(u) * t).sum(),
    "a scalar beside a vector": lambda u, t: (columns(u).sum(axis=0), pt.log(pt.exp(u).sum())),
}


@pytest.mark.parametrize("name", MIXED)
def test_what_mixes_is_one_factor(name):
    u, theta = new_inputs()
    outputs = MIXED[name](u, theta)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    found = find_factors(outputs, u)
    reacts = refute(found, outputs, u, theta)
    # The graph does mix: some entry reacts to parts of u of several groups.
    groups = [set(BY_COLUMN[row]) for row in reacts]
    assert any(len(group) > 1 for group in groups)
    again = rewritten(outputs, [u, theta])
    after = find_factors(again, u)
    refute(after, again, u, theta)
    for result in (found, after):
        assert result is None or result.n_factors < G


def test_there_are_enough_graphs_that_mix():
    assert len(MIXED) >= 30


# Random graphs


def random_graph(seed):
    """Return a vector that is made from u by some operations, chosen at random."""
    rng = np.random.default_rng(seed)
    u, theta = new_inputs()
    pool = [u.reshape((N, G))]
    order = rng.permutation(G)

    def pick():
        return pool[rng.integers(len(pool))]

    def some_matrix():
        return np.where(rng.random((G, G)) < 0.3, rng.normal(size=(G, G)), 0.0)

    operations = [
        lambda: pt.exp(-pick()) * theta,
        lambda: pick() + theta[0],
        lambda: pick() * pick(),
        lambda: pt.switch(rng.random((N, G)) < 0.5, pick(), pick()),
        lambda: (rng.random((N, G)) < 0.7) * pick(),
        lambda: pick() - pick().mean(axis=0),
        lambda: pt.dot(pick(), some_matrix()),
        lambda: pick()[:, order],
        lambda: pick()[rng.permutation(N)],
        lambda: pt.concatenate([pick()[:2], pick()[2:]]),
        lambda: pt.concatenate([pick()[:, :1], pick()[:, 1:]], axis=1),
        lambda: pt.set_subtensor(pick()[:, int(rng.integers(G))], pick()[:, 0]),
        lambda: pt.inc_subtensor(pick()[int(rng.integers(N))], pick()[1]),
        lambda: pt.zeros((N, G))[:, rng.integers(G, size=G)].inc(pick()),
        lambda: pt.cumsum(pick(), axis=0),
        lambda: pt.sort(pick(), axis=0),
        lambda: pt.special.softmax(pick(), axis=0),
        lambda: pt.maximum(pick(), 0.1 * pick()),
        lambda: pick().T.reshape((G, N)).T,
        lambda: pt.stack([pick()[:, g] for g in range(G)], axis=1),
        lambda: pt.second(pick(), pick()[:1]),
    ]
    rare = [
        lambda: pt.cumsum(pick(), axis=1),
        lambda: pt.sort(pick(), axis=1),
        lambda: pick().reshape((G, N)).reshape((N, G)) + pick().T.reshape((N, G)),
        lambda: pick() / (1.0 + pick()[0, 0] ** 2),
    ]
    for _ in range(rng.integers(2, 9)):
        chosen = rare if rng.random() < 0.04 else operations
        pool.append(chosen[rng.integers(len(chosen))]())
    made = pool[-1]
    outputs = [pt.logsumexp(made, axis=0)]
    if rng.random() < 0.3:
        outputs.append(pick())
    if rng.random() < 0.3:
        outputs[0] = pt.dot(pt.exp(made), np.eye(G)[order]).sum(axis=0)
    return u, theta, outputs


N_RANDOM = 80


def test_random_graphs_are_not_split_too_finely():
    n_split = 0
    for seed in range(N_RANDOM):
        u, theta, outputs = random_graph(seed)
        found = find_factors(outputs, u)
        reacts = refute(found, outputs, u, theta, seed)
        after = find_factors(rewritten(outputs, [u, theta]), u)
        of_outputs = np.concatenate(after.of_outputs)
        assert not (reacts & (of_outputs[:, None] != after.of_u)).any(), seed
        assert after.n_factors >= found.n_factors, seed
        n_split += found.n_factors > 1
    assert N_RANDOM / 4 < n_split < N_RANDOM


def test_a_wrong_rule_is_noticed(monkeypatch):
    right = labels.rule

    def wrong(op, node, walk):
        if isinstance(op, CumOp):
            return [walk.labels_of(node.inputs[0])]
        return right(op, node, walk)

    monkeypatch.setattr(labels, "rule", wrong)
    u, theta = new_inputs()
    outputs = [MIXED["running sum of groups"](u, theta)]
    found = find_factors(outputs, u)
    assert found.n_factors == G
    with pytest.raises(AssertionError):
        refute(found, outputs, u, theta)


# Checks of parameters


def checked(value, condition):
    return CheckParameterValue("valid", can_be_replaced_by_ninf=True)(value, condition)


CHECKS = {
    # name: graph, number of factors
    "of each element": (
        lambda u, t: log_mean(checked(columns(u), pt.all(columns(u) > t))),
        G,
    ),
    "of theta": (lambda u, t: log_mean(checked(columns(u), pt.all(t > 0.0))), G),
    "of several conditions": (
        lambda u, t: log_mean(checked(columns(u), pt.all([pt.all(u > 0), pt.all(u < t[0])]))),
        G,
    ),
    "by logsumexp": (
        lambda u, t: pt.logsumexp(checked(columns(u), pt.all(columns(u) > t)), axis=0),
        G,
    ),
    "that ties elements": (lambda u, t: log_mean(checked(columns(u), u.sum() > 0)), 1),
    "of whether any is right": (lambda u, t: log_mean(checked(columns(u), pt.any(u > 0))), 1),
    "hidden by a mixture": (
        lambda u, t: log_mean(
            pt.logaddexp(checked(columns(u), pt.all(u > t[0])), columns(u) * 2.0)
        ),
        1,
    ),
    "hidden by a bound": (
        lambda u, t: pt.maximum(log_mean(checked(columns(u), pt.all(u > t[0]))), -1e6),
        1,
    ),
    "hidden by a switch": (
        lambda u, t: log_mean(
            (lambda v: pt.switch(pt.isinf(v), -5.0, v))(checked(columns(u), pt.all(u > t[0])))
        ),
        1,
    ),
    "hidden by an exponential": (
        lambda u, t: pt.exp(checked(columns(u), pt.all(u > t[0]))).sum(axis=0),
        1,
    ),
    "hidden beside others": (
        lambda u, t: log_mean(
            pt.concatenate([checked(columns(u)[:3], pt.all(u > t[0])), columns(u)[3:]])
        ),
        1,
    ),
    "used elsewhere": (
        lambda u, t: (lambda c: log_mean(checked(columns(u), c)) + c)(pt.all(u > t[0])),
        1,
    ),
    "of a factor without a term": (
        lambda u, t: checked(columns(u)[:, :3], pt.all(columns(u)[:, 3] > t[0])).sum(axis=0),
        None,
    ),
    "of what does not depend on u": (
        lambda u, t: checked(t, pt.all(u > t[0])) + columns(u).sum(axis=0),
        G,
    ),
}


@pytest.mark.parametrize("name", CHECKS)
def test_checks_tie_factors_only_where_they_must(name):
    build, n_factors = CHECKS[name]
    for found in ways(build, check=False):
        if n_factors is None:
            # The last column decides over all entries.
            assert found.n_factors == 1
        else:
            assert found.n_factors == n_factors


# Products of zero and infinity, which are not a number


def log_p_of_groups(u):
    x = columns(u)[:, GROUP]
    return pt.dot(pt.switch(x > 0.9, -np.inf, x), MEMBERSHIP)


def without_nan(x):
    return pt.switch(pt.isnan(x), -5.0, x)


def without_nan_inside(u, t):
    x = pt.matrix("x", shape=(N, G))
    inner = OpFromGraph([x], [without_nan(pt.dot(pt.log(x[:, GROUP]), MEMBERSHIP))])
    return inner(columns(u)).sum(axis=0)


def product_inside(u, t):
    x = pt.matrix("x", shape=(N, G))
    inner = OpFromGraph([x], [pt.dot(pt.log(x[:, GROUP]), MEMBERSHIP), x])
    return without_nan(inner(columns(u))[0]).sum(axis=0)


HIDDEN = {
    # name: graph, number of factors
    "not hidden": (lambda u, t: log_mean(log_p_of_groups(u)), G),
    "replaced": (lambda u, t: log_mean(without_nan(log_p_of_groups(u))), 1),
    "an estimate of zero": (
        lambda u, t: (lambda x: pt.switch(pt.isnan(x), -np.inf, x))(log_mean(log_p_of_groups(u))),
        1,
    ),
    "compared": (lambda u, t: log_mean(pt.switch(log_p_of_groups(u) > t, t, 2.0 * t)), 1),
    "a weight": (
        lambda u, t: without_nan(np.tri(G) * (u[:G] + u[G : 2 * G, None])).sum(axis=0),
        1,
    ),
    "inside": (without_nan_inside, 1),
    "after what is inside": (product_inside, 1),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_product_with_zero_counts_if_it_may_not_be_noticed(name):
    build, n_factors = HIDDEN[name]
    for found in ways(build, check=n_factors == 1):
        assert found.n_factors == n_factors


# What cannot be known


def test_integers_are_divided_as_pytensor_does():
    """Not as numpy does, for which the inverse of an integer is zero: no dependence at all."""
    u = pt.vector("u", shape=(2,))
    for numbers in ([2, 3], [4, 5]):  # PyTensor's op is right the first time
        inverse = pt.reciprocal(pt.constant(np.array(numbers)))
        value = labels.Walk(labels.Joined(0)).value_of(inverse)
        np.testing.assert_allclose(value, 1.0 / np.array(numbers))
        found = find_factors([inverse * u.sum()], u)
        assert found.n_factors == 1
        assert found.of_outputs[0].tolist() == [0, 0]


def test_an_index_for_each_row_is_known():
    u = pt.vector("u", shape=(6,))
    index = np.array([[2, 0], [1, 1]])
    take = pt.vectorize(lambda row, places: row[places], signature="(n),(k)->(k)")
    found = find_factors([take(u.reshape((2, 3)), pt.constant(index)).ravel()], u, unused=-1)
    assert found.of_u.tolist() == [0, -1, 1, -1, 2, -1]
    assert found.of_outputs[0].tolist() == [1, 0, 2, 2]


def test_values_of_shared_variables_are_not_looked_at():
    u, _ = new_inputs()
    group, membership = (
        pytensor.shared(GROUP, shape=(8,)),
        pytensor.shared(MEMBERSHIP, shape=(8, 4)),
    )
    constant = columns(u)[:, GROUP]
    assert find_factors([pt.dot(constant, membership).sum(axis=0)], u).n_factors == 1
    assert find_factors([columns(u)[:, group].sum(axis=0)], u).n_factors == 1
    covariate = pytensor.shared(np.ones(G), shape=(G,))
    assert find_factors([(columns(u) * covariate).sum(axis=0)], u).n_factors == G


def test_data_of_unknown_length_is_no_obstacle_where_the_result_has_one():
    u, _ = new_inputs()
    covariate = pytensor.shared(np.ones(G))
    assert covariate.type.shape == (None,)
    assert find_factors([(columns(u) * covariate).sum(axis=0)], u).n_factors == G


def test_nothing_is_said_of_unknown_shapes():
    u, theta = new_inputs()
    cut = u[: pt.cast(5 + theta[0], "int64")]
    assert find_factors([cut], u) is None
    assert find_factors([u * 2.0, pt.vector("of any length") * 2.0], u) is None
    assert find_factors([pt.vector("v") * 2.0], pt.vector("v")) is None


def test_one_number_has_no_factors():
    u = pt.vector("u", shape=(1,))
    assert find_factors([u * 2.0], u) is None


def test_what_does_not_depend_on_u_is_in_no_factor():
    u, theta = new_inputs()
    found = find_factors([theta * 2.0, pt.zeros_like(u), pt.full(2, u.shape[0])], u)
    assert found.n_factors == 1
    assert not found.of_u.any()
    assert all((of == -1).all() for of in found.of_outputs)


def test_elements_that_feed_no_term_belong_to_the_first_factor():
    u, _ = new_inputs()
    term, other = columns(u)[:, 1:].sum(axis=0), columns(u)[:, :1] * 2.0
    found = find_factors([term, other], u, [True, False])
    assert found.n_factors == G - 1
    np.testing.assert_array_equal(found.of_u, np.tile([0, 0, 1, 2], N))
    assert found.of_outputs[0].tolist() == [0, 1, 2]
    assert found.of_outputs[1].tolist() == [0] * N
    assert find_factors([term, other], u).n_factors == G - 1 + N


def test_other_randomness_is_like_parameters():
    u, theta = new_inputs()
    v = pt.vector("v", shape=(N * G,))
    output = log_mean(columns(u) * theta + pt.cumsum(v).reshape((N, G)))
    assert find_factors([output], u).n_factors == G
    assert find_factors([output], v).n_factors == 1


def test_a_large_u_takes_little_time():
    n_samples, n_groups = 64, 10_000
    u, theta = pt.vector("u", shape=(n_samples * n_groups,)), pt.vector("theta", shape=(2,))
    x = u.reshape((n_samples, n_groups))
    log_weights = x
    for _ in range(15):
        log_weights = log_weights + pt.exp(theta[0] * log_weights) * x
    output = pt.logsumexp(log_weights - log_weights.mean(axis=0), axis=0)
    started = time.process_time()
    found = find_factors([output], u)
    assert time.process_time() - started < 3.0  # it takes 0.3
    np.testing.assert_array_equal(found.of_u, np.tile(np.arange(n_groups), n_samples))


# Terms taken apart

TERMS = {
    "sum and a function of theta": (lambda u, t: columns(u).sum() - pt.exp(t[0]), [24, 1]),
    "sum of sums": (lambda u, t: u.sum() + (2.0 * columns(u)[0]).sum() + t[0], [24, 4, 1]),
    "scaled": (lambda u, t: -3.0 * u.sum(), [24]),
    "difference in a sum": (lambda u, t: (u - u**2).sum(), [24, 24]),
    "vector": (lambda u, t: columns(u)[0] * t, [4]),
    "broadcast": (lambda u, t: (columns(u) + t).sum(), [24]),
    "broadcast number": (lambda u, t: (u + t[0]).sum(), [24]),
    "product of two": (lambda u, t: t[0] * u.sum(), [1]),
    "logarithm of a sum": (lambda u, t: pt.log(pt.exp(u).sum()), [1]),
    "checked": (lambda u, t: Assert("yes")(u.sum(), pt.constant(True)), [24]),
    "checked by a parameter": (lambda u, t: Assert("yes")(u.sum(), t[0] > 0), [1]),
    "zero times": (lambda u, t: 0.0 * u.sum(), [1]),
    "mean": (lambda u, t: u.mean(), [1]),
}


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("is_rewritten", [False, True])
def test_parts_of_a_term_add_up_to_it(name, is_rewritten):
    build, sizes = TERMS[name]
    u, theta = new_inputs()
    term = build(u, theta)
    whole = term
    if is_rewritten:
        (term,) = rewritten([term], [u, theta])
    parts = unsummed(term)
    assert all(part.type.ndim <= 1 for part in parts)
    function = pytensor.function([u, theta], [whole, *parts], on_unused_input="ignore")
    rng = np.random.default_rng(0)
    total, *values = function(rng.random(N * G), rng.random(G))
    np.testing.assert_allclose(sum(np.sum(value) for value in values), np.sum(total))
    if not is_rewritten:
        assert [value.size for value in values] == sizes
