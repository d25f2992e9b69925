"""Loops over the sites of an Ising model, compiled by numba.

Exact samplers take the uniform numbers of their sweeps as rows of a matrix: row ``t`` holds those
of the sweep ``t`` before the present, one for each site in the order in which sites are visited. A
run that starts ``T`` sweeps ago uses the rows ``T - 1`` down to 0, so that starting further back in
time adds rows and changes none.

There are two forms of each. The *regular* one is for graphs whose sites have equally many
neighbours, with one coupling and one field for all: the probability of a spin is looked up in a
table. The *general* one takes a coupling for each edge and a field for each site.
"""

import math

import numba
import numpy as np
from numpy.typing import NDArray

Spins = NDArray[np.int8]
Floats = NDArray[np.float64]
Indices = NDArray[np.int32]

HIGH = 16
"""A site's state while it is bounded: 1 if it can only be up, plus 16 if it can be up at all."""


@numba.njit(cache=True)
def probability_of_up(local_field: float) -> float:
    """Return the probability of a spin +1 given the neighbours."""
    return 1.0 / (1.0 + math.exp(-2.0 * local_field))


@numba.njit(cache=True)
def _table(degree: int, coupling: float, field: float) -> Floats:
    """Tabulate the probability of a spin +1 by the number of neighbours that are up."""
    table = np.empty(degree + 1)
    for n_up in range(degree + 1):
        table[n_up] = probability_of_up(coupling * (2 * n_up - degree) + field)
    return table


# Gibbs sampling


@numba.njit(cache=True)
def _sweep_regular(spins: Spins, neighbours: Indices, table: Floats, u: Floats) -> None:
    n_sites, degree = neighbours.shape
    for site in range(n_sites):
        total = 0
        for j in range(degree):
            total += spins[neighbours[site, j]]
        spins[site] = 1 if u[site] < table[(total + degree) >> 1] else -1


@numba.njit(cache=True)
def gibbs_regular(
    spins: Spins, neighbours: Indices, coupling: float, field: float, u: Floats
) -> Spins:
    """Return the spins after one sweep of Gibbs sampling."""
    spins = spins.copy()
    _sweep_regular(spins, neighbours, _table(neighbours.shape[1], coupling, field), u)
    return spins


@numba.njit(cache=True)
def _sweep_general(
    spins: Spins, starts: Indices, neighbours: Indices, coupling: Floats, field: Floats, u: Floats
) -> None:
    for site in range(len(spins)):
        local_field = field[site]
        for j in range(starts[site], starts[site + 1]):
            local_field += coupling[j] * spins[neighbours[j]]
        spins[site] = 1 if u[site] < probability_of_up(local_field) else -1


@numba.njit(cache=True)
def gibbs_general(
    spins: Spins, starts: Indices, neighbours: Indices, coupling: Floats, field: Floats, u: Floats
) -> Spins:
    """Return the spins after one sweep of Gibbs sampling."""
    spins = spins.copy()
    _sweep_general(spins, starts, neighbours, coupling, field, u)
    return spins


# Monotone coupling from the past: the chains that start all up and all down


@numba.njit(cache=True)
def monotone_regular(
    neighbours: Indices, coupling: float, field: float, u: Floats
) -> tuple[Spins, int]:
    """Run the two extreme chains; return the upper one, and at how many sites they differ."""
    n_sites, degree = neighbours.shape
    upper = np.ones(n_sites, np.int8)
    lower = -upper
    table = _table(degree, coupling, field)
    for t in range(len(u) - 1, -1, -1):
        for site in range(n_sites):
            # Both at once, because each of them waits for the last site that it has changed.
            total_upper = 0
            total_lower = 0
            for j in range(degree):
                total_upper += upper[neighbours[site, j]]
                total_lower += lower[neighbours[site, j]]
            number = u[t, site]
            upper[site] = 1 if number < table[(total_upper + degree) >> 1] else -1
            lower[site] = 1 if number < table[(total_lower + degree) >> 1] else -1
    return upper, np.sum(upper != lower)


@numba.njit(cache=True)
def monotone_general(
    starts: Indices, neighbours: Indices, coupling: Floats, field: Floats, u: Floats
) -> tuple[Spins, int]:
    """Run the two extreme chains; return the upper one, and at how many sites they differ."""
    upper = np.ones(len(field), np.int8)
    lower = -upper
    for t in range(len(u) - 1, -1, -1):
        _sweep_general(upper, starts, neighbours, coupling, field, u[t])
        _sweep_general(lower, starts, neighbours, coupling, field, u[t])
    return upper, np.sum(upper != lower)


# Summary states: one chain whose sites are up, down or '?'


@numba.njit(cache=True)
def summary_regular(
    neighbours: Indices, coupling: float, field: float, u: Floats
) -> tuple[Spins, int]:
    """Run the chain of summary states; return its spins, and how many sites are still '?'.

    The sum of the states of a site's neighbours holds both of the numbers that matter, how many are
    known to be up and how many may be, and is the index into tables of the two probabilities.
    """
    n_sites, degree = neighbours.shape
    table = _table(degree, coupling, field)
    surely_up = np.zeros(degree * (HIGH + 1) + 1)
    maybe_up = np.zeros(degree * (HIGH + 1) + 1)
    for n_high in range(degree + 1):
        for n_low in range(n_high + 1):
            code = n_low + HIGH * n_high
            surely_up[code] = min(table[n_low], table[n_high])
            maybe_up[code] = max(table[n_low], table[n_high])

    states = np.full(n_sites, HIGH, np.uint8)
    for t in range(len(u) - 1, -1, -1):
        for site in range(n_sites):
            code = 0
            for j in range(degree):
                code += states[neighbours[site, j]]
            number = u[t, site]
            states[site] = (number < surely_up[code]) + HIGH * (number < maybe_up[code])
    spins = np.where(states >= HIGH, 1, -1).astype(np.int8)
    return spins, np.sum(states == HIGH)


@numba.njit(cache=True)
def summary_general(
    starts: Indices, neighbours: Indices, coupling: Floats, field: Floats, u: Floats
) -> tuple[Spins, int]:
    """Run the chain of summary states; return its spins, and how many sites are still '?'."""
    n_sites = len(field)
    states = np.zeros(n_sites, np.int8)  # +1, -1, or 0 for '?'
    for t in range(len(u) - 1, -1, -1):
        for site in range(n_sites):
            known = field[site]
            unknown = 0.0
            for j in range(starts[site], starts[site + 1]):
                state = states[neighbours[j]]
                if state == 0:
                    unknown += abs(coupling[j])
                else:
                    known += coupling[j] * state
            number = u[t, site]
            if number < probability_of_up(known - unknown):
                states[site] = 1
            elif unknown == 0.0 or number >= probability_of_up(known + unknown):
                states[site] = -1
            else:
                states[site] = 0
    return states, np.sum(states == 0)


# Annealing: one sweep at each of the distributions between two parameters


@numba.njit(cache=True)
def anneal_regular(
    spins: Spins,
    neighbours: Indices,
    coupling: float,
    field: float,
    coupling_end: float,
    field_end: float,
    u: Floats,
) -> tuple[float, Spins]:
    """Return the log of the weight of annealed importance sampling, and the spins at its end.

    The log of g is linear in the parameters, which change by the same amount between each two
    distributions: it takes the mean of the statistics over the states on the way.
    """
    n_sites, degree = neighbours.shape
    spins = spins.copy()
    n_steps = len(u) + 1
    twice_interactions = 0
    magnetisation = 0
    for k in range(n_steps):
        if k > 0:
            weight = k / n_steps
            table = _table(
                degree,
                (1.0 - weight) * coupling + weight * coupling_end,
                (1.0 - weight) * field + weight * field_end,
            )
            _sweep_regular(spins, neighbours, table, u[k - 1])
        for site in range(n_sites):
            total = 0
            for j in range(degree):
                total += spins[neighbours[site, j]]
            twice_interactions += spins[site] * total
            magnetisation += spins[site]
    change = 0.5 * (coupling_end - coupling) * twice_interactions
    return (change + (field_end - field) * magnetisation) / n_steps, spins


@numba.njit(cache=True)
def anneal_general(
    spins: Spins,
    starts: Indices,
    neighbours: Indices,
    coupling: Floats,
    field: Floats,
    coupling_end: Floats,
    field_end: Floats,
    u: Floats,
) -> tuple[float, Spins]:
    """Return the log of the weight of annealed importance sampling, and the spins at its end."""
    spins = spins.copy()
    n_steps = len(u) + 1
    log_weight = 0.0
    for k in range(n_steps):
        if k > 0:
            weight = k / n_steps
            _sweep_general(
                spins,
                starts,
                neighbours,
                (1.0 - weight) * coupling + weight * coupling_end,
                (1.0 - weight) * field + weight * field_end,
                u[k - 1],
            )
        for site in range(len(spins)):
            change = field_end[site] - field[site]
            for j in range(starts[site], starts[site + 1]):
                # Each edge is seen from both of its ends.
                change += 0.5 * (coupling_end[j] - coupling[j]) * spins[neighbours[j]]
            log_weight += change * spins[site]
    return log_weight / n_steps, spins


# Statistics of a configuration


@numba.njit(cache=True)
def statistics(spins: Spins, edges: Indices) -> tuple[int, int]:
    """Return the sum over edges of the products of the spins at their ends, and that of spins."""
    interactions = 0
    for edge in range(len(edges)):
        interactions += spins[edges[edge, 0]] * spins[edges[edge, 1]]
    magnetisation = 0
    for spin in spins:
        magnetisation += spin
    return interactions, magnetisation
