"""Compiling the functions that a program is made of, without making machine code of each.

Numba optimises every function that another one calls, with all that it calls in turn, and makes
machine code of it, and then does the same for the caller. The functions here are nested ten deep,
and nobody calls them but the program that they are part of: so they are translated and linked into
it, and optimised there, once. That takes less than two thirds of the time.
"""

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.typed_passes import NativeLowering


class PartLibrary(JITCodeLibrary):
    """What was made of a function, to be linked into that of another one."""

    def _optimize_final_module(self) -> None:
        """Leave that to the whole."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class PartLowering(NativeLowering):
    """Translates a function, and lets others link to it."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        """Translate the function."""
        state.library = PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        # Any function in C, another one each time: it is by this that Numba finds the part.
        stand_in = list[Any]().append
        state.targetctx.insert_user_function(stand_in, state.cr.fndesc, [state.library])
        state["cr"] = state.cr._replace(cfunc=stand_in)
        return True


class PartCompiler(Compiler):
    """Numba's compiler with another last step."""

    def define_pipelines(self) -> list[PassManager]:
        """Return Numba's passes, one of them replaced."""
        (usual,) = super().define_pipelines()
        manager = PassManager("part")
        for kind, description in usual.passes:
            manager.add_pass(PartLowering if kind is NativeLowering else kind, description)
        manager.finalize()
        return [manager]
