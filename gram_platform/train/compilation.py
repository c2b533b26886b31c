"""Compiles functions of a run by torch.compile, and goes on without it where compiling fails."""

import functools
from collections.abc import Callable
from typing import TypeVar

import torch

from gram_platform.config.terminal import one_line, warn
from gram_platform.model.kernels import repeats_keys
from gram_platform.model.transformer import Mlp, Transformer

BACKEND = "inductor"
MAX_GRAPHS = 32  # of one function: four sizes of a pass for each kind of route, and the batches of evaluations
Result = TypeVar("Result")


class Compilation:
    """Compiles functions until that fails once. Then all run as they are, with one warning.

    Whatever compiling raises is met by calling the function itself, which must be pure: its own errors rise from there.
    What ran compiled earlier in the same pass is recomputed so, and nothing else: both must save the same tensors.
    Ranks decide each for itself, since a compiled function communicates with no other.
    """

    def __init__(self, backend: str | Callable = BACKEND, max_graphs: int = MAX_GRAPHS):
        """`max_graphs` bounds the graphs of one function; torch then runs the function itself.

        torch keeps one bound and one cache for the whole process: drops the graphs of earlier runs, which would count
        for this one.
        """
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        torch._dynamo.config.recompile_limit = max_graphs
        # compiles a backward pass with its forward pass: an error in the middle of a backward pass could not be met
        if hasattr(torch._functorch.config, "force_non_lazy_backward_lowering"):  # some versions of torch lack it
            torch._functorch.config.force_non_lazy_backward_lowering = True
        self.backend = backend
        self.has_failed = False
        self._used: set[Callable] = set()  # what has run compiled in this pass

    def graphs_of(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """Returns the function, compiled for each shape of its inputs when it is first called with that shape."""

        @functools.cache
        def graphs() -> Callable[..., Result]:  # even this fails, where torch knows no such backend or platform
            return torch.compile(function, dynamic=False, backend=self.backend)

        return lambda *inputs: graphs()(*inputs)

    def compiled(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """Returns the function's graphs; they give way to the function itself after a failure."""
        return functools.partial(self.attempt, self.graphs_of(function), function)

    def attempt(self, compiled: Callable[..., Result], plain: Callable[..., Result], *inputs) -> Result:
        """Calls what is compiled; `plain` after a failure. A lack of memory is no failure to compile, and rises."""
        if self.has_failed and compiled not in self._used:
            return plain(*inputs)
        try:
            result = compiled(*inputs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            result = plain(*inputs)
            self._fail(error)
        else:
            self._used.add(compiled)
        return result

    def _fail(self, error: Exception) -> None:
        if not self.has_failed:
            tried = self.backend if isinstance(self.backend, str) else "another backend"
            reason = one_line(f"{type(error).__name__}: {error}")
            warn(f"--compile: torch.compile ({tried}) failed, so the run goes on without it, slower: {reason}", 2)
        self.has_failed = True

    def begin_pass(self) -> None:
        """Notes that a forward pass begins: what ran in the one before is recomputed no more."""
        self._used.clear()


def compile_blocks(model: Transformer, compilation: Compilation) -> None:
    """Compiles every block's trunk and auxiliary MLPs in place, before or after sharding.

    FSDP2's hooks stay outside the graphs.
    """
    torch.compiler.assume_constant_result(repeats_keys)
    model.register_forward_pre_hook(lambda *_: compilation.begin_pass())
    for block in model.blocks:
        block.trunk = compilation.compiled(block.trunk)
        for module in block.aux.values():
            if isinstance(module, Mlp):
                module.forward = compilation.compiled(module.forward)  # type: ignore[method-assign]


def num_graphs() -> int:
    """Counts the graphs that were compiled since the last `Compilation` began."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]
