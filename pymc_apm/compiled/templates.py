"""The parts of a compiled program that are the same for all models.

What stands in braces is written by :mod:`pymc_apm.compiled.source`. ``counts`` has the numbers of
estimates, of values of the parameters, of estimates that were not a number and of those that were
+inf. ``{name}`` makes ``n_draws`` draws, of ``thin`` transitions each, and fills a row of
``thetas``, of each of ``us`` and of ``table`` (:mod:`pymc_apm.updates.table`) for each. It returns
how many it made, and what was learnt.
"""

PREAMBLE = """
@njit(forceinline=True)
def overwrite(vector, other):
    for i in range(vector.size):
        vector[i] = other[i]

@njit(forceinline=True)
def judged(log_estimate, counts, counts_as_nan):
    # An estimate that is not a number counts as zero; one that is infinite is an error.
    if log_estimate == inf:
        counts[3] += 1
    elif isnan(log_estimate):
        counts[2] += counts_as_nan
        return -inf
    return log_estimate
"""

STAGE = """
@njit
def stage{number}(*values):
    never_inline()
    return inner_stage{number}(*values)
"""

ALONG = """
@njit(forceinline={is_small})
def along_{tag}(position, memo):
    {unpack} = memo
{changed}
{prior}
    counts[0] += {computes_estimate}
    counts[1] += {changes_theta}
{others}
    log_density = log_prior + log_exact + log_estimate
    if not log_density < inf:
        log_estimate = judged(log_estimate, counts, {computes_estimate})
        log_density = -inf
    return log_density, {memo}

along_{tag} = Static(along_{tag})
"""

RUN = """
def {name}(rng, n_draws, thin, blocks, data, options, learnt, thetas, us, table, start, counts_):
    counts = borrowed(counts_)
    # The arguments outlive the call; blocks are overwritten where a draw is accepted.
{blocks}
{prior}
    start[0], start[1], start[2], start[3] = -inf, -inf, log_prior, 0.0
    if not log_prior > -inf:
        return 0, learnt
{others}
    log_density = log_prior + log_exact + log_estimate
    if not log_density < inf:
        log_estimate = judged(log_estimate, counts, 1)
        log_density = -inf
    start[0], start[1], start[3], start[4] = log_density, log_estimate, log_exact, counts[3]
    if not log_density > -inf:
        return 0, learnt
    cholesky, scales = frozen(learnt)
    for draw in range(n_draws):
        counts[0], counts[1], counts[2] = 0, 0, 0
        n_updates, n_moved, accept_rate, scale, n_u_moved = 0, 0, 0.0, 0.0, 0
        for _ in range(thin):
{transition}
        for i in range(thetas.shape[1]):
            thetas[draw, i] = v0[i]
{record}
        table[draw, 0], table[draw, 1], table[draw, 2] = counts[0], counts[1], counts[2]
        table[draw, 3], table[draw, 4] = log_estimate, log_density
        table[draw, 5], table[draw, 6] = n_updates, n_moved
        table[draw, 7], table[draw, 8], table[draw, 9] = accept_rate, scale, n_u_moved
        if counts[3] > 0:
            return draw, learnt
    return n_draws, learnt
"""
