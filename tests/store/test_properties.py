"""Properties of any storage and any config: random operations beside a model of them, and round
trips through JSON."""

import dataclasses
import json
import os
import shutil
import tempfile
import warnings
from typing import ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from gram_platform.config import (
    CORE,
    Continuations,
    DataConfig,
    DomainBudget,
    EvalPoints,
    Evaluation,
    ModelConfig,
    ModuleSpec,
    Objective,
    OptimizerConfig,
    RoutingConfig,
    RunConfig,
    TokenLosses,
    View,
    evaluation_from_plain,
    run_from_plain,
)
from gram_platform.config.identity import canonical_json, to_plain
from gram_platform.config.plain import from_plain
from gram_platform.store import LeaseHeld, RunDirectory, Store
from gram_platform.store.attempts import Attempt
from gram_platform.store.files import is_safe_name
from tests.refused import refused
from tests.store.training import START, final_fields, record, run_config
from tests.tiny import weights_of

PLAIN = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
NUM_STEPS = 6
RUNS = [run_config(NUM_STEPS, seed) for seed in range(2)]
one_run = st.sampled_from(RUNS)

# ----------------------------------------------------------------------------------------- configs

ids = st.text("0123456789abcdef", min_size=12, max_size=12)
names = st.sampled_from(["virology", "lisp", "beach", "x-1", "Ünicode", "a b"])
shares = st.sampled_from([0, 0.25, 1 / 3, 1, 1.0])
positive = st.one_of(st.integers(1, 10**6), st.floats(1e-12, 1e12))
precisions = st.sampled_from(["float32", "bfloat16"])
domains = st.lists(names, unique=True, min_size=1).map(lambda found: (CORE, *found))


@st.composite
def views(draw) -> View:
    weights = draw(st.dictionaries(names, shares))
    active = sorted(domain for domain, weight in weights.items() if weight)
    sources = tuple((domain, draw(ids)) for domain in active if draw(st.booleans()))
    rule_of_view = draw(st.sampled_from(["constant", "by_domain"]))
    return View.of(draw(ids), weights, sources=sources, rule=rule_of_view)


@st.composite
def evaluations(draw) -> Evaluation | TokenLosses | Continuations:
    common = (draw(views()), draw(ids), tuple(draw(st.permutations(draw(domains)))))
    number = draw(st.integers(1, 1000))
    kind = draw(st.sampled_from([Evaluation, TokenLosses, Continuations]))
    if kind is Continuations:
        documents = tuple(draw(st.lists(st.integers(0, 99), unique=True, min_size=1)))
        return kind(*common, documents, number, number, draw(positive), number, draw(precisions))
    split = {"split": draw(st.sampled_from(["validation", "train"]))} if kind is Evaluation else {}
    return kind(*common, number, precision=draw(precisions), **split)


@st.composite
def models(draw, with_modules: tuple[str, ...]) -> ModelConfig:
    heads, kv_heads = draw(st.sampled_from([(1, 1), (4, 2), (6, 3)]))
    kinds = st.sampled_from(["mlp", "lora"])
    modules = tuple(
        ModuleSpec(domain, draw(kinds), draw(st.integers(1, 99))) for domain in with_modules
    )
    sizes = (
        draw(st.integers(1, 9)),
        2 * heads * draw(st.integers(1, 8)),
        heads,
        kv_heads,
        7,
        50,
        8,
    )
    return ModelConfig(
        *sizes, modules, draw(positive), document_end=draw(st.sampled_from([-1, 0, 49]))
    )


@st.composite
def runs(draw) -> RunConfig:
    found = draw(domains)
    batch, parts = draw(st.sampled_from([(1, 1), (4, 2), (6, 3), (8, 1)]))
    budgets = [
        DomainBudget(d, draw(st.integers(1, 99)), batch * draw(st.integers(1, 5))) for d in found
    ]
    accumulation = draw(st.sampled_from(["heterogeneous", "uniform"]))
    modules = tuple(d for d in found[1:] if draw(st.booleans()))
    weights = tuple((d, draw(positive)) for d in modules) if draw(st.booleans()) else ()
    routing = RoutingConfig(draw(shares), draw(shares), accumulation, companion_weights=weights)
    optimizer = OptimizerConfig(
        draw(positive), 0.5, draw(shares) / 2, decay_vectors=draw(st.booleans())
    )
    points = EvalPoints(
        draw(st.integers(0, 1)), draw(st.integers(1, 9)), tuple(draw(st.permutations(found)))
    )
    return RunConfig(
        draw(models(modules)),
        DataConfig(draw(ids), tuple(draw(st.permutations(budgets)))),
        routing,
        optimizer,
        batch,
        batch // parts,
        points,
        draw(st.integers(0, 2**63 - 1)),
        draw(precisions),
        Objective(),
        draw(st.one_of(st.none(), views())),
    )


@PLAIN
@given(runs())
def test_a_run_is_the_same_after_a_round_trip(run):
    plain = json.loads(canonical_json(run))
    again = run_from_plain(plain)
    assert again == run
    assert again.run_id == run.run_id
    assert canonical_json(again) == canonical_json(run)
    assert to_plain(again) == plain
    assert from_plain(RunConfig, plain) == run


@PLAIN
@given(runs(), st.randoms(use_true_random=False))
def test_an_equal_run_in_another_order_has_the_same_id(run, random):
    """Domains, modules and the keys of its JSON have no order."""
    shuffled = lambda items: tuple(random.sample(items, len(items)))
    model = dataclasses.replace(run.model, modules=shuffled(run.model.modules))
    data = dataclasses.replace(run.data, domains=shuffled(run.data.domains))
    points = dataclasses.replace(run.eval_points, domains=shuffled(run.eval_points.domains))
    other = dataclasses.replace(run, model=model, data=data, eval_points=points)
    plain = to_plain(other)
    reordered = {key: plain[key] for key in shuffled(list(plain))}
    assert run_from_plain(reordered).run_id == other.run_id == run.run_id


@PLAIN
@given(evaluations())
def test_an_evaluation_is_the_same_after_a_round_trip(evaluation):
    again = evaluation_from_plain(json.loads(canonical_json(evaluation)))
    assert again == evaluation
    assert again.eval_id == evaluation.eval_id
    view = from_plain(View, json.loads(canonical_json(evaluation.view)))
    assert (view, view.view_id) == (evaluation.view, evaluation.view.view_id)


# ---------------------------------------------------------------------------------------- storages


@PLAIN
@given(
    st.one_of(
        st.text(), st.text("./\\\0a", max_size=6), st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_+.=@-]*")
    )
)
def test_no_name_leaves_the_storage(name):
    store = Store("/somewhere/storage")
    for give in (
        store.run,
        store.evaluation,
        store.import_dir,
        store.study_dir,
        store.search_dir,
        store.data_dir,
    ):
        if not is_safe_name(name):
            with refused("folder", name):
                give(name)
            continue
        place = give(name)
        path = getattr(place, "folder", place).path
        assert os.path.normpath(path) == path
        assert os.path.dirname(os.path.dirname(path)) == store.root


class Storage(RuleBasedStateMachine):
    """Two runs of one process, beside a model of each: what is committed, finished, failed, tagged,
    at work."""

    reached: ClassVar[set[str]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="gram-properties-")
        self.store = Store(self.root).open_for_writing(min_free_bytes=0)
        self.known: set[str] = set()
        self.tags: dict[str, dict[str, str]] = {run.run_id: {} for run in RUNS}
        self.committed = dict.fromkeys(self.tags, 0)
        self.state = dict.fromkeys(self.tags, "absent")  # of a run that nobody works on
        self.attempts: dict[str, Attempt] = {}
        self.removed: set[str] = set()

    def teardown(self) -> None:
        for attempt in self.attempts.values():
            attempt.release()
        shutil.rmtree(self.root)

    def directory(self, run: RunConfig) -> RunDirectory:
        return self.store.run(run.run_id)

    @rule(run=one_run)
    def ensure_config(self, run) -> None:
        self.directory(run).ensure_config(run)
        self.known.add(run.run_id)

    @rule(run=one_run, key=st.sampled_from("abc"), value=st.text(max_size=3))
    def add_tags(self, run, key, value) -> None:
        self.directory(run).add_tags({key: value})
        self.known.add(run.run_id)
        self.tags[run.run_id][key] = value

    @rule(run=one_run)
    def start(self, run) -> None:
        if run.run_id in self.attempts:
            if self.state[run.run_id] != "complete":
                with pytest.raises(LeaseHeld):
                    self.directory(run).start_attempt("another")
            return
        attempt = self.directory(run).start_attempt("worker", lease_seconds=3600.0)
        self.known.add(run.run_id)
        self.attempts[run.run_id] = attempt
        resumed = attempt.resume()
        is_complete = self.state[run.run_id] == "complete"
        assert (0 if resumed is None else resumed.step) == (
            0 if is_complete else self.committed[run.run_id]
        )
        if not is_complete:
            self.state[run.run_id] = "interrupted"

    @rule(run=one_run)
    def commit(self, run) -> None:
        step = self.committed[run.run_id]
        if (
            run.run_id in self.attempts
            and self.state[run.run_id] != "complete"
            and step < NUM_STEPS - 1
        ):
            self.attempts[run.run_id].commit(step + 1, {"weights": START}, {}, [record(step + 1)])
            self.committed[run.run_id] += 1

    @rule(run=one_run, end=st.sampled_from(["complete", "complete", "fail", "release"]))
    def end(self, run, end) -> None:
        attempt, step = self.attempts.pop(run.run_id, None), self.committed[run.run_id]
        if attempt is not None and self.state[run.run_id] != "complete":
            if end == "complete":
                records = [record(s) for s in range(step + 1, NUM_STEPS + 1)]
                attempt.complete(final_fields(run), {"weights": START}, records)
                self.state[run.run_id], self.committed[run.run_id] = "complete", NUM_STEPS
            elif end == "fail":
                attempt.fail("why")
                self.state[run.run_id] = "failed"
        if attempt is not None:
            attempt.release()

    @rule(run=one_run)
    def collect_garbage(self, run) -> None:
        self.directory(run).remove_remains()
        if self.state[run.run_id] == "complete":
            self.directory(run).drop_weights()
            self.removed.add(run.run_id)

    @rule(run=one_run)
    def need_weights(self, run) -> None:
        """Removed weights are named as such, and the result stays."""
        directory = self.directory(run)
        if self.state[run.run_id] != "complete":
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if run.run_id not in self.removed:
                assert torch.equal(weights_of(directory)["weights"], START)
                return
            with refused("run_id", run.run_id):
                weights_of(directory)

    @rule()
    def open_again(self) -> None:
        self.store = Store(self.root).open_for_writing(min_free_bytes=0)

    @invariant()
    def the_storage_is_as_the_model(self) -> None:
        self.reached |= {*self.state.values(), *(["removed"] if self.removed else [])}
        for store in (self.store, Store(self.root)):
            assert self.known <= set(store.list_runs()) <= set(self.tags)
            for run in RUNS:
                directory, run_id = store.run(run.run_id), run.run_id
                expected = self.state[run_id]
                if run_id in self.attempts and expected != "complete":
                    expected = "running"
                assert directory.status() == expected
                assert (directory.result() is None) == (expected != "complete")
                assert directory.tags() == self.tags[run_id]
                assert [r["step"] for r in directory.records()] == list(
                    range(1, self.committed[run_id] + 1)
                )


def test_a_storage_is_as_the_model_of_its_operations():
    run_state_machine_as_test(
        Storage, settings=settings(PLAIN, max_examples=30, stateful_step_count=40)
    )
    assert Storage.reached == {"absent", "interrupted", "failed", "complete", "removed"}
