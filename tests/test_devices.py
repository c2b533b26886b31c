"""Every tensor of training, evaluation, serving and the ranks' votes is made on the model's device.

No GPU is needed. The meta device computes shapes and no values, so it can run every backward pass;
`OneDevice` refuses what CUDA would refuse. torch's fake tensors on "cuda:0" take the branches for
GPUs, without a backward pass.
"""

import ast
import contextlib
import dataclasses
import importlib
import threading

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gram_platform.config import CORE, RunConfig
from gram_platform.config.ladder import SMOKE_SIZES
from gram_platform.config.routing import Schedule
from gram_platform.engine.process import BackgroundJob
from gram_platform.engine.ranks import VotingLearner
from gram_platform.methods import METHODS
from gram_platform.methods.nodes import method_nodes, unique
from gram_platform.methods.setting import Branching, Conventions, Elicitation, Options, Unlearning
from gram_platform.model.rows import RowReader
from gram_platform.model.transformer import Transformer
from gram_platform.release.serving.batch import ActiveSequence, Batch, GenerationRequest
from gram_platform.release.serving.policy import Grant
from gram_platform.train.data import ScheduleReader, start_thread
from gram_platform.train.evaluate import (
    domain_losses,
    profile_losses,
    sample_continuations,
    token_losses,
)
from gram_platform.train.learner import Learner, probe_norms
from gram_platform.train.loop import training_steps
from tests import tiny
from tests.methods.test_plans import AUXILIARY, setting
from tests.planner.conftest import as_rank  # noqa: F401  a fixture
from tests.test_architecture import python_files

FAKE = "cuda:0"  # without an index torch asks a driver for the current GPU
# Two micro-batches a step.
SIZE = dataclasses.replace(SMOKE_SIZES["tiny"], num_layers=1, batch_size=8)
OPTIONS = Options(
    branch_full=Branching(2.0),
    maxent=Unlearning(num_steps=4, batch_size=4),
    elicitation=Elicitation(32, 8, batch_size=8),
)
READINGS = {
    getattr(torch.Tensor, name) for name in ("tolist", "item", "__float__", "__int__", "__bool__")
}
TO_CPU = {torch.Tensor.cpu, torch.Tensor.to}
MAKERS = ("Thread", "Timer", "ThreadPoolExecutor", "ThreadPool")  # of threads
COPIES = {torch.ops.aten.copy_, torch.ops.aten._to_copy, torch.ops.aten._foreach_copy_}


class ReadZeros(TorchFunctionMode):
    """Reads zeros from tensors without values; changes nothing else."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        is_read = (
            function in TO_CPU and args[0].is_meta and {*args[1:2]} <= {"cpu", torch.device("cpu")}
        )
        if is_read or (function in READINGS and isinstance(args[0], FakeTensor) | args[0].is_meta):
            with unset_fake_temporarily():
                return function(
                    torch.zeros(args[0].shape, dtype=args[0].dtype), *args[1:], **kwargs
                )
        return function(*args, **kwargs)


class OneDevice(TorchDispatchMode):
    """Refuses operations on two devices as CUDA does; also CPU indices, for which a GPU would
    wait."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        devices = {tensor.device.type for tensor in tensors if tensor.dim()}
        if len(devices) > 1 and function.overloadpacket not in COPIES:
            raise RuntimeError(f"{function} on tensors of two devices: {sorted(devices)}")
        return function(*args, **(kwargs or {}))


@pytest.fixture
def meta(monkeypatch):
    """Makes the meta device a place to train: torch's fused AdamW knows its shapes, but its list
    leaves it out.
    """
    module = importlib.import_module("torch.optim.optimizer")
    supported = module._get_fused_kernels_supported_devices()
    monkeypatch.setattr(
        module, "_get_fused_kernels_supported_devices", lambda: [*supported, "meta"]
    )
    with ReadZeros(), OneDevice():
        yield torch.device("meta")


def nodes_of(method, document_end=-1):
    """The method's runs, its attacks and its evaluations."""
    cell = setting(
        SIZE,
        profiles=((), AUXILIARY[:1]),
        options=OPTIONS,
        conventions=Conventions(document_end=document_end),
    )
    return unique(method_nodes(method, cell))


def runs_of(method, document_end=-1):
    """The method's runs and attacks, each shape once."""
    by_shape: dict = {}
    for node in nodes_of(method, document_end):
        if node.is_run:
            run = node.config
            by_shape.setdefault((run.model, run.routing, run.objective.kind, bool(run.start)), run)
    return list(by_shape.values())


def sequences(run: RunConfig) -> dict[str, np.ndarray]:
    pools = [part for budget in run.data.domains for part in budget.pool]
    lengths = dict.fromkeys(run.eval_points.domains, 8)
    for part in pools:
        lengths[part.domain] = max(lengths.get(part.domain, 8), part.first + part.num_sequences)
    return {d: np.zeros((n, run.model.seq_len + 1), dtype=np.uint16) for d, n in lengths.items()}


CASES = [
    *((method, "bfloat16", -1) for method in METHODS),
    ("gram", "float32", -1),
    ("gram", "bfloat16", 0),
]


@pytest.mark.parametrize(("method", "precision", "document_end"), CASES)
def test_training_stays_on_its_device(method, precision, document_end, meta):
    """A step with its norms, an evaluation and a probe, then a step from a checkpoint."""
    for run in runs_of(method, document_end):
        run = dataclasses.replace(run, precision=precision)
        learner, arrays, domains = Learner(run, meta), sequences(run), run.eval_points.domains
        train_a_step(learner, run, arrays, 0)
        active = dict.fromkeys(run.model.module_domains, 1.0)
        domain_losses(learner, arrays, domains[:1], 4, lambda _, active=active: active)
        if active:
            probe_norms(learner, arrays[domains[0]])
        pieces, state = learner.pieces(), tiny.full_state(learner)
        assert {piece.rows.device.type for piece in pieces.values()} == {"cpu"}
        assert {tensor.device.type for tensor in state.values()} == {"cpu"}
        learner.load_state(pieces)
        train_a_step(learner, run, arrays, 1)
        assert {p.device for p in learner.masters.values()} == {meta}
        slots = [
            slot
            for o in learner.optimizers.values()
            for state in o.state.values()
            for slot in state.values()
        ]
        assert {slot.device for slot in slots} == {meta}


def train_a_step(learner, run, arrays, first_step):
    record = next(
        training_steps(
            learner, Schedule(run), ScheduleReader(run, arrays), first_step, norms_every=1
        )
    )
    assert (record.step, len(record.losses)) == (first_step + 1, run.micro_batches_per_step)


@pytest.mark.skipif(
    not torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "Meta"),
    reason="this torch sums no meta tensors over ranks",
)
def test_a_rank_votes_on_its_device(as_rank, meta):  # noqa: F811
    """FSDP2 shards on no meta device: the weights stay on the CPU, losses and votes do not."""
    as_rank(0, 2)
    learner = VotingLearner(tiny.run_config())
    learner.votes, learner.device = lambda: (True, False), meta
    means = learner.mean_over_ranks(torch.zeros(3, 2, device=meta))
    assert (means.shape, means.device.type) == ((3, 2), "cpu")
    assert len(learner.decisions) == 2


def model_on(config, device, dtype=torch.float32):
    """A model to evaluate, its values left open; the rotary tables stay float32."""
    with torch.device("meta"):
        model = Transformer(config).eval()
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            empty = torch.empty(parameter.shape, dtype=dtype, device=device)
            setattr(module, name, torch.nn.Parameter(empty, requires_grad=False))
    for name, table in list(model.rotary.named_buffers()):
        setattr(model.rotary, name, torch.empty(table.shape, device=device))
    return model


def evaluations_of(method, document_end):
    """Each shape of model that the method's evaluations load, with its view."""
    nodes = nodes_of(method, document_end)
    models, by_shape = {node.id: node.config.model for node in nodes if node.is_run}, {}
    for view in (node.config.view for node in nodes if not node.is_run):
        modules = {m.domain: m for run_id in sorted(view.run_ids) for m in models[run_id].modules}
        config = dataclasses.replace(models[view.run_id], modules=tuple(modules.values()))
        by_shape.setdefault((config, view.rule), view)
    return [(config, view) for (config, _), view in by_shape.items()]


def evaluate(method, device, dtype):
    document_end = 0 if dtype == torch.float32 else -1  # with and without a mask
    for config, view in evaluations_of(method, document_end):
        model = model_on(config, device, dtype)
        arrays = {
            d: np.zeros((4, config.seq_len + 1), dtype=np.uint16) for d in (CORE, AUXILIARY[0])
        }
        asked = (arrays, tuple(arrays), 4)
        profile_losses(model, *asked, [view.active] * 2)
        losses = token_losses(model, *asked, view.active)
        assert {tensor.device.type for tensor in losses.values()} == {"cpu"}
        prompts_BP, uniforms_BC = (
            torch.zeros(2, 4, dtype=torch.long),
            torch.zeros(2, 3, dtype=torch.float64),
        )
        drawn = sample_continuations(model, prompts_BP, uniforms_BC, view.active(CORE))
        assert {tensor.device.type for tensor in drawn} == {"cpu"}


@pytest.mark.parametrize("method", METHODS)
def test_evaluations_stay_on_their_device(method, meta):
    for dtype in (torch.float32, torch.bfloat16):
        evaluate(method, meta, dtype)


class NoDriver(TorchFunctionMode):
    """Replaces what asks for a driver even with fake tensors: indexing and ~, by the same
    operations; pinning.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.pin_memory:
            return args[0]
        if function is torch.empty:
            return function(
                *args,
                **{name: value for name, value in (kwargs or {}).items() if name != "pin_memory"},
            )
        if function is torch.Tensor.__getitem__ and args[0].device.type == "cuda":
            return view(*args)
        if function is torch.Tensor.__invert__:
            return torch.logical_not(*args)
        # Builds for CUDA ask which kernel fits the GPU.
        if function is scaled_dot_product_attention:
            with sdpa_kernel(SDPBackend.MATH):
                return function(*args, **kwargs)
        return function(*args, **(kwargs or {}))


def view(tensor, index):
    dim = 0
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, int):
            tensor = tensor.select(dim, part)
            continue
        given = part is not None
        tensor = (
            torch.ops.aten.slice(tensor, dim, part.start, part.stop)
            if given
            else tensor.unsqueeze(dim)
        )
        dim += 1
    return tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_evaluations_take_the_branches_for_gpus(method, dtype):
    with torch.no_grad(), FakeTensorMode(), ReadZeros(), NoDriver():
        evaluate(method, FAKE, dtype)


class PretendedStream:
    """Notes in `log` what waits for what: without a driver there are no streams."""

    def __init__(self, name: str, log: list[str]):
        self.name, self.log = name, log

    def wait_stream(self, stream) -> None:
        self.log.append(f"{self.name} waits for {stream.name}")

    def record_event(self) -> "PretendedStream":
        self.log.append(f"{self.name} is recorded")
        return self

    def wait_event(self, event) -> None:
        self.log.append(f"{self.name} waits for the record of {event.name}")

    def synchronize(self) -> None:
        self.log.append(f"the process waits for {self.name}")


def test_a_checkpoint_is_copied_beside_training(monkeypatch):
    """Copies start after the work before them, and the next step's change waits for them; their
    memory is reused.
    """
    log: list[str] = []
    main, side = PretendedStream("training", log), PretendedStream("copying", log)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: side)
    monkeypatch.setattr(
        torch.cuda, "stream", lambda stream: contextlib.nullcontext(log.append(f"on {stream.name}"))
    )
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    learner = Learner(tiny.run_config())
    monkeypatch.setattr(
        learner, "_local", lambda value: torch.empty(value.shape, dtype=value.dtype, device=FAKE)
    )
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), NoDriver():
        first = learner.pieces()
        learner.staging.wait()
        second = learner.pieces()
        learner.step(0.1)
    copied = ["copying waits for training", "on copying", "copying is recorded"]
    waits = ["the process waits for copying"], ["training waits for the record of copying"]
    assert log == [*copied, *waits[0], *copied, *waits[1]]
    assert {piece.rows.device.type for piece in first.values()} == {"cpu"}
    assert {(name, piece.shape) for name, piece in first.items()} == {
        (n, p.shape) for n, p in second.items()
    }
    assert all(second[name].rows is piece.rows for name, piece in first.items())


@pytest.fixture
def gpu_3(monkeypatch):
    """The third GPU of a machine, pretended: notes for every thread which GPU it chose."""
    chosen: dict[str, int] = {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "current_device", lambda: chosen.get(threading.current_thread().name, 3)
    )
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda gpu: chosen.update({threading.current_thread().name: gpu})
    )
    return chosen


def test_threads_use_the_gpu_of_their_starter(gpu_3):
    """Before anything else: a thread's first call would start CUDA on GPU 0."""
    seen = []
    start_thread("reports", lambda step: seen.append((step, dict(gpu_3))), 7).join()
    with BackgroundJob() as job:
        job.start(lambda: seen.append(dict(gpu_3)))
    assert seen == [(7, {"reports": 3}), {"reports": 3, "checkpoint_0": 3}]


def test_threads_without_a_gpu_choose_none(monkeypatch):
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda gpu: pytest.fail("no process here uses a GPU")
    )
    start_thread("reports", lambda: None).join()


def test_every_thread_of_training_uses_the_gpu_of_its_starter():
    """`train/` and `engine/` start threads by `start_thread`, and pools of them with
    `gpu_of_this_thread`.
    """
    started = []
    for path in python_files("gram_platform/train", "gram_platform/engine"):
        calls = (
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        )
        started += [
            (path.name, ast.unparse(call))
            for call in calls
            if ast.unparse(call.func).endswith(MAKERS)
        ]
    # A driver uses no GPU.
    of_ranks = [(name, call) for name, call in sorted(started) if name != "cluster.py"]
    assert [name for name, _ in of_ranks] == ["data.py", "process.py"]
    assert "initializer=gpu_of_this_thread()" in of_ranks[1][1]


@pytest.mark.parametrize("kind", ["mlp", "lora"])
def test_serving_stays_on_its_device(kind, meta):
    """Prompts of three lengths and profiles are read, then continued until the last one ends."""
    modules = tuple(dataclasses.replace(m, kind=kind) for m in tiny.model_config().modules)
    config = dataclasses.replace(tiny.model_config(), modules=modules)
    first, second = config.module_domains
    batch = Batch(
        RowReader(model_on(config, meta), num_rows=4),
        config.vocab_size,
        end_of_text=config.vocab_size,
    )
    profiles = ((), ((first, 1.0),), ((first, 0.5), (second, 1.0)))
    drawing = zip(profiles, (0.0, 1.0, 1.0), (1.0, 1.0, 0.5), strict=True)
    new = [
        ActiveSequence(
            GenerationRequest((2,) * (length + 1), 2 + length, temperature, top_p),
            Grant("", "", weights),
        )
        for length, (weights, temperature, top_p) in enumerate(drawing)
    ]
    batch.admit(new)
    while batch.step():
        pass
    assert [len(sequence.drawn) for sequence in new] == [2, 3, 4]
    assert {memory.device for memory in (batch.reader.keys_LRKSh, batch.reader.values_LRKSh)} == {
        meta
    }
