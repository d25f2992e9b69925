"""Estimators, good and bad, whose noise is known."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_apm as apm


def normal_noise(sd=1.0, size=1):
    """Return a model whose log f_hat is N(-theta^2/2 - v/2, v), with v = sd^2 / size."""
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=size)
        noise = sd * pt.mean(u) - 0.5 * sd**2 / size
        apm.Potential("log_lik", -0.5 * theta**2 + noise)
    return model


def cauchy_weights():
    """Return a model whose estimates have the tail of a Cauchy distribution: k = 1."""
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardUniform("u")
        apm.Potential("log_lik", -0.5 * theta**2 + pt.log(pt.abs(pt.tan(np.pi * (u - 0.5)))))
    return model


def steps_in(what):
    """Return a model whose estimate has a step of 1 in log f_hat, in u or in theta alone."""
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=3)
        moving = u[0] if what == "u" else theta
        apm.Potential("log_lik", pt.switch(moving > 0.0, 1.0, 0.0) + 0.1 * theta * u[1])
    return model


@apm.black_box
def noisy_normal(theta, rng):
    return -0.5 * theta**2 + rng.normal(-0.5, 1.0)


def black_box_model(declare):
    """Return a model whose estimator draws from a stream or a seed."""
    with pm.Model() as model:
        theta = pm.HalfNormal("theta")
        apm.Potential("log_lik", noisy_normal(theta, declare("r")))
    return model
