import math

import numpy as np
import pytest

from pymc_apm.diagnostics.jumps import EVALUATIONS, largest_jump

CONTINUOUS = {
    "constant": lambda t: 3.0,
    "line": lambda t: -20.0 * t,
    "steep line": lambda t: 1e6 * t,
    "sine": lambda t: 10 * math.sin(40 * t),
    "kink": lambda t: 5 * abs(t - 0.37),
    "root": lambda t: math.sqrt(abs(t - 0.37)),
    "steep step": lambda t: math.tanh((t - 0.37) / 1e-6),
    "far from zero": lambda t: -1e8 + t,
}

JUMPING = {
    "step": (lambda t: float(t > 0.37), 1.0),
    "step down on a slope": (lambda t: 30 * t - 0.5 * (t > 0.37), 0.5),
    "small step on a steep slope": (lambda t: 100 * t**2 - 0.05 * (t > 0.37), 0.05),
    "staircase": (lambda t: math.floor(7.3 * t) / 2, 0.5),
    "thousands of small steps": (lambda t: math.floor(3000 * t) / 100, 0.01),
    "far from zero": (lambda t: -1e6 + (t > 0.9), 1.0),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_continuous_function_has_no_jump(name):
    assert largest_jump(CONTINUOUS[name]).size == 0.0


@pytest.mark.parametrize("name", JUMPING)
def test_the_size_of_a_jump(name):
    function, size = JUMPING[name]
    assert largest_jump(function).size == pytest.approx(size, rel=1e-3)


def test_where_it_is():
    assert largest_jump(lambda t: float(t > 0.37)).place == pytest.approx(0.37, abs=1e-8)


def test_a_drop_to_zero():
    assert largest_jump(lambda t: -math.inf if t > 0.6 else -t).size == math.inf


def test_zero_everywhere():
    assert largest_jump(lambda t: -math.inf).size == 0.0


def test_where_the_function_is_not_defined():
    assert largest_jump(lambda t: math.nan if t > 0.6 else t).size == 0.0
    assert largest_jump(lambda t: math.nan if t > 0.6 else float(t > 0.3)).size == 1.0


def test_noise_is_no_continuous_function():
    rng = np.random.default_rng(1)
    assert largest_jump(lambda t: rng.standard_normal()).size > 0.1


def test_the_number_of_evaluations():
    calls = []
    largest_jump(lambda t: calls.append(t) or math.floor(50 * t))
    assert len(calls) <= EVALUATIONS
    assert min(calls) == 0.0 and max(calls) == 1.0
