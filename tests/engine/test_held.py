"""Two drivers of one run: what ends under one has ended for the other, also when it ended badly."""

import time
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import RayTaskError

from gram_platform.engine import life, trials
from gram_platform.engine.execution import Resources
from gram_platform.engine.executor import ENDED
from gram_platform.methods.nodes import Node
from gram_platform.store import LeaseHeld, Store
from gram_platform.train.loop import TrainingDiverged
from tests.executed import happened, ray_executor

DIVERGED = ("loss nan at step 7", {"kind": "diverged"})


@pytest.fixture
def node(run) -> Node:
    return Node(run, (("method", "gram"), ("size", "tiny"), ("seed", "0"), ("profile", "all")))


@pytest.fixture
def other(execution, node):
    """The attempt of the other driver, at work."""
    directory = Store(execution.storage).open_for_writing().run(node.id)
    directory.ensure_config(node.config)
    with directory.start_attempt("the other driver") as attempt:
        yield attempt


def held_graph(node, execution, monkeypatch, retry_diverged=False):
    """A study whose only node has come back from Ray because another driver is at work on it."""

    def get(reference):
        lease = {"owner": "other", "pid": 1, "host": "here"}
        error = LeaseHeld(node.id, lease)
        raise RayTaskError("execute", "", error)

    study = ray_executor([node], execution, retry_diverged=retry_diverged)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(
        study, "_fitting", lambda: [task for _, tasks in study.waiting.tasks() for task in tasks]
    )
    monkeypatch.setattr(
        study,
        "_start",
        lambda tasks: [study._note(f"again {k}", task) for k, task in enumerate(tasks)],
    )
    study.waiting.start((node,))
    assert not study._settle(node, "first", (node,), None)
    assert not study.waiting.look_again()
    monotonic = time.monotonic  # the wait is over:
    monkeypatch.setattr(life.time, "monotonic", lambda: monotonic() + life.HELD_RETRY_S)
    return study


def test_a_study_takes_over_the_end_that_another_driver_brought_about(
    node, execution, other, monkeypatch
):
    study = held_graph(node, execution, monkeypatch)
    other.fail(*DIVERGED)
    assert study.advance()
    study.wait()
    assert [event.node for event in happened(study, ENDED)] == [node]  # as what ends here is
    assert study.progress.failed == {node.id: DIVERGED[0]}
    assert not study.advance()


@pytest.mark.parametrize(
    ("end", "retry_diverged"),
    [(("OSError: the disk went away", {"kind": "error"}), False), (DIVERGED, True)],
)
def test_another_end_or_a_divergence_when_that_is_asked_for_is_tried_again(
    node, execution, other, monkeypatch, end, retry_diverged
):
    study = held_graph(node, execution, monkeypatch, retry_diverged)
    other.fail(*end)
    assert study.advance()
    assert list(study.in_flight.values()) == [(node,)]


def test_a_trial_diverges_with_the_run_that_it_waits_for(node, execution, other, monkeypatch):
    """The trial meets the lease itself: nothing stands in for the store here.

    The other ends while the trial waits.
    """
    waits = []
    clock = SimpleNamespace(
        monotonic=time.monotonic, sleep=lambda s: (waits.append(s), other.fail(*DIVERGED))
    )
    monkeypatch.setattr(trials, "time", clock)
    lifecycle = life.NodeLifecycle(execution.store())
    with pytest.raises(TrainingDiverged):
        trials._NodeRunner(execution, Resources(), {}, lifecycle).result(node)
    assert waits == [trials.HELD_RETRY_S]
    assert len(Store(execution.storage).run(node.id).attempts.list()) == 1
