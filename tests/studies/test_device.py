"""The device is a part of the plan: asked for where machines start on demand, stored, and kept."""

import dataclasses

import pytest
import torch
from gram_platform.studies.run import run_study

from gram_platform.planner import MACHINES
from gram_platform.store import RunDirectory, Store
from gram_platform.store.files import seal
from gram_platform.studies import device
from gram_platform.studies.build import build_graph
from gram_platform.studies.campaign import run_campaign
from gram_platform.studies.device import began_on, note_device, on_known_device, price_line, settled
from gram_platform.studies.dry_run import describe
from gram_platform.studies.flags import CampaignFlags, parse
from gram_platform.studies.library.lr_bs_grid import SEARCH
from gram_platform.studies.library.scaling import STUDY
from gram_platform.studies.price import predicted, work_left
from gram_platform.studies.searches.definition import parse_search
from gram_platform.studies.searches.run import build_search, run_search
from tests.refused import refused

SMALL = ("--preset", "paper", "--sizes", "50M", "--seeds", "1")


def study_graph(*arguments, preset=SMALL):
    return build_graph(STUDY, parse(STUDY, [*preset, "--methods", "baseline", *arguments]))


def search_graph(*arguments, preset=SMALL):
    return build_search(SEARCH, parse_search(SEARCH, [*preset, *arguments])).planned()


GRAPHS = {"study": study_graph, "search": search_graph}


@pytest.fixture
def growing_cluster(monkeypatch):
    """A cluster that starts machines on demand and has none now."""
    monkeypatch.setattr(device, "connect", lambda is_verbose: None)
    monkeypatch.setattr(device, "has_fixed_size", lambda: False)
    monkeypatch.setattr(device, "await_report", lambda: None)


@pytest.fixture
def no_ray(monkeypatch):
    monkeypatch.delattr(device, "connect")


SUBMISSIONS = {
    "study": lambda: run_study(STUDY, parse(STUDY, [*SMALL, "--methods", "baseline"])),
    "search": lambda: run_search(SEARCH, parse_search(SEARCH, SMALL)),
    "campaign": lambda: run_campaign((), (SEARCH,), CampaignFlags(preset="paper", seeds=1)),
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
    monkeypatch.setattr(device, "await_report", lambda: reports.append("head"))
    monkeypatch.setattr(device, "has_fixed_size", lambda: not reports)
    monkeypatch.setattr(device.ray, "cluster_resources", dict)
    with refused("device", ""):
        settled((study_graph(),), Store(storage))


@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("given", ["cpu", "cuda"])
def test_a_device_that_is_given_is_not_asked_for(make, given, no_ray, storage):
    (graph,) = settled((make("--device", given),), Store(storage))
    assert graph.flags.device == given
    assert graph.flags.hardware == MACHINES["cpu" if given == "cpu" else "h100"]


def test_a_plan_for_cpus_is_not_asked_for_a_device(growing_cluster, storage):
    (graph,) = settled((study_graph(preset=("--preset", "smoke")),), Store(storage))
    assert graph.flags.device == ""


@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
def test_a_resubmission_keeps_the_device_whatever_is_up(make, no_ray, storage):
    store = Store(storage).open_for_writing()
    note_device(make("--device", "cuda"), store, "cuda")
    (graph,) = settled((make(),), store)
    assert graph.flags.device == "cuda"
    assert on_known_device(make(), store, ())[0] == graph
    with refused("device", "cpu"):
        settled((make("--device", "cpu"),), store)
    with refused("device", "cpu"):  # two that begin at once
        note_device(make(), store, "cpu")
    other = make(preset=("--preset", "smoke"))
    assert began_on(other, store) == ""
    note_device(other, store, "cpu")
    assert (began_on(make(), store), began_on(other, store)) == ("cuda", "cpu")


def test_a_dry_run_plans_for_the_device_that_a_submission_keeps(no_ray, storage):
    store, graph = Store(storage).open_for_writing(), study_graph()
    note_device(graph, store, "cpu")
    (kept,) = settled((graph,), store)
    assert price_line((kept,)) in describe(graph).splitlines()
    assert price_line((graph,)) == price_line((kept,)) != predicted(work_left((graph,), ()))


@pytest.mark.parametrize(("name", "kept"), [("NVIDIA H100 80GB HBM3", "cuda"), ("cpu", "cpu")])
def test_runs_that_a_handover_has_trained_are_continued_on_their_device(
    name, kept, no_ray, storage, monkeypatch
):
    """Without a record; --device may then still choose another."""
    store, graph = Store(storage).open_for_writing(), study_graph()
    run = next(node for node in graph.nodes if node.is_run)
    store.run(run.id).publish(seal({"run_id": run.id, "weights_sha256": "0" * 64}))
    monkeypatch.setattr(RunDirectory, "timing", lambda run: {"device": name})
    assert settled((graph,), store)[0].flags.device == kept
    # Also where all known trials are done: a search may draw more.
    with monkeypatch.context() as patch:
        patch.setattr(device, "work_left", lambda graphs, ended: [])
        assert settled((graph,), store)[0].flags.device == kept
    other = "cuda" if kept == "cpu" else "cpu"
    assert settled((study_graph("--device", other),), store)[0].flags.device == other


def test_studies_that_began_on_two_devices_are_not_one_submission(no_ray, storage):
    store, graphs = Store(storage).open_for_writing(), (study_graph(), search_graph())
    for graph, began in zip(graphs, ("cuda", "cpu"), strict=True):
        note_device(graph, store, began)
    with refused("device", "cuda"):
        settled(graphs, store)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_this_machine_lacks_is_refused_in_process(no_ray, storage):
    (graph,) = settled((study_graph("--in-process"),), Store(storage))
    assert graph.flags.device == "cpu"
    with refused("device", "cuda"):
        settled((study_graph("--in-process", "--device", "cuda"),), Store(storage))


def test_cpus_are_not_planned_as_another_machine(storage):
    with refused("machine", "h100"):
        parse(STUDY, ["--device", "cpu", "--machine", "h100"])
    given = parse(STUDY, ["--preset", "paper", "--device", "cpu"])
    assert given == dataclasses.replace(
        parse(STUDY, ["--preset", "paper"]), device="cpu", machine="cpu"
    )
