"""Which stages of a log density to run, and how they are called."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pymc as pm
from pytensor.graph.op import Op

from pymc_apm._compat import compile_function
from pymc_apm.black_box import nodes_between
from pymc_apm.staging import Stage


class PlacedStage(NamedTuple):
    """A stage: where its inputs and outputs are among the values of an evaluation."""

    stage: Stage
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class StageFunction:
    """A stage, compiled when it is first called: not every step calls it."""

    def __init__(self, stage: Stage, model: pm.Model, compile_kwargs: Mapping[str, Any]) -> None:
        self._stage = stage
        self._model = model
        self._compile_kwargs = compile_kwargs
        self._function: Callable[..., Sequence[Any]] | None = None

    def compile(self) -> Callable[..., Sequence[Any]]:
        """Compile it, if that has not been done yet."""
        if self._function is None:
            stage = self._stage
            calls_python = bool(ops_in_python(stage))
            with self._model:  # the compiler heeds its check_bounds
                self._function = compile_function(
                    list(stage.inputs),
                    stage.results,
                    calls_python=calls_python,
                    **self._compile_kwargs,
                )
        return self._function

    def __call__(self, *values: Any) -> Sequence[Any]:
        """Run the stage."""
        return (self._function or self.compile())(*values)


class Call(NamedTuple):
    """A stage that can be called."""

    function: StageFunction
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Plan(NamedTuple):
    """What to run after a change of some blocks."""

    prior: tuple[Call, ...]
    others: tuple[Call, ...]
    computes_exact: bool
    computes_estimate: bool
    changes_theta: bool
    cubic: tuple[int, ...]


def ops_in_python(stage: Stage) -> list[Op]:
    """Return the ops of a stage that are known to call Python."""
    nodes = nodes_between(stage.results, stage.inputs)
    return [node.op for node in nodes if getattr(node.op, "calls_python", False)]


def run_calls(calls: Iterable[Call], values: list[Any]) -> None:
    """Run some stages, and put what they compute into its places."""
    for function, inputs, outputs in calls:
        results = function(*[values[place] for place in inputs])
        for place, result in zip(outputs, results, strict=True):
            values[place] = result


def sum_at(places: Iterable[int], values: Sequence[Any]) -> float:
    """Return the sum of the values at some places."""
    total = 0.0
    for place in places:
        total += float(values[place])
    return total
