"""Exact answers for small Ising models, written in the plainest way, and a slow exact sampler."""

import itertools
import math

import numpy as np


def torus_edges(n_rows, n_columns):
    """Return the edges of a torus, by looking right and down from each site."""
    edges = []
    for row, column in itertools.product(range(n_rows), range(n_columns)):
        site = row * n_columns + column
        edges.append((site, row * n_columns + (column + 1) % n_columns))
        edges.append((site, (row + 1) % n_rows * n_columns + column))
    return np.array(edges)


def configurations(n_sites):
    """Return all configurations, one in each row."""
    return np.array(list(itertools.product([-1, 1], repeat=n_sites)), dtype=np.int8)


def log_weights(edges, n_sites, coupling, field):
    """Return the log of g for all configurations."""
    x = configurations(n_sites).astype(float)
    products = x[:, edges[:, 0]] * x[:, edges[:, 1]]
    couplings = np.broadcast_to(coupling, len(edges))
    return products @ couplings + x @ np.broadcast_to(field, n_sites)


def log_z(edges, n_sites, coupling, field):
    """Return the log of the normaliser."""
    weights = log_weights(edges, n_sites, coupling, field)
    return weights.max() + np.log(np.exp(weights - weights.max()).sum())


def probabilities(edges, n_sites, coupling, field):
    """Return the probability of each configuration."""
    weights = log_weights(edges, n_sites, coupling, field)
    return np.exp(weights - log_z(edges, n_sites, coupling, field))


def index_of(spins):
    """Return the number of a configuration among :func:`configurations`."""
    return int("".join("1" if spin == 1 else "0" for spin in spins), 2)


def neighbours_of(edges, n_sites):
    """Return the neighbours of each site."""
    neighbours = [[] for _ in range(n_sites)]
    for a, b in edges:
        neighbours[a].append(b)
        neighbours[b].append(a)
    return neighbours


def plain_summary_states(edges, n_sites, coupling, field, u):
    """Draw an exact sample by summary states in Python: the algorithm word by word.

    ``u[t, i]`` is the number for sweep ``t`` before the present. Returns nothing if there are too
    few of them.
    """
    neighbours = neighbours_of(edges, n_sites)
    start = 1
    while start <= len(u):
        states = [0] * n_sites
        for t in range(start - 1, -1, -1):
            for i in range(n_sites):
                known = sum(states[j] for j in neighbours[i])
                n_unknown = sum(states[j] == 0 for j in neighbours[i])
                low = coupling * known - abs(coupling) * n_unknown + field
                high = coupling * known + abs(coupling) * n_unknown + field
                if u[t, i] < 1 / (1 + math.exp(-2 * low)):
                    states[i] = 1
                elif u[t, i] >= 1 / (1 + math.exp(-2 * high)):
                    states[i] = -1
                else:
                    states[i] = 0
        if 0 not in states:
            return np.array(states)
        start *= 2
    return None
