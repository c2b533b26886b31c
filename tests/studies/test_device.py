"""The device is a part of the plan: asked for where machines start on demand, stored, and kept."""

import dataclasses

import pytest
import torch

from gram_platform.planner import MACHINES
from gram_platform.store import RunDirectory, Store
from gram_platform.store.files import seal
from gram_platform.studies import workplace
from gram_platform.studies.campaign import predict_all
from gram_platform.studies.dry_run import describe
from gram_platform.studies.library.lr_bs_grid import SEARCH
from gram_platform.studies.library.scaling import STUDY
from gram_platform.studies.plan import predict, work_left
from gram_platform.studies.workplace import began_on, find_device, note_device
from tests.refused import refused
from tests.submitted import approved, execute, execute_campaign, plan_of

SMALL = ("--preset", "paper", "--sizes", "50M", "--seeds", "1")


def of_study(*arguments, preset=SMALL):
    return plan_of(STUDY, [*preset, "--methods", "baseline", *arguments])


def of_search(*arguments, preset=SMALL):
    return plan_of(SEARCH, [*preset, *arguments])


PLANS = {"study": of_study, "search": of_search}


@pytest.fixture
def growing_cluster(monkeypatch):
    """A cluster that starts machines on demand and has none now."""
    monkeypatch.setattr(workplace, "connect", lambda is_verbose: None)
    monkeypatch.setattr(workplace, "has_fixed_size", lambda: False)
    monkeypatch.setattr(workplace, "await_report", lambda: None)


@pytest.fixture
def no_ray(monkeypatch):
    monkeypatch.delattr(workplace, "connect")


SUBMISSIONS = {
    "study": lambda: execute(STUDY, [*SMALL, "--methods", "baseline"]),
    "search": lambda: execute(SEARCH, [*SMALL]),
    "campaign": lambda: execute_campaign((), (SEARCH,), ["--preset", "paper", "--seeds", "1"]),
}


@pytest.mark.parametrize("submit", SUBMISSIONS.values(), ids=SUBMISSIONS)
def test_a_plan_for_gpus_asks_for_the_device_before_any_work(submit, growing_cluster, storage):
    with refused("device", ""):
        submit()
    assert not (storage / "data").exists()
    assert not (storage / "runs").exists()


def test_an_autoscaler_that_has_not_reported_yet_is_waited_for(
    growing_cluster, storage, monkeypatch
):
    """Its cluster looks like one of fixed size without GPUs, on which the study would begin on
    CPUs."""
    reports = []
    monkeypatch.setattr(workplace, "await_report", lambda: reports.append("head"))
    monkeypatch.setattr(workplace, "has_fixed_size", lambda: not reports)
    monkeypatch.setattr(workplace.ray, "cluster_resources", dict)
    with refused("device", ""):
        approved(of_study())


@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("given", ["cpu", "cuda"])
def test_a_device_that_is_given_is_not_asked_for(make, given, no_ray, storage):
    plan = approved(make("--device", given))
    assert plan.device == given
    assert plan.studies[0].machine == MACHINES["cpu" if given == "cpu" else "h100"]


def test_a_plan_for_cpus_is_not_asked_for_a_device(growing_cluster, storage, monkeypatch):
    for gpus, expected in ({}, "cpu"), ({"GPU": 1.0}, "cuda"):
        monkeypatch.setattr(workplace.ray, "cluster_resources", lambda gpus=gpus: gpus)
        assert approved(of_study(preset=("--preset", "smoke"))).device == expected


@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS)
def test_a_resubmission_keeps_the_device_whatever_is_up(make, no_ray, storage):
    store = Store(storage).open_for_writing()
    note_device(make("--device", "cuda"), store, "cuda")
    assert approved(make()).device == "cuda"
    assert find_device(make().studies[0], store, ()) == "cuda"
    with refused("device", "cpu"):
        approved(make("--device", "cpu"))
    with refused("device", "cpu"):  # two that begin at once
        note_device(make(), store, "cpu")
    other = make(preset=("--preset", "smoke"))
    assert began_on(other.studies[0], store) == ""
    note_device(other, store, "cpu")
    assert [began_on(plan.studies[0], store) for plan in (make(), other)] == ["cuda", "cpu"]


def test_a_dry_run_plans_for_the_device_that_a_submission_keeps(no_ray, storage):
    store, plan = Store(storage).open_for_writing(), of_study()
    note_device(plan, store, "cpu")
    kept = approved(plan)
    assert predict_all(kept) in describe(dataclasses.replace(plan, num_slots=2)).splitlines()
    assert predict_all(plan) == predict_all(kept) != predict(work_left(plan.studies, ()))


@pytest.mark.parametrize(("name", "kept"), [("NVIDIA H100 80GB HBM3", "cuda"), ("cpu", "cpu")])
def test_runs_that_a_handover_has_trained_are_continued_on_their_device(
    name, kept, no_ray, storage, monkeypatch
):
    """Without a record; --device may then still choose another."""
    store, plan = Store(storage).open_for_writing(), of_study()
    run = next(node for node in plan.nodes if node.is_run)
    store.run(run.id).publish(seal({"run_id": run.id, "weights_sha256": "0" * 64}))
    monkeypatch.setattr(RunDirectory, "timing", lambda run: {"device": name})
    assert approved(plan).device == kept
    # Also where all known trials are done: a search may draw more.
    with monkeypatch.context() as patch:
        patch.setattr(workplace, "work_left", lambda studies, ended: [])
        assert approved(plan).device == kept
    other = "cuda" if kept == "cpu" else "cpu"
    assert approved(of_study("--device", other)).device == other


def test_studies_that_began_on_two_devices_are_not_one_submission(no_ray, storage):
    store, plans = Store(storage).open_for_writing(), (of_study(), of_search())
    for plan, began in zip(plans, ("cuda", "cpu"), strict=True):
        note_device(plan, store, began)
    together = dataclasses.replace(plans[0], studies=tuple(plan.studies[0] for plan in plans))
    with refused("device", "cuda"):
        approved(together)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_this_machine_lacks_is_refused_in_process(no_ray, storage):
    assert approved(of_study("--in-process")).device == "cpu"
    with refused("device", "cuda"):
        approved(of_study("--in-process", "--device", "cuda"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_nowhere_is_refused_before_text_is_packed(monkeypatch, storage):
    monkeypatch.setattr(workplace, "connect", lambda may_start: may_start)
    with refused("device", "cuda"):
        execute(STUDY, ["--preset", "smoke", "--device", "cuda"])
    assert not (storage / "data").exists()


def test_cpus_are_not_planned_as_another_machine(storage):
    with refused("machine", "h100"):
        plan_of(STUDY, ["--device", "cpu", "--machine", "h100"])
    given = plan_of(STUDY, ["--preset", "paper", "--device", "cpu"])
    assert given == plan_of(STUDY, ["--preset", "paper"]).on("cpu")
