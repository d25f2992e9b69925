"""Programs are told apart by what they are: near-twins have different digests, twins the same."""

import functools
import json
import os
import subprocess
import sys
import types
from collections import Counter, namedtuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numba.extending import register_jitable
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.op import Op
from pytensor.graph.type import Type

import pymc_apm as apm
from pymc_apm.compiled import program
from pymc_apm.compiled.fingerprint import walk
from pymc_apm.compiled.graphs import digest_of_graph
from tests.compiled.programs import (
    LARGE_DATA,
    MODELS,
    SAME_DENSITY,
    STEPS,
    all_digests,
    digest_of,
    what,
)
from tests.compiled.small import small_model, small_step
from tests.models import PythonOp
from tests.steps.models import run, stacked, start_chain

EVERY = 6
"""In another process, one in so many models is built."""


@pytest.fixture(scope="module")
def digests():
    return list(all_digests())


@pytest.mark.slow
def test_there_are_two_hundred_programs_and_all_have_digests(digests):
    assert len(digests) >= 200
    assert [item[:2] for item in digests if item[2] is None] == []


@pytest.mark.slow
def test_only_the_same_programs_have_equal_digests(digests):
    """The same density and the same transition: options and data are arguments."""
    names = {}
    for model, step, digest in digests:
        if step != "-+SS" or model != "normal uniform":  # whose u it does not move
            names.setdefault(digest, set()).add((what(model), what(step)))
    for found in names.values():
        assert len({(SAME_DENSITY.get(model, model), step) for model, step in found}) == 1, found


@pytest.mark.slow
def test_programs_for_other_data_and_other_options_are_the_same(digests):
    """So they are compiled once."""
    of = {}
    for model, step, digest in digests:
        of.setdefault((what(model), what(step)), set()).add(digest)
    several = {key: found for key, found in of.items() if len(found) > 1}
    assert several == {}
    counts = Counter((what(model), what(step)) for model, step, _ in digests)
    assert sum(count > 1 for count in counts.values()) > 20


@pytest.mark.slow
def test_a_program_has_the_same_digest_in_another_process(digests):
    expected = {(model, step): digest for model, step, digest in digests}
    command = [sys.executable, "-m", "tests.compiled.programs", str(EVERY)]
    for seed in ("1",):
        found = subprocess.run(
            command,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        others = json.loads(found.stdout.splitlines()[-1])
        assert len(others) > 20
        for model, step, digest in others:
            assert digest == expected[model, step], (model, step)


# What else makes a program what it is


def base_digest():
    with MODELS["base"]():
        return digest_of(STEPS["PM, scaling"]())


def test_flags_change_it(monkeypatch):
    before = base_digest()
    with pytensor.config.change_flags(numba__fastmath=not pytensor.config.numba__fastmath):
        assert base_digest() != before
    assert base_digest() == before
    flags = program._flags()
    for name in ("mode", "optimizer_excluding"):  # which cannot be changed here
        others = flags | {name: f"not {flags[name]}"}
        monkeypatch.setattr(program, "_flags", lambda others=others: others)
        assert base_digest() != before


@pytest.mark.parametrize("package", ["numpy", "numba", "llvmlite", "pytensor", "pymc", "pymc_apm"])
def test_versions_change_it(monkeypatch, package):
    before = program._sources()
    version = program.importlib.metadata.version
    monkeypatch.setattr(
        program.importlib.metadata,
        "version",
        lambda name: "0.0" if name == package else version(name),
    )
    assert program._sources.__wrapped__() != before


@pytest.mark.parametrize(
    "file", ["kernels/slice.py", "_compat.py", "kinds.py", "steps/base.py", "compiled/graphs.py"]
)
def test_our_own_sources_change_it(monkeypatch, tmp_path, file):
    before = program._sources()
    source = program.Path(program.pymc_apm.__file__).parent
    for path in source.rglob("*.py"):
        copy = tmp_path / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    fake = types.SimpleNamespace(__file__=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(program, "pymc_apm", fake)
    assert program._sources.__wrapped__() == before
    with (tmp_path / file).open("a") as changed:
        changed.write("\n")
    assert program._sources.__wrapped__() != before


def test_sources_are_part_of_it(monkeypatch):
    before = base_digest()
    monkeypatch.setattr(program, "_sources", lambda: "others")
    assert base_digest() != before


# What cannot be told from others


class Foreign(Op):
    """An op of a user, for which Numba may have been told anything."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0]


class Opaque(Type):
    """A type of values of which nothing is known."""

    def filter(self, data, strict=False, allow_downcast=None):
        return data


def test_a_program_with_an_op_of_unknown_meaning_has_none():
    for op in (Foreign(), PythonOp(lambda x: x)):
        with pm.Model():
            theta = pm.Normal("theta")
            u = apm.StandardNormal("u")
            apm.Potential("log_lik", op(theta * u))
            assert digest_of(apm.APMSlice()) is None


def test_a_graph_with_a_constant_that_is_not_known_has_none():
    x = pt.vector("x")
    for data in (object(), np.random.default_rng(), np.array([object()], dtype=object)):
        node = Apply(pt.add, [x, Constant(Opaque(), data)], [x.type()])
        assert digest_of_graph([x], node.outputs) is None


def test_sparse_constants_of_the_same_shape_are_not_taken_for_each_other():
    sparse = pytest.importorskip("pytensor.sparse")
    scipy_sparse = pytest.importorskip("scipy.sparse")
    x = pt.vector("x")
    found = []
    for value in (1.0, 2.0):
        matrix = sparse.as_sparse_variable(scipy_sparse.csr_matrix(np.diag([value, 3.0])))
        found.append(digest_of_graph([x], [sparse.structured_dot(matrix, x[:, None])]))
    assert found[0] is None or found[0] != found[1]


class Holder:
    def __init__(self, factor):
        self.factor = factor

    def method(self, x):
        return self.factor * x


def closure_over(item):
    def function(x):
        return item, x

    return function


@pytest.mark.parametrize(
    "stranger",
    [
        Holder(1.0),
        Holder(1.0).method,
        [1.0].count,
        functools.partial(max, 1.0),
        functools.cache(lambda x: x),
        np.frompyfunc(lambda x: x, 1, 1),
        np.random.default_rng(1).normal,
        Holder,
        os,
        object(),
        {1, 2},
    ],
)
def test_an_object_that_cannot_be_told_from_others_gives_no_digest(stranger):
    walked = walk(closure_over(stranger))
    assert walked.digest is None
    assert walked.strangers


@pytest.mark.parametrize(
    "known",
    [
        1.5,
        np.sum,
        np.exp,
        np.linalg.norm,
        np.float64,
        np.dtype("int8"),
        np,
        max,
        ValueError,
        np.arange(3),
        (1, "two"),
        {"a": [1]},
        namedtuple("Pair", "first second"),
        apm.types.Cost,
    ],
)
def test_what_is_known_has_a_digest(known):
    assert walk(closure_over(known)).digest is not None


def test_closures_that_differ_in_one_thing_are_told_apart():
    def plain(x, y):
        return x

    def starred(x, *y):
        return x

    def default(x, y=1):
        return x

    def other_default(x, y=2):
        return x

    def keyword(x, *, y):
        return x

    Pair, Riap = namedtuple("P", "a b"), namedtuple("P", "b a")
    functions = [plain, starred, default, other_default, keyword]
    for function in functions:  # names are part of it: leave them out
        function.__qualname__ = "function"
    items = [
        *functions,
        *(1, 1.0, True, "1", b"1", None, (), [], np.float32(1), np.array(1), np.array([1])),
        *(-0.0, 0.0, np.nan, np.array([1], dtype=">i8"), Pair, Riap, Pair(1, 2), Riap(1, 2)),
        *({"a": 1}, {"a": 2}, (1, (2, 3)), ((1, 2), 3), (1, 2, 3), register_jitable(plain)),
    ]
    found = {}
    for item in items:
        found.setdefault(walk(closure_over(item)).digest, []).append(item)
    found[walk(closure_over(plain)).digest].pop()  # register_jitable returns the very function
    assert [same for same in found.values() if len(same) > 1] == []


# Programs that were once taken for each other, run


def moments(log_likelihood):
    """Return the mean and the variance of theta ~ N(0, 1) given a likelihood."""
    grid = np.linspace(-12.0, 12.0, 4001) + 1e-7
    weights = np.exp(-0.5 * grid**2 + log_likelihood(grid))
    weights /= weights.sum()
    mean = weights @ grid
    return mean, weights @ (grid - mean) ** 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("declare", "log_likelihood"),
    [
        (apm.StandardNormal, lambda t: 3 * 0.5 * (0.4 * t) ** 2),
        (apm.StandardUniform, lambda t: 3 * np.log(np.expm1(0.4 * t) / (0.4 * t))),
    ],
    ids=["normal", "uniform"],
)
def test_models_that_differ_in_the_kind_of_u_have_their_own_posteriors(declare, log_likelihood):
    """The second one once ran the first one's update of u."""
    model = small_model(declare)
    step = small_step(model, compile=True)
    start_chain(step, 1)
    step.stop_tuning()
    points, _ = run(step, model.initial_point(), 40_000)
    assert step.is_compiled
    draws = stacked(points)[:, 0]
    mean, variance = moments(log_likelihood)
    for values, expected in ((draws, mean), ((draws - mean) ** 2, variance)):
        means = values.reshape(50, -1).mean(axis=1)
        assert abs(means.mean() - expected) < 5 * means.std(ddof=1) / np.sqrt(50)
    if declare is apm.StandardUniform:
        assert 0.0 < step.u["u"].min() and step.u["u"].max() < 1.0


@pytest.mark.slow
def test_chains_of_one_program_have_their_own_data():
    """Large constants are arguments: the second model runs the first one's program, on its own."""
    results = []
    for data in (LARGE_DATA + 2.0, LARGE_DATA - 2.0):
        with pm.Model() as model:
            theta = pm.Normal("theta")
            u = apm.StandardNormal("u", shape=3)
            apm.Potential("log_lik", -0.01 * ((theta + 0.1 * u.sum() - data) ** 2).sum())
            steps = [apm.PseudoMarginalMH(scaling=0.7, compile=c) for c in (True, False)]
        chains = []
        for step in steps:
            start_chain(step, 2)
            chains.append(stacked(run(step, model.initial_point(), 100)[0]))
        np.testing.assert_allclose(*chains, rtol=1e-9)
        results.append((digest_of(steps[0]), chains[0]))
    assert results[0][0] == results[1][0]
    assert results[0][1].mean() > 0.0 > results[1][1].mean()
