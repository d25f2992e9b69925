"""The columns of the table of statistics that a block of draws fills, a row a draw."""

N_EVALS, N_THETA_EVALS, N_NAN, LOG_ESTIMATE, LOG_DENSITY = range(5)
N_UPDATES, N_MOVED, ACCEPT_RATE, SCALE, N_U_MOVED = range(5, 10)
N_COLUMNS = 10
