"""Which module a domain's unlabelled batches train: the modules' gradients, measured between two steps and dropped."""

import math

import numpy as np
import torch

from gram_platform.config.routing import module_set
from gram_platform.train.data import on_device
from gram_platform.train.learner import Learner
from gram_platform.train.norms import gradient_norms
from gram_platform.train.objectives import cross_entropy


def probed_norms(learner: Learner, sequences: np.ndarray, rank: int = 0, num_ranks: int = 1) -> dict[str, float]:
    """{module: the norm of its matrices' gradients} on a domain's first sequences [num_sequences, seq_len + 1].

    Every module is on and takes gradients, as in an unlabelled batch; the core is left out, which changes none of
    theirs. Biases are left out too: outputs are summed, so that of the output has the same gradient in every module,
    and in narrow ones it is most of the norm. The root mean square over `num_probed` micro-batches of the run's size.
    Weights, optimizer states and gradients of the learner stay as they are; with several ranks all must call it.
    """
    config = learner.config
    modules = {module_set(domain): domain for domain in config.model.module_domains}
    sets, active = {name: learner.master_sets[name] for name in modules}, dict.fromkeys(modules.values(), 1.0)
    matrices = {name: {n: p for n, p in own.items() if p.dim() > 1} for name, own in sets.items()}
    assert all(p.grad is None for own in learner.master_sets.values() for p in own.values()), "only between two steps"
    squares = dict.fromkeys(modules, 0.0)
    learner.train_only(frozenset(modules))
    for number in range(config.num_probed):
        tokens = on_device(_share(sequences, config.micro_batch, number, rank, num_ranks), learner.device)
        loss = cross_entropy(learner.forward(tokens[:, :-1], active), tokens[:, 1:])
        learner.backward(loss, modules, is_last=True)
        for name, norm in gradient_norms(matrices).items():
            squares[name] += norm**2
        for own in sets.values():
            for parameter in own.values():
                parameter.grad = None
    return {domain: math.sqrt(squares[name] / config.num_probed) for name, domain in modules.items()}


def _share(sequences: np.ndarray, micro_batch: int, number: int, rank: int, num_ranks: int) -> torch.Tensor:
    """A rank's sequences of one micro-batch, int64 [micro_batch / num_ranks, seq_len + 1]."""
    share = micro_batch // num_ranks
    first = number * micro_batch + rank * share
    return torch.from_numpy(sequences[first : first + share].astype(np.int64))
