"""When to compile a chain: if it is found on disk, or when it pays for the run at hand.

To compile takes longer than most runs. So a chain starts in Python. Once its draws have been timed,
a program that was compiled before is loaded, if that is worth a second; otherwise one is compiled
when the draws that are left would take much longer in Python than that takes. Of several processes
with the same program one compiles it, and the others go on in Python until they find it.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pymc_apm.errors import CompileError, see

if TYPE_CHECKING:
    from pymc_apm.compiled.program import Program
    from pymc_apm.steps.chain import Chain

Choice: TypeAlias = Literal["auto"] | bool

logger = logging.getLogger("pymc.apm")

SWITCH = "PYMC_APM_COMPILE"
"""The environment variable that turns ``compile="auto"`` into ``False`` if it is 0."""

FIRST_LOOK = 0.2
"""Seconds of draws in Python after which it is asked for the first time whether to compile."""

LOADING = 1.0
"""Seconds that it takes to load a program, with all that has to be imported."""

COMPILATION = 15.0
"""Seconds that it takes to compile one."""

SAVING = 0.75
"""The part of the time of a draw that is saved by compiled code, at least."""

SAVING_OF_LITTLE = 0.1
"""The same, where an op computes the estimate by compiled code of its own, also in Python."""

PATIENCE = 3.0
"""Seconds of compilation after which the user is told of it."""


class Compiling:
    """Decides whether a chain runs in compiled code.

    Parameters
    ----------
    choice : {"auto", True, False}
    name : str
        The name of the step, for messages.
    obstacle : str or None
        What is in the way of compiled code.
    is_fast : bool
        Whether most of a draw is compiled code, also in Python.

    Attributes
    ----------
    is_due : bool
        Whether it is time to ask for a program.
    """

    def __init__(
        self, choice: Choice, name: str, obstacle: str | None, is_fast: bool = False
    ) -> None:
        if choice == "auto" and os.environ.get(SWITCH) == "0":
            choice = False
        elif choice == "auto" and os.environ.get(SWITCH) == "1":
            choice = obstacle is None
        if choice is True and obstacle is not None:
            raise CompileError(f"{name} cannot be compiled. {obstacle} {see('compiled')}")
        if choice == "auto" and obstacle is not None:
            logger.info(f"{name} runs in Python. {obstacle}")
            choice = False
        self._choice: Choice = choice
        self._name = name
        self._is_fast = is_fast
        self._program: Program | None = None
        self._is_ready = False
        self.restart()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the program behind: another process finds it on disk."""
        return self.__dict__ | {"_program": None, "_is_ready": False}

    @property
    def is_open(self) -> bool:
        """Whether it depends on the time that draws take."""
        return self._choice == "auto"

    @property
    def is_wanted(self) -> bool:
        """Whether the user wants compiled code from the first draw on."""
        return self._choice is True

    def restart(self) -> None:
        """Forget what is known of a chain."""
        self._seconds = 0.0
        self._n_draws = 0
        self._n_left = 0
        self._n_interrupted = 0
        self._next_look = FIRST_LOOK
        self.is_due = self._choice is True or self._is_ready

    def note(self, seconds: float, n_left: int, is_interrupted: bool) -> None:
        """Take note of a draw in Python, and of how many are left."""
        self._seconds += seconds
        self._n_draws += 1
        self._n_left = n_left
        self._n_interrupted += is_interrupted
        self.is_due = self._choice == "auto" and self._seconds > self._next_look

    def give_up(self, error: Exception) -> None:
        """Stay in Python, which made the draws at which compiled code raised an error."""
        logger.warning(
            f"{self._name} goes on in Python, because compiled code raised an error where Python "
            f"raises none: {error!r}. Please report it."
        )
        self._choice, self._is_ready, self.is_due = False, False, False

    def program(self, chain: "Chain") -> "Program | None":
        """Return a program that can be run, if it is time for one."""
        if self._choice is True or self._is_ready:
            return self.compiled(chain)
        self.is_due = False
        self._next_look = 2.0 * self._seconds
        if self._saving() < LOADING or 2 * self._n_interrupted > self._n_draws:
            return None
        try:
            return self._worthwhile(chain)
        except Exception as error:  # PyTensor and Numba have many ways to say no
            logger.info(f"{self._name} runs in Python. There was an error: {error!r}.")
            self._choice = False
            return None

    def _saving(self) -> float:
        """Return the seconds that compiled code would save."""
        saving = SAVING_OF_LITTLE if self._is_fast else SAVING
        return saving * self._n_left * self._seconds / self._n_draws

    def _worthwhile(self, chain: "Chain") -> "Program | None":
        from pymc_apm.compiled.cache import the_only_one

        program = self._unready(chain)
        if program.is_at_hand(_arguments(program, chain)):
            return self.compiled(chain)
        if self._saving() < COMPILATION:
            return None
        if program.digest is None:
            return self.compiled(chain)
        with the_only_one(program.digest) as is_mine:
            return self.compiled(chain) if is_mine else None

    def _unready(self, chain: "Chain") -> "Program":
        """Return the program of a chain, which has yet to be compiled or loaded."""
        from pymc_apm.compiled.program import Program  # imports Numba, which takes long

        if self._program is None:
            sizes = [u.tag.apm_randomness.size for u in chain.moved]
            moved = dict(zip([u.name for u in chain.moved], sizes, strict=True))
            layout = {":theta": chain.target.layout.size}
            self._program = Program(chain.target, chain.recipe.build, layout | moved)
        return self._program

    def compiled(self, chain: "Chain") -> "Program":
        """Compile the program of a chain, or load it."""
        if not self._is_ready:
            with self._patience():
                program = self._unready(chain)
                program.compile(_arguments(program, chain))
            self._is_ready = True
        return self._unready(chain)

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Tell the user what is going on, if it takes long."""
        began = time.perf_counter()
        text = f"Compiling {self._name} for this model; the result is kept for the next time."
        timer = threading.Timer(PATIENCE, lambda: logger.warning(text))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
        seconds = time.perf_counter() - began
        logger.info(f"{self._name} is compiled, in {seconds:.1f} s.")


def _arguments(program: "Program", chain: "Chain") -> tuple[Any, ...]:
    """Return arguments of the types that the program will be called with."""
    given = program.densities.example()
    arguments: tuple[Any, ...] = chain.arguments(1, given, chain.learnt, chain.tune)
    return arguments
