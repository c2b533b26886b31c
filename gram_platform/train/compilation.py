"""torch.compile of a model's layers, with a bounded number of graphs.

What is compiled does not depend on the active modules: each layer's trunk, and each auxiliary MLP on its own. All
layers share their graphs; there is one for each combination of what is trained (and whether gradients are on), and with
LoRA modules for each of what is active. Beyond the bound torch.compile calls the eager function for new combinations.

Not tried on a GPU yet. On a CPU it was slower than eager; the bound is tested with the eager backend.
"""

from collections.abc import Callable

import torch

from gram_platform.model.modules import Mlp
from gram_platform.model.transformer import Transformer

MAX_GRAPHS = 16  # of trunks, and as many of auxiliary MLPs
NUM_COMPILED = 2  # functions that have graphs of their own: the trunk's and the auxiliary MLP's


def compile_blocks(model: Transformer, backend: str | Callable = "inductor", max_graphs: int = MAX_GRAPHS) -> None:
    """Compiles the model's layers in place, before or after sharding: FSDP2's hooks stay outside of the graphs.

    The bound on the graphs of one function is torch.compile's own and the process's, so the last call sets it.
    """
    torch._dynamo.config.recompile_limit = max_graphs
    for block in model.blocks:
        block.trunk = torch.compile(block.trunk, dynamic=False, backend=backend)
        for module in block.aux.values():
            if isinstance(module, Mlp):
                module.forward = torch.compile(module.forward, dynamic=False, backend=backend)
