"""Models with latent variables, tame and tricky."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

RNG = np.random.default_rng(11)
GROUP = np.array([0, 0, 1, 2, 2, 2])
OTHER = np.array([0, 1, 0, 1, 0, 1])
X = RNG.normal(size=6)
Y = RNG.normal(size=6)
COUNTS = RNG.poisson(2.0, size=6)
BITS = np.array([0, 1, 1, 0, 1, 1])


def common():
    return pm.Normal("mu", 0.0, 0.5), pm.Gamma("sigma", 20, 20)


def intercept():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    pm.Poisson("y", pm.math.exp(b[GROUP]), observed=COUNTS)


def not_centred():
    mu, sigma = common()
    z = pm.Normal("z", shape=3)
    effect = pm.Deterministic("effect", mu + sigma * z)
    pm.Normal("y", effect[GROUP], 1.0, observed=Y)


def two_latents():
    mu, sigma = common()
    a = pm.Normal("a", mu, sigma, shape=3)
    b = pm.StudentT("b", nu=5, sigma=0.5, shape=3)
    pm.Normal("y", a[GROUP] + b[GROUP] * X, 1.0, observed=Y)


def slopes():
    mu, sigma = common()
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Gamma.dist(20, 20))
    b = pm.MvNormal("b", [0.0, 0.0], chol=chol, shape=(3, 2))
    pm.Normal("y", mu + b[GROUP, 0] + b[GROUP, 1] * X, sigma, observed=Y)


def one_of_a_pair():
    mu, sigma = common()
    b = pm.MvNormal("b", [0.0, 0.0], [[1.0, 0.8], [0.8, 1.0]], shape=(3, 2))
    pm.Normal("y", mu + b[GROUP, 1], sigma, observed=Y)


def frailty():
    mu, sigma = common()
    frailty = pm.Gamma("frailty", 2.0, 2.0 * sigma, shape=3)
    pm.Exponential("y", frailty[GROUP] * pm.math.exp(mu), observed=np.abs(Y) + 0.1)


def zero_inflated():
    mu, _ = common()
    z = pm.Bernoulli("z", pm.math.invlogit(mu), shape=6)
    pm.Poisson("y", pt.switch(z, 2.0, 1e-3), observed=COUNTS)


def categories():
    mu, sigma = common()
    k = pm.Categorical("k", [0.2, 0.5, 0.3], shape=6)
    pm.Normal("y", pt.stack([mu, mu + 1.0, mu - 2.0])[k], sigma, observed=Y)


def abundance():
    mu, _ = common()
    n = pm.Poisson("n", pm.math.exp(mu + 1.5), shape=3)
    pm.Binomial("y", n[GROUP], 0.4, observed=np.minimum(COUNTS, 2))


def overdispersed():
    mu, sigma = common()
    rate = pm.LogNormal("rate", mu, sigma, shape=6)
    pm.Poisson("y", rate, observed=COUNTS)


def betas():
    _, sigma = common()
    p = pm.Beta("p", 2 * sigma, 3.0, shape=3)
    pm.Bernoulli("y", p[GROUP], observed=BITS)


def measurement_error():
    mu, sigma = common()
    x = pm.Normal("x", 0.0, 1.0, shape=6)
    pm.Normal("measured", x, 0.5, observed=X)
    pm.Normal("y", mu + x, sigma, observed=Y)


def invalid_parameters():
    """The scale of an observation is a latent variable that may be negative."""
    mu, sigma = common()
    scale = pm.Normal("scale", 1.0, sigma, shape=6)
    pm.Normal("y", mu, scale, observed=Y)


def signed_scale():
    """The scale of a latent variable is a parameter that may be negative."""
    scale = pm.Normal("scale", 0.3, 1.0)
    b = pm.Normal("b", 0.0, scale, shape=3)
    pm.Normal("y", b[GROUP], 1.0, observed=Y)


def partly():
    """Half of the observations depend on no latent variable."""
    mu, sigma = common()
    b = pm.Normal("b", 0.0, sigma, shape=3)
    pm.Normal("y", mu + pt.concatenate([b, pt.zeros(3)]), 1.0, observed=Y)


def unused():
    """A group has no observations."""
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=5)
    pm.Normal("y", b[np.array([4, 4, 1, 2, 2, 1])], 1.0, observed=Y)


def potential():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    pm.Potential("soft", -(b**2))
    pm.Normal("y", b[GROUP], 1.0, observed=Y)


def missing():
    mu, sigma = common()
    x = pm.Normal("x", mu, 1.0, observed=np.where(X > 0.5, np.nan, X))
    pm.Normal("y", 0.5 * x, sigma, observed=Y)


def nested():
    """Latent variables whose distribution depends on latent variables, within groups."""
    mu, sigma = common()
    a = pm.Normal("a", mu, sigma, shape=2)
    b = pm.Normal("b", a[np.array([0, 0, 1])], 0.5, shape=3)
    pm.Normal("y", b[GROUP], 1.0, observed=Y)


def three_levels():
    """And a term that depends on the latent variables of the middle."""
    mu, sigma = common()
    a = pm.Normal("a", mu, sigma, shape=2)
    b = pm.Normal("b", a[np.array([0, 0, 1])], 0.5, shape=3)
    c = pm.LogNormal("c", b[GROUP], 0.3)
    pm.Potential("soft", -(b**2))
    pm.Exponential("y", c, observed=np.abs(Y) + 0.1)


def scale_by_a_latent():
    mu, _ = common()
    s = pm.Gamma("s", 4.0, 4.0, shape=3)
    b = pm.Normal("b", mu, s, shape=3)
    pm.Normal("y", b[GROUP], 1.0, observed=Y)


def membership_matrix():
    mu, sigma = common()
    b = pm.Normal("b", 0.0, sigma, shape=3)
    pm.Normal("y", mu + pt.dot(np.eye(3)[GROUP], b), 1.0, observed=Y)


def data_and_dims():
    mu, sigma = common()
    group = pm.Data("group", GROUP)
    x = pm.Data("x", X)
    y = pm.Data("y_data", Y)
    b = pm.Normal("b", mu, sigma, dims="g")
    pm.Normal("y", b[group] * x, 1.0, observed=y)


def multivariate_observation():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    pm.MvNormal("y", b[:, None] * np.ones(2), 0.5 + np.eye(2), observed=Y.reshape(3, 2))


def mixture():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=6)
    pm.ZeroInflatedPoisson("y", 0.7, pm.math.exp(b), observed=COUNTS)


def odd_indices():
    """Entries are chosen by a mask, then counted from the end, some of them twice."""
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=6)
    chosen = b[np.array([True, False, True, False, True, False])]
    pm.Normal("y", chosen[GROUP - 3], 1.0, observed=Y)


def two_shapes():
    mu, sigma = common()
    a = pm.Normal("a", mu, sigma, shape=(3, 1))
    b = pm.Normal("b", 0.0, 0.5, shape=(3, 2))
    pm.Normal("y", (a + b).T, 1.0, observed=Y.reshape(3, 2).T)


def censored():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    y = pm.Normal.dist(b[GROUP], 1.0)
    pm.Censored("y", y, lower=-0.5, upper=0.5, observed=np.clip(Y, -0.5, 0.5))


def falling_transform():
    """The quantiles of a distribution that is a falling function of another one."""
    mu, sigma = common()

    def dist(mu, size):
        return mu - pm.Exponential.dist(1.0, shape=3)

    b = pm.CustomDist("b", mu, dist=dist, shape=3)
    pm.Normal("y", b[GROUP], sigma, observed=Y)


def choices():
    """Probabilities of categories, whose check is of all of them."""
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    utility = np.outer(X, [1.0, 0.0, -1.0]) * b[GROUP][:, None]
    pm.Categorical("y", logit_p=utility, observed=OTHER)


def square_root():
    """A density that is not a number where a latent variable is negative."""
    mu, sigma = common()
    b = pm.Normal("b", 0.8 + mu, sigma, shape=3)
    pm.Normal("y", pt.sqrt(b)[GROUP], 1.0, observed=Y)


# What ties groups together


def shared_mean():
    """Latent variables of which a single latent number is the mean."""
    mu, sigma = common()
    a = pm.Normal("a", mu, sigma)
    b = pm.Normal("b", a, 0.5, shape=3)
    pm.Normal("y", b[GROUP], 1.0, observed=Y)


def crossed():
    mu, sigma = common()
    a = pm.Normal("a", mu, sigma, shape=3)
    b = pm.Normal("b", 0.0, 0.5, shape=2)
    pm.Normal("y", a[GROUP] + b[OTHER], 1.0, observed=Y)


def used_in_two_ways():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    pm.Normal("y", b[GROUP], 1.0, observed=Y)
    pm.Normal("total", b.sum(), 1.0, observed=0.3)


def collapsed():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    centred = pm.Deterministic("centred", b - b.mean())
    pm.Normal("y", centred[GROUP], 1.0, observed=Y)


def walk():
    mu, sigma = common()
    step = pm.Normal("step", 0.0, sigma, shape=6)
    pm.Normal("y", mu + pt.cumsum(step), 1.0, observed=Y)


def softmax():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    pm.Categorical("y", pm.math.softmax(b), observed=GROUP)


def neighbours():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=7)
    pm.Normal("y", b[:-1] + b[1:], 1.0, observed=Y)


def shared_scale():
    """A single latent number for all."""
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma)
    pm.Normal("y", b, 1.0, observed=Y)


def sorted_effects():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=6)
    pm.Normal("y", pt.sort(b), 1.0, observed=Y)


def gaussian_field():
    mu, sigma = common()
    cov = np.exp(-0.5 * (np.arange(6)[:, None] - np.arange(6)) ** 2) + 0.01 * np.eye(6)
    b = pm.MvNormal("b", np.zeros(6), sigma * cov)
    pm.Normal("y", mu + b, 1.0, observed=Y)


def soft_constraint():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    pm.Potential("zero_sum", pm.logp(pm.Normal.dist(0.0, 0.1), b.sum()))
    pm.Normal("y", b[GROUP], 1.0, observed=Y)


def largest_wins():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    pm.Normal("y", pt.max(b) + b[GROUP], 1.0, observed=Y)


def indexed_by_a_latent():
    mu, sigma = common()
    k = pm.Categorical("k", [0.3, 0.7], shape=3)
    b = pm.Normal("b", mu, sigma, shape=2)
    pm.Normal("y", b[k[GROUP]], 1.0, observed=Y)


def switched():
    """Which of two groups an observation belongs to depends on a latent variable."""
    mu, sigma = common()
    k = pm.Bernoulli("k", 0.4)
    b = pm.Normal("b", mu, sigma, shape=2)
    pm.Normal("y", pt.switch(pt.eq(k, 1), b[OTHER], 0.0), 1.0, observed=Y)


def reversed_copy():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=6)
    pm.Normal("y", b + b[::-1], 1.0, observed=Y)


def solved():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    pm.Normal("y", pt.linalg.solve(np.eye(3) + 0.3, b)[GROUP], 1.0, observed=Y)


def overlapping_index():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    filled = pt.zeros(6)
    filled = pt.set_subtensor(filled[np.array([0, 1, 2])], b)
    filled = pt.inc_subtensor(filled[np.array([2, 3, 4])], b)
    pm.Normal("y", filled, 1.0, observed=Y)


# name: (latent variables, number of factors)
FACTORS = {
    intercept: (["b"], 3),
    not_centred: (["z"], 3),
    two_latents: (["a", "b"], 3),
    slopes: (["b"], 3),
    one_of_a_pair: (["b"], 3),
    frailty: (["frailty"], 3),
    zero_inflated: (["z"], 6),
    categories: (["k"], 6),
    abundance: (["n"], 3),
    overdispersed: (["rate"], 6),
    betas: (["p"], 3),
    measurement_error: (["x"], 6),
    invalid_parameters: (["scale"], 6),
    signed_scale: (["b"], 3),
    partly: (["b"], 6),
    unused: (["b"], 3),
    potential: (["b"], 3),
    missing: (["x_unobserved"], 6),
    nested: (["a", "b"], 2),
    three_levels: (["a", "b", "c"], 2),
    scale_by_a_latent: (["s", "b"], 3),
    membership_matrix: (["b"], 3),
    data_and_dims: (["b"], 3),
    multivariate_observation: (["b"], 3),
    mixture: (["b"], 6),
    odd_indices: (["b"], 3),
    two_shapes: (["a", "b"], 3),
    censored: (["b"], 3),
    falling_transform: (["b"], 3),
    square_root: (["b"], 3),
    choices: (["b"], 3),
}

TIED = {
    crossed: ["a", "b"],
    shared_mean: ["a", "b"],
    used_in_two_ways: ["b"],
    collapsed: ["b"],
    walk: ["step"],
    softmax: ["b"],
    neighbours: ["b"],
    shared_scale: ["b"],
    sorted_effects: ["b"],
    gaussian_field: ["b"],
    soft_constraint: ["b"],
    largest_wins: ["b"],
    indexed_by_a_latent: ["k", "b"],
    switched: ["k", "b"],
    solved: ["b"],
}

PAIRED = {reversed_copy: (["b"], 3), overlapping_index: (["b"], 3)}


def made(build):
    with pm.Model(coords={"g": ["a", "b", "c"]}) as model:
        build()
    return model
