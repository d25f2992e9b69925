"""The transition of a step as one function for Numba.

The update rules are those of :mod:`pymc_apm.kernels` and :mod:`pymc_apm.updates`
(:mod:`pymc_apm.compiled.jit`), the stages of the log density are what PyTensor makes of them
(:mod:`pymc_apm.compiled.stages`). What joins them depends on the model: which stages have to run
after a change of which block. It is written here, as source: a log density for each block, in the
form that kernels take, and a loop over draws.

In that source ``v0, v1, ...`` are the values of an evaluation, in the order of
:class:`~pymc_apm.target.Evaluation`: blocks first, then what the stages computed. Numbers are
floats, all else is arrays. ``d0, d1, ...`` are data. The memo that kernels hand around is the tuple
of all of these; its blocks are the ones from before the update, since the kernel knows the new one.
"""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pymc_apm.compiled.jit import Static, borrowed, jitted, never_inline
from pymc_apm.compiled.rules import Program, Rules, UMove
from pymc_apm.compiled.stages import CompiledStage
from pymc_apm.compiled.templates import ALONG, PREAMBLE, RUN, STAGE
from pymc_apm.kernels.metropolis import metropolis_independence
from pymc_apm.kernels.state import State
from pymc_apm.plan import PlacedStage
from pymc_apm.staging import TermKind
from pymc_apm.target import REST, THETA, Target
from pymc_apm.updates.random_walk import n_proposals, propose_jointly
from pymc_apm.updates.slice import update_by_slice


def frozen_lines(learnt: Any) -> Any:
    """Return what slice sampling takes of what was learnt, when that is frozen."""
    return borrowed(learnt.covariance.cholesky), borrowed(learnt.widths.width)


def frozen_walk(learnt: Any) -> Any:
    """Return what a random walk takes of what was learnt, when that is frozen."""
    return borrowed(learnt.covariance.cholesky), learnt.scale.scaling


class Writer:
    """Writes the programs for one target.

    Parameters
    ----------
    target : Target
    compiled : list of CompiledStage
        Its stages, in their order.
    """

    def __init__(self, target: Target, compiled: Sequence[CompiledStage]) -> None:
        self._target = target
        self._n_blocks = len(target.places)
        self._stages = list(zip(target.stages, compiled, range(len(compiled)), strict=True))
        self._shape: dict[int, tuple[int | None, ...]] = {
            place: (None,) for place in target.places.values()
        }
        self._data: list[list[str]] = []
        n_data = 0
        for placed, stage, _ in self._stages:
            self._shape.update(zip(placed.outputs, stage.shapes, strict=True))
            self._data.append([f"d{i}" for i in range(n_data, n_data + len(stage.data))])
            n_data += len(stage.data)

    def program(self, rules: Rules) -> Program:
        """Write the functions that make a block of draws, ``learn`` while tuning and ``run``."""
        namespace: dict[str, Any] = {
            "State": State,
            "Static": Static,
            "borrowed": borrowed,
            "frozen": jitted(frozen_lines if rules.update is update_by_slice else frozen_walk),
            "learn_theta": jitted(rules.learn),
            "update_theta": jitted(rules.update),
            "n_proposals": jitted(n_proposals),
            "propose_jointly": jitted(propose_jointly),
            "metropolis_independence": jitted(metropolis_independence),
        }
        for _, stage, number in self._stages:
            namespace[f"stage{number}"] = stage.function
        for i, move in enumerate(rules.moves):
            namespace[f"draw{i}"] = Static(jitted(move.draw))
            namespace[f"correlated{i}"] = Static(jitted(move.correlated))
            if move.kernel is not None:
                namespace[f"update{i}"] = jitted(move.kernel)
        shared = [PREAMBLE]
        for _, stage, number in self._stages:
            if stage.elements is None:
                namespace["never_inline"] = never_inline
                namespace[f"inner_stage{number}"] = stage.function
                shared += [STAGE.format(number=number)]
        if any(rules.is_joint):
            shared += [self._along("joint", [THETA, *(m.name for m in rules.moves)])]
            shared += [_joint_proposal(rules.moves, rules.correlation)]
        if not all(rules.is_joint):
            shared += [self._along("theta", [THETA])]
            shared += [self._along(f"u{i}", [m.name]) for i, m in enumerate(rules.moves)]
        functions = {}
        for learns, is_joint in zip((True, False), rules.is_joint, strict=True):
            transition = (
                self._joint_transition(rules.moves)
                if is_joint
                else self._alternating_transition(rules.moves, learns)
            )
            name = "learn" if learns else "run"
            functions[name] = self._run(name, rules.moves, transition)
        return Program("".join(shared), functions, namespace)

    # Pieces

    def _computed(self) -> list[int]:
        return [place for placed, _, _ in self._stages for place in placed.outputs]

    def _all_data(self) -> list[str]:
        return [name for names in self._data for name in names]

    def _memo(self, arrays_recomputed: Iterable[int] | None = None) -> str:
        """Write the memo. Before an update its arrays are borrowed, if they stay as they are."""
        if arrays_recomputed is None:  # within a log density
            blocks = [f"m{i}" for i in range(self._n_blocks)]
            computed = [f"v{i}" for i in self._computed()]
            data = self._all_data()
        else:
            blocks = [f"v{i}" for i in range(self._n_blocks)]
            computed = [
                f"v{i}" if i in arrays_recomputed or self._shape[i] == () else f"borrowed(v{i})"
                for i in self._computed()
            ]
            data = self._all_data()
        return _tuple(["counts", *data, *blocks, *computed, *LOGS])

    def _along(self, tag: str, names: Sequence[str]) -> str:
        """Write the log density as a function of some blocks."""
        places = [self._target.places[name] for name in names]
        stages = self._depending_on(names)
        unpack = ["counts", *self._all_data(), *(f"m{i}" for i in range(self._n_blocks))]
        unpack += [*(f"v{i}" for i in self._computed()), *LOGS]
        changed = [f"v{i} = m{i}" for i in range(self._n_blocks) if i not in places]
        if len(places) == 1:
            changed += [f"v{places[0]} = position"]
        else:
            changed += [f"v{place} = position[{i}]" for i, place in enumerate(places)]
        prior = self._calls(stages, is_prior=True)
        if prior:
            prior += [f"log_prior = {self._sum('prior')}"]
            prior += ["if not log_prior > -inf:", "    return -inf, memo"]
        others = self._calls(stages, is_prior=False)
        if any("exact" in placed.stage.sums for placed, _, _ in stages):
            others += [f"log_exact = {self._sum('exact')}"]
        others += [f"log_estimate = {self._sum('estimate')}"]
        return ALONG.format(
            tag=tag,
            # A call is nothing beside the work of a large stage, and quicker to compile.
            is_small=all(stage.elements is not None for _, stage, _ in stages),
            unpack=_tuple(unpack),
            changed=_indented(changed, 4),
            prior=_indented(prior, 4),
            computes_estimate=int(any("estimate" in p.stage.sums for p, _, _ in stages)),
            changes_theta=int(not {THETA, REST}.isdisjoint(names)),
            others=_indented(others, 4),
            memo=self._memo(),
        )

    def _run(self, name: str, moves: Sequence[UMove], transition: list[str]) -> str:
        prior = self._calls(self._stages, is_prior=True)
        others = self._calls(self._stages, is_prior=False)
        record = []
        for i, move in enumerate(moves):
            place = self._target.places[move.name]
            record += [f"for i in range(us[{i}].shape[1]):"]
            record += [f"    us[{i}][draw, i] = v{place}[i]"]
        return RUN.format(
            name=name,
            blocks=_indented(
                [
                    *(f"v{i} = borrowed(blocks[{i}])" for i in range(self._n_blocks)),
                    *(f"{n} = borrowed(data[{i}])" for i, n in enumerate(self._all_data())),
                ],
                4,
            ),
            prior=_indented([*prior, f"log_prior = {self._sum('prior')}"], 4),
            others=_indented(
                [
                    *others,
                    f"log_exact = {self._sum('exact')}",
                    f"log_estimate = {self._sum('estimate')}",
                ],
                4,
            ),
            transition=_indented(transition, 12),
            record=_indented(record, 8),
        )

    def _alternating_transition(self, moves: Sequence[UMove], learns: bool) -> list[str]:
        lines = []
        for i, move in enumerate(moves):
            place = self._target.places[move.name]
            kernel = f"update{i}" if move.kernel is not None else "metropolis_independence"
            argument = "" if move.kernel is not None else f", draw{i}"
            lines += [
                f"state = State(v{place}, log_density, {self._memo_before([move.name])})",
                f"state, info = {kernel}(rng, state, along_u{i}{argument})",
                "n_u_moved += int(info.accepted)",
                "if info.accepted:",
                f"    overwrite(v{place}, state.position)",
                *self._take_over([move.name]),
            ]
        returned = "state, learnt, report" if learns else "state, report"
        update = "learn_theta" if learns else "update_theta"
        learnt = "learnt" if learns else "cholesky, scales"
        return [
            *lines,
            f"state = State(v0, log_density, {self._memo_before([THETA])})",
            f"{returned} = {update}(rng, state, along_theta, options, {learnt})",
            "if report.n_moved > 0:",
            "    overwrite(v0, state.position)",
            *self._take_over([THETA]),
            "n_updates += report.n_updates",
            "n_moved += report.n_moved",
            "accept_rate += report.accept_rate",
            "scale += report.scale",
        ]

    def _joint_transition(self, moves: Sequence[UMove]) -> list[str]:
        names = [THETA, *(move.name for move in moves)]
        places = [self._target.places[name] for name in names]
        position = _tuple(f"v{place}" for place in places)
        given = "options, cholesky, scales, propose_u, number"
        call = f"propose_jointly(rng, state, along_joint, {given})"
        body = [
            f"state = State({position}, log_density, {self._memo_before(names)})",
            f"state, info = {call}",
            "if info.accepted:",
            *(f"    overwrite(v{place}, state.position[{i}])" for i, place in enumerate(places)),
            *self._take_over(names),
            "n_updates += 1",
            "n_moved += int(info.accepted)",
            "n_u_moved += int(info.accepted)",
            "accept_rate += info.accept_rate",
        ]
        loop = "for number in range(n_proposals(options, v0.size)):"
        return [loop, *(f"    {line}" for line in body), "scale += scales"]

    def _memo_before(self, names: Sequence[str]) -> str:
        recomputed = {i for placed, _, _ in self._depending_on(names) for i in placed.outputs}
        return self._memo(recomputed)

    def _take_over(self, names: Sequence[str]) -> list[str]:
        """Write how the values of an evaluation are read from the state after an update."""
        first = 1 + len(self._all_data()) + self._n_blocks
        computed = self._computed()
        lines = ["log_density = state.log_density"]
        for placed, _, _ in self._depending_on(names):
            for place in placed.outputs:
                lines += [f"v{place} = state.memo[{first + computed.index(place)}]"]
        for i, name in enumerate(LOGS):
            lines += [f"{name} = state.memo[{first + len(computed) + i}]"]
        return lines

    def _depending_on(self, names: Sequence[str]) -> list[tuple[PlacedStage, CompiledStage, int]]:
        return [item for item in self._stages if item[0].stage.depends_on & set(names)]

    def _calls(
        self, stages: Iterable[tuple[PlacedStage, CompiledStage, int]], is_prior: bool
    ) -> list[str]:
        lines = []
        for placed, stage, number in stages:
            if placed.stage.is_prior == is_prior:
                lines += self._call(placed, stage, number)
        return lines

    def _call(self, placed: PlacedStage, stage: CompiledStage, number: int) -> list[str]:
        """Write the call of a stage."""
        result = f"r{number}"
        outputs = zip(placed.outputs, stage.shapes, stage.dtypes, strict=True)
        if stage.elements is None:
            arguments = [
                f"np.asarray(v{i})" if self._shape[i] == () else f"v{i}" for i in placed.inputs
            ]
            arguments += self._data[number]
            lines = [f"{result} = stage{number}({', '.join(arguments)})"]
            for i, (place, shape, _) in enumerate(outputs):
                lines += [f"v{place} = {result}[{i}]" + ("[()]" if shape == () else "")]
            return lines
        arguments = [self._element(placed.inputs[i], index) for i, index in stage.elements]
        lines = [f"{result} = stage{number}({', '.join(arguments)})"]
        first = 0
        for place, shape, dtype in outputs:
            if shape == ():
                lines += [f"v{place} = {result}[{first}]"]
                first += 1
                continue
            indices = list(_indices(shape))
            lines += [f"v{place} = np.empty({_tuple(map(str, shape))}, np.{dtype})"]
            lines += [
                f"v{place}[{', '.join(map(str, index))}] = {result}[{first + i}]"
                for i, index in enumerate(indices)
            ]
            first += len(indices)
        return lines

    def _element(self, place: int, index: int) -> str:
        shape = self._shape[place]
        if shape == ():
            return f"v{place}"
        if len(shape) == 1:
            return f"v{place}[{index}]"
        return f"v{place}[{', '.join(map(str, list(_indices(shape))[index]))}]"

    def _sum(self, kind: TermKind) -> str:
        terms = [f"float(v{place})" for place in self._target.sums[kind]]
        return " + ".join(["0.0", *terms])


LOGS = ("log_estimate", "log_prior", "log_exact")


def _joint_proposal(moves: Sequence[UMove], correlation: float) -> str:
    if correlation:
        proposals = [f"correlated{i}(rng, u[{i}], {correlation!r})" for i in range(len(moves))]
    else:
        proposals = [f"draw{i}(rng, u[{i}].size)" for i in range(len(moves))]
    return f"""
@njit(forceinline=True)
def propose_u(rng, u):
    return {_tuple(proposals)}

propose_u = Static(propose_u)
"""


def _tuple(items: Iterable[str]) -> str:
    return f"({', '.join(items)},)"


def _indented(lines: Iterable[str], n_spaces: int) -> str:
    return textwrap.indent("\n".join(lines), " " * n_spaces)


def _indices(shape: Sequence[Any]) -> Iterable[tuple[int, ...]]:
    return np.ndindex(*shape)
