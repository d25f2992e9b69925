"""Compiling the functions that a program is made of, without making machine code of each.

Numba optimises every function that another one calls, with all that it calls in turn, and makes
machine code of it, and then does the same for the caller. The functions here are nested ten deep,
and nobody calls them but the program that they are part of: so they are translated and linked into
it, and optimised there, once. That takes less than two thirds of the time.

A program holds Python's lock and shares no array with other threads, so that it need not count
references to arrays atomically, which would take most of the time of a short transition.
"""

from typing import Any

from llvmlite import ir
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.runtime import nrtdynmod
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


class WholeLibrary(JITCodeLibrary):
    """What is made of a program, with its own way to count references."""

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        module = self.create_ir_module("counts")
        nrtdynmod._define_nrt_incref(module, _counting(module, "add"))
        nrtdynmod._define_nrt_decref(module, _counting(module, "sub"))
        self.add_ir_module(module)

    def _optimize_final_module(self) -> None:
        super()._optimize_final_module()
        for name in ("NRT_incref", "NRT_decref"):
            self._final_module.get_function(name).linkage = "internal"


@register_pass(mutates_CFG=True, analysis_only=False)
class WholeLowering(NativeLowering):
    """Translates a program."""

    _name = "whole_lowering"

    def run_pass(self, state: Any) -> bool:
        """Translate the function."""
        state.library = WholeLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().run_pass(state)


def _counting(module: ir.Module, operation: str) -> ir.Function:
    """Return a function that adds one to a count, or subtracts one, and returns the new value."""
    word = nrtdynmod._word_type
    function = ir.Function(module, ir.FunctionType(word, [word.as_pointer()]), f"count_{operation}")
    function.linkage = "private"
    builder = ir.IRBuilder(function.append_basic_block())
    count = getattr(builder, operation)(builder.load(function.args[0]), word(1))
    builder.store(count, function.args[0])
    builder.ret(count)
    return function


def _compiler(lowering: type[NativeLowering]) -> type[Compiler]:
    """Return Numba's compiler with another last step."""

    class OtherCompiler(Compiler):
        def define_pipelines(self) -> list[PassManager]:
            (usual,) = super().define_pipelines()
            manager = PassManager(lowering._name)
            for kind, description in usual.passes:
                manager.add_pass(lowering if kind is NativeLowering else kind, description)
            manager.finalize()
            return [manager]

    return OtherCompiler


PartCompiler, WholeCompiler = _compiler(PartLowering), _compiler(WholeLowering)
