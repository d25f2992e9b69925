"""Updates of the parameters that learn while tuning: kernels together with their adaptation.

Each is a function of a generator, a state, a log density, options that stay the same for the whole
chain and what was learnt so far; it returns the new state, what is learnt now, and what to report.
They are what the steps make transitions from, in Python and compiled by Numba: numpy only.
"""
