"""Chains that run in parallel must not fight for processors: BLAS has one thread in each."""

import pymc as pm
import pytest
import scipy.linalg.blas  # noqa: F401  (so that its BLAS is loaded, and can be limited)
from threadpoolctl import threadpool_info, threadpool_limits

import pymc_apm as apm


def threads() -> int:
    return max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")


@apm.black_box
def log_estimate(theta, u):
    if threads() > 1:
        raise RuntimeError(f"BLAS has {threads()} threads")
    return -0.5 * float(theta - 0.1 * u) ** 2


def sample(**options):
    with pm.Model():
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", log_estimate(pm.Flat("theta"), u))
        with threadpool_limits(2):
            return pm.sample(
                draws=5, tune=5, chains=2, random_seed=1, progressbar=False, quiet=True, **options
            )


def test_parallel_chains_have_one_blas_thread_each():
    assert sample(cores=2)["posterior"].sizes["draw"] == 5


def test_more_threads_would_be_noticed():
    with pytest.raises(Exception, match="BLAS has 2 threads"):
        sample(cores=2, blas_cores=4)
