"""Ising models on any graph: their unnormalised density, and exact samples of them.

    p(x | J, h) = exp(sum over edges J_ij x_i x_j + sum over sites h_i x_i) / Z(J, h),  x_i = -1, +1

Exact samples come from a Gibbs sampler that was started infinitely long ago. Its uniform numbers
``u[t, i]``, for the sweep ``t`` before the present and site ``i``, are drawn as far back as it
takes until the present no longer depends on the state that they were applied to:

- *monotone coupling from the past* (Propp and Wilson, 1996) applies them to the two extreme states,
  all up and all down. It needs couplings that are not negative.
- *summary states* (Childs, Patterson and MacKay, 2001) applies them to one state whose sites may be
  unknown. It takes couplings of any sign.

Where both are possible they use the same numbers and give the same sample. In either, the numbers
that were drawn are kept when the run starts further back, and the result does not depend on how far
back that is: the sample is a function of the parameters and of the stream of numbers alone.
"""

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_apm.deprecated import once_positional
from pymc_apm.errors import CoalescenceError, ModelError, describe_value, see
from pymc_apm.estimators.intractable.graph import checked_edges, lattice_edges, neighbours_of
from pymc_apm.estimators.intractable.normaliser import WIDEST, enumerated_log_z, torus_log_z
from pymc_apm.validation import one_of, positive_integer

__all__ = ["ExactSample", "Ising"]

Spins = NDArray[np.int8]
Method = Literal["auto", "summary_states", "monotone"]

LARGEST_TABLE = 15
"""The largest number of neighbours for which probabilities are looked up in a table."""

FIRST_START = 4
"""How many sweeps before the present the first run starts; fewer are hardly ever enough."""


class ExactSample(NamedTuple):
    """An exact sample and what it took.

    Attributes
    ----------
    spins : ndarray
        The sample: -1 or +1 for each site.
    start : int
        How many sweeps before the present the run started that gave it.
    n_sweeps : int
        Sweeps computed in all, with those of the runs that started too late.
    """

    spins: Spins
    start: int
    n_sweeps: int


class Ising:
    """An Ising model on a graph, with exact samplers: a family for :func:`doubly_intractable`.

    Its parameters are the coupling (one number, or one for each edge) and the field (one number, or
    one for each site, such as ``X @ beta`` in an autologistic regression). Sampling is fastest
    where both are numbers and all sites have equally many neighbours, as on a torus.

    Parameters
    ----------
    edges : array of int
        Pairs of sites, one for each edge of the graph, with shape (n_edges, 2).
    n_sites : int, optional
        How many sites there are; as many as the edges name if not given.
    method : {"auto", "summary_states", "monotone"}
        The exact sampler. ``"monotone"`` refuses negative couplings. ``"auto"`` is summary states,
        which takes any and is the faster one where there is a choice.
    max_sweeps : int
        How many sweeps into the past a sampler may start. Beyond that it gives up with a
        :class:`~pymc_apm.errors.CoalescenceError`.

    Attributes
    ----------
    n_sites : int
    edges : ndarray

    References
    ----------
    Propp, J. G. and Wilson, D. B. (1996). Exact sampling with coupled Markov chains and
    applications to statistical mechanics. Random Structures and Algorithms 9.

    Childs, A. M., Patterson, R. B. and MacKay, D. J. C. (2001). Exact sampling from nonattractive
    distributions using summary states. doi:10.1103/PhysRevE.63.036113.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc_apm as apm
    >>> ising = apm.estimators.Ising.torus(10, 30)
    >>> rng = np.random.default_rng(1)
    >>> spins = ising.sample(0.3, 0.0, rng)
    >>> spins.shape, ising.statistics(spins)
    ((300,), (220, 18))
    """

    @once_positional("n_sites")
    def __init__(
        self,
        edges: ArrayLike,
        *,
        n_sites: int | None = None,
        method: Method = "auto",
        max_sweeps: int = 2**16,
    ) -> None:
        one_of("method of Ising", method, "auto", "summary_states", "monotone")
        self.method = method
        self.max_sweeps = positive_integer("max_sweeps of Ising", max_sweeps)
        self.edges = checked_edges(edges)
        largest = int(self.edges.max(initial=-1)) + 1
        self.n_sites = largest if n_sites is None else positive_integer("n_sites of Ising", n_sites)
        if self.n_sites < max(largest, 1):
            raise ModelError(
                f"An edge of the Ising model names site {largest - 1}, but there are "
                f"{self.n_sites} sites, counted from 0."
            )
        self._torus_shape: tuple[int, int] | None = None
        self._starts, self._neighbours, self._edge_of_neighbour = neighbours_of(
            self.edges, self.n_sites
        )
        degrees = np.diff(self._starts)
        self._table_of_neighbours = (
            self._neighbours.reshape(self.n_sites, -1)
            if 0 < degrees[0] <= LARGEST_TABLE and (degrees == degrees[0]).all()
            else None
        )

    @classmethod
    def lattice(cls, n_rows: int, n_columns: int, *, torus: bool = False, **options: Any) -> Self:
        """Return the model on a square lattice, whose sites are numbered row by row.

        Parameters
        ----------
        n_rows, n_columns : int
        torus : bool
            Whether the sites at opposite sides are neighbours.
        **options
            For :class:`Ising`: ``method``, ``max_sweeps``.

        Returns
        -------
        Ising
        """
        edges = lattice_edges(n_rows, n_columns, torus)
        ising = cls(edges, n_sites=n_rows * n_columns, **options)
        ising._torus_shape = (n_rows, n_columns) if torus else None
        return ising

    @classmethod
    def torus(cls, n_rows: int, n_columns: int, **options: Any) -> Self:
        """Return the model on a square lattice whose opposite sides are joined.

        Parameters
        ----------
        n_rows, n_columns : int
        **options
            For :class:`Ising`: ``method``, ``max_sweeps``.

        Returns
        -------
        Ising
        """
        return cls.lattice(n_rows, n_columns, torus=True, **options)

    def __repr__(self) -> str:
        return f"Ising({self.n_sites} sites, {len(self.edges)} edges)"

    # The density

    def prepare(self, observed: ArrayLike) -> Spins:
        """Check a configuration, in any shape and type, and return it as a vector of int8."""
        spins = np.asarray(observed).ravel()
        if spins.size != self.n_sites:
            raise ModelError(
                f"A configuration of this Ising model has {self.n_sites} sites, got one with "
                f"{spins.size}."
            )
        if not np.isin(spins, (-1, 1)).all():
            raise ModelError(
                "The spins of an Ising model are -1 and +1, got "
                f"{describe_value(np.unique(spins))}. Data of 0 and 1 become spins by 2 * y - 1."
            )
        return spins.astype(np.int8)

    def _spins(self, x: ArrayLike) -> Spins:
        """Trust what this class makes, and check everything else."""
        if isinstance(x, np.ndarray) and x.dtype == np.int8 and x.shape == (self.n_sites,):
            return x
        return self.prepare(x)

    def statistics(self, x: ArrayLike) -> tuple[int, int]:
        """Return the sum over edges of the products of spins, and the sum of spins."""
        spins = self._spins(x)
        return _kernels().statistics(spins, self.edges)

    def log_g(self, x: ArrayLike, coupling: Any, field: Any) -> float:
        """Return the log of the unnormalised density.

        Parameters
        ----------
        x : array
            The spins, -1 or +1.
        coupling : float or array
            One number, or one for each edge.
        field : float or array
            One number, or one for each site.

        Returns
        -------
        float
        """
        spins = self._spins(x)
        if _is_number(coupling) and _is_number(field):
            interactions, magnetisation = _kernels().statistics(spins, self.edges)
            return float(coupling * interactions + field * magnetisation)
        products = spins[self.edges[:, 0]] * spins[self.edges[:, 1]]
        energy = np.dot(self._per_edge(coupling), products)
        return float(energy + np.dot(self._per_site(field), spins))

    # Sampling

    def sample(self, coupling: Any, field: Any, rng: Any) -> Spins:
        """Draw an exact sample.

        Parameters
        ----------
        coupling : float or array
            One number, or one for each edge.
        field : float or array
            One number, or one for each site.
        rng : Generator
            A numpy generator, or what a black box receives for an :func:`~pymc_apm.Stream`.

        Returns
        -------
        ndarray of int8
            The spins, -1 or +1.

        Raises
        ------
        CoalescenceError
            If more than ``max_sweeps`` sweeps would be needed.
        """
        return self.exact_sample(coupling, field, rng).spins

    def exact_sample(self, coupling: Any, field: Any, rng: Any) -> ExactSample:
        """Draw an exact sample, as :meth:`sample` does, and report what it took."""
        run = self._runner(coupling, field)
        start = min(FIRST_START, self.max_sweeps)
        numbers = np.empty((8 * start, self.n_sites))
        rng.random(out=numbers[:start])
        n_sweeps = 0
        while True:
            spins, n_unknown = run(numbers[:start])
            n_sweeps += start
            if n_unknown == 0:
                return ExactSample(spins, start, n_sweeps)
            if 2 * start > self.max_sweeps:
                raise CoalescenceError(self._describe_failure(coupling, field, start, n_unknown))
            if 2 * start > len(numbers):
                numbers = np.concatenate((numbers, np.empty_like(numbers)))
            rng.random(out=numbers[start : 2 * start])
            start *= 2

    def _runner(self, coupling: Any, field: Any) -> Callable[..., tuple[Spins, int]]:
        """Return the run of the exact sampler from the past, as a function of the numbers."""
        is_monotone = self.method == "monotone"
        if is_monotone and np.min(coupling) < 0.0:
            raise ModelError(
                "Monotone coupling from the past needs couplings that are not negative, got "
                f'{describe_value(coupling)}. Use method="summary_states" for any.'
            )
        kernels = _kernels()
        if self._is_regular(coupling, field):
            kernel = kernels.monotone_regular if is_monotone else kernels.summary_regular
            neighbours, j, h = self._table_of_neighbours, float(coupling), float(field)
            return lambda numbers: kernel(neighbours, j, h, numbers)
        kernel = kernels.monotone_general if is_monotone else kernels.summary_general
        arguments = self._general_arguments(coupling, field)
        return lambda numbers: kernel(*arguments, numbers)

    @property
    def transition_size(self) -> int:
        """How many uniform numbers :meth:`transition` takes."""
        return self.n_sites

    def transition(self, x: ArrayLike, coupling: Any, field: Any, u: NDArray[np.float64]) -> Spins:
        """Return the spins after one sweep of Gibbs sampling, which leaves the model invariant.

        Parameters
        ----------
        x : array
            The spins, -1 or +1.
        coupling : float or array
            One number, or one for each edge.
        field : float or array
            One number, or one for each site.
        u : ndarray
            A uniform number for each site.

        Returns
        -------
        ndarray of int8
        """
        spins = self._spins(x)
        if self._is_regular(coupling, field):
            return _kernels().gibbs_regular(
                spins, self._table_of_neighbours, float(coupling), float(field), u
            )
        return _kernels().gibbs_general(spins, *self._general_arguments(coupling, field), u)

    def anneal(
        self,
        x: ArrayLike,
        parameters: Sequence[Any],
        reference: Sequence[Any],
        u: NDArray[np.float64],
    ) -> float:
        """Estimate log Z(reference) / Z(parameters) by annealed importance sampling.

        The same as the general way, by :meth:`log_g` and :meth:`transition`, but in one go.
        """
        return self.annealed(x, parameters, reference, u)[0]

    def annealed(
        self,
        x: ArrayLike,
        parameters: Sequence[Any],
        reference: Sequence[Any],
        u: NDArray[np.float64],
    ) -> tuple[float, Spins]:
        """Return what :meth:`anneal` does, and the spins at the end."""
        spins = self._spins(x)
        (coupling, field), (coupling_end, field_end) = parameters, reference
        if self._is_regular(coupling, field):
            return _kernels().anneal_regular(
                spins,
                self._table_of_neighbours,
                float(coupling),
                float(field),
                float(coupling_end),
                float(field_end),
                u,
            )
        return _kernels().anneal_general(
            spins,
            *self._general_arguments(coupling, field),
            *self._general_arguments(coupling_end, field_end)[2:],
            u,
        )

    def easy(self, coupling: Any, field: Any) -> tuple[Any, Any]:
        """Return parameters of the same shapes at which the spins are independent and fair."""
        return 0.0 * coupling, 0.0 * field

    def _is_regular(self, coupling: Any, field: Any) -> bool:
        is_regular = self._table_of_neighbours is not None
        return is_regular and _is_number(coupling) and _is_number(field)

    def _general_arguments(self, coupling: Any, field: Any) -> tuple[Any, ...]:
        return (
            self._starts,
            self._neighbours,
            self._per_edge(coupling)[self._edge_of_neighbour],
            self._per_site(field).copy(),
        )

    def _per_edge(self, coupling: Any) -> NDArray[np.float64]:
        return _broadcast("coupling", coupling, "edges", len(self.edges))

    def _per_site(self, field: Any) -> NDArray[np.float64]:
        return _broadcast("field", field, "sites", self.n_sites)

    def _describe_failure(self, coupling: Any, field: Any, start: int, n_unknown: int) -> str:
        return (
            f"The exact sampler of {self!r} did not finish at coupling = "
            f"{describe_value(coupling)}, field = {describe_value(field)}: with all random numbers "
            f"of the last {start} sweeps {n_unknown} sites still depend on the state before them, "
            f"and max_sweeps is {self.max_sweeps}. The stronger the coupling and the weaker the "
            "field, the longer it takes, and beyond a critical coupling (0.44 on a large square "
            "lattice without a field; earlier for negative or mixed couplings) it practically "
            "never ends. Keep such parameters out of the prior, for example by "
            'pm.Uniform("coupling", 0, 0.4), or raise max_sweeps. ' + see("doubly_intractable")
        )

    # The exact answer, for small models

    def log_z(self, coupling: Any, field: Any) -> float:
        """Return the log of the normaliser Z, for models that are small enough.

        These are models of at most 20 sites, by enumeration, and a torus of any length that is at
        most 12 sites wide, with one coupling and one field, by its transfer matrix.

        Parameters
        ----------
        coupling : float or array
            One number, or one for each edge.
        field : float or array
            One number, or one for each site.

        Returns
        -------
        float

        Examples
        --------
        >>> import pymc_apm as apm
        >>> print(f"{apm.estimators.Ising.torus(4, 100).log_z(0.3, 0.0):.6f}")
        317.790383
        """
        if self.n_sites <= 20:
            return enumerated_log_z(self.edges, self._per_edge(coupling), self._per_site(field))
        is_uniform = _is_number(coupling) and _is_number(field)
        if self._torus_shape is not None and is_uniform and min(self._torus_shape) <= WIDEST:
            width, length = sorted(self._torus_shape)
            return torus_log_z(width, length, float(coupling), float(field))
        raise ModelError(
            f"The normaliser of {self!r} is a sum of 2**{self.n_sites} terms, which is why it is "
            "estimated. It is known for at most 20 sites, and for a torus that is at most "
            f"{WIDEST} sites wide with one coupling and one field."
        )


@functools.cache
def _kernels() -> ModuleType:
    # Numba takes half a second to import, and only those who use an Ising model need it.
    from pymc_apm.estimators.intractable import sweeps

    return sweeps


def _is_number(parameter: Any) -> bool:
    return isinstance(parameter, float) or np.ndim(parameter) == 0


def _broadcast(name: str, value: Any, what: str, length: int) -> NDArray[np.float64]:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim > 1 or (array.ndim == 1 and array.size != length):
        raise ModelError(
            f"The {name} of an Ising model must be one number, or one for each of the {length} "
            f"{what}, got an array of shape {array.shape}."
        )
    return np.broadcast_to(array, length)
