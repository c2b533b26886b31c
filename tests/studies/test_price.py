"""What a submission costs is printed before it starts; above a limit it needs --yes or
--max-cost."""

import re

import optuna
import pytest

from gram_platform.engine.life import DIVERGENCE, find_done_ids, find_ended_ids
from gram_platform.planner import MACHINES
from gram_platform.store import Store
from gram_platform.store.files import seal
from gram_platform.studies.library.lr_bs_grid import SEARCH
from gram_platform.studies.library.maxent_search import SEARCH as MAXENT
from gram_platform.studies.library.scaling import STUDY
from gram_platform.studies.plan import plan_hours, price, work_left
from gram_platform.studies.searches.command import campaign_main, main
from tests.refused import refused
from tests.submitted import approved, plan_of, study_plan

SMALL = ("--preset", "smoke", "--sizes", "tiny", "--seeds", "1")
# 177 H100 hours.
DEAR = ("--preset", "paper", "--sizes", "400M", "--seeds", "1", "--device", "cuda")


def small_graph():
    return study_plan(STUDY, [*SMALL, "--methods", "baseline", "gram"])


def test_what_is_not_done_is_priced_once(storage):
    store, graph, cpu = Store(storage).open_for_writing(), small_graph(), MACHINES["cpu"]
    everything = plan_hours(graph.nodes, cpu)
    (work,) = work_left((graph, graph), ())
    assert (work.ids, work.hours(cpu)) == ({node.id for node in graph.nodes}, everything)
    run = next(node for node in graph.nodes if node.is_run)
    store.run(run.id).publish(seal({"run_id": run.id, "weights_sha256": "0" * 64}))
    (left,) = work_left((graph,), find_done_ids(graph.nodes, store))
    assert left.ids == work.ids - {run.id}
    assert left.hours(cpu) == pytest.approx(everything - plan_hours([run], cpu))
    (diverged,) = (
        node for node in graph.nodes if node.is_run and not node.is_attack and node.id != run.id
    )
    with store.run(diverged.id).start_attempt("test") as attempt:
        attempt.fail("loss is nan", DIVERGENCE)
    ended = find_ended_ids(graph.nodes, store)
    assert ended > {run.id, diverged.id}  # with what needs the diverged one
    assert not ended & {node.id for node in graph.nodes if node.needs == {run.id}}
    assert find_ended_ids(graph.nodes, store, retry_diverged=True) == {run.id}
    assert price((left,))[1] == left.hours(cpu) * cpu.dollars_per_hour


def test_a_search_of_optuna_has_the_trials_that_are_not_complete_left(storage):
    graph = study_plan(MAXENT, ["--preset", "smoke"])
    assert graph.share_left() == 1.0
    assert not (storage / "optuna.db").exists()  # a price that is refused leaves nothing
    first, *_ = groups = graph.kind.groups(graph)
    value = [0.0] * len(first.study.directions)
    first.study.add_trial(optuna.trial.create_trial(values=value))
    total = sum(group.num_trials for group in groups)
    assert graph.share_left() == pytest.approx(1 - 1 / total)


def ending(capsys, start, *arguments) -> tuple[int, str]:
    """(exit code, all that is printed) of a submission."""
    with pytest.raises(SystemExit) as ended:
        start(*arguments)
    read = capsys.readouterr()
    return ended.value.code, read.out + read.err


SUBMISSIONS = {
    "a study": (main, STUDY, [*SMALL]),
    "a search": (main, SEARCH, [*SMALL]),
    "all": (campaign_main, (STUDY,), (SEARCH,), ["--preset", "smoke", "--seeds", "1"]),
}


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_above_the_limit_nothing_starts_and_nobody_is_asked(name, storage, capsys):
    start, *what, arguments = SUBMISSIONS[name]
    code, printed = ending(capsys, start, *what, [*arguments, "--confirm-above", "0"])
    assert code == 2
    assert "--yes: " in printed
    assert not (storage / "data").exists()
    (line,) = re.findall("^predicted: .*$", printed, re.M)
    code, described = ending(capsys, start, *what, [*arguments, "--dry-run"])
    assert code == 0
    # The dry run's price is the submission's.
    assert re.search(f"^(of all )?{re.escape(line)}$", described, re.M)


def test_the_default_limit_is_500_dollars(storage):
    dear = lambda *more: approved(plan_of(SEARCH, [*DEAR, *more]))
    with refused("yes", False):
        dear()
    for allowed in (["--yes"], ["--max-cost", "100"], ["--confirm-above", "531"]):
        assert dear(*allowed)
