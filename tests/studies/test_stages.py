"""The studies of kinds of attack and of finetuning: what their graphs share with other studies, and
a smoke study."""

import json

import pandas as pd
import pytest

from gram_platform.config import CORE
from gram_platform.corpora.stories import INSTRUCTIONS, RESPONSE
from gram_platform.studies.library import attack_kinds, finetuning, scaling, stories
from gram_platform.studies.searches.command import main
from tests.corpora.conftest import make_records, write_jsonl
from tests.refused import refused
from tests.submitted import study_plan


def graph_of(study, storage, *flags):
    return study_plan(
        study, ["--preset", "smoke", "--seeds", "1", "--storage", str(storage), *flags]
    )


def trained(graph) -> set[str]:
    return {node.id for node in graph.nodes if node.is_run and not node.is_attack}


def test_kinds_differ_in_attacks_alone(tmp_path):
    graph = graph_of(attack_kinds.STUDY, tmp_path)
    methods = ("--methods", *attack_kinds.STUDY.methods, "--retain", "airport")
    assert trained(graph) <= trained(graph_of(stories.STUDY, tmp_path, *methods))
    attacks = [node for node in graph.nodes if node.is_attack]
    assert len(attacks) == 4 * 5 * 3
    texts = {
        (n.names["variant"], n.config.data.domains[0].name == n.names["elicited"]) for n in attacks
    }
    assert texts == {("full", True), ("lora", True), ("neighbour", False), ("core", False)}
    assert {n.names["variant"] for n in attacks if n.config.model.modules} == {"lora"}


def test_pretraining_never_sees_the_instructions_and_one_stage_follows_each_view(tmp_path):
    graph = graph_of(finetuning.STUDY, tmp_path)
    runs = [node for node in graph.nodes if node.is_run]
    of_stage = [n for n in runs if INSTRUCTIONS in {b.name for b in n.config.data.domains}]
    assert {n.method for n in of_stage} == set(finetuning.STUDY.methods)
    assert len(of_stage) == len(finetuning.STUDY.methods)
    assert all(n.names["variant"] == finetuning.AFTER and n.config.start for n in of_stage)
    assert all(INSTRUCTIONS not in n.config.domains for n in graph.nodes if not n.is_run)
    assert {n.names["variant"] for n in runs if n.is_attack} == {
        finetuning.BEFORE,
        finetuning.AFTER,
    }
    with refused("options.finetuning.text", "instructions"):
        graph_of(finetuning.STUDY, tmp_path, "--corpus", "stories-smoke")


def test_instructions_of_a_user_are_trained_on_by_their_responses(tmp_path):
    write_jsonl(tmp_path / "text" / "all.jsonl", make_records(num=400))
    asked = [
        {"prompt": f"Which key is number {n}?", "response": f"Key number {n} is {n * 7}."}
        for n in range(900)
    ]
    mine = str(write_jsonl(tmp_path / "mine.jsonl", asked))
    given = ("--corpus", str(tmp_path / "text"), "--methods", "gram", "--instructions", mine)
    graph = graph_of(finetuning.STUDY, tmp_path, *given)
    texts = {n.config.data.domains[0].name: set() for n in graph.nodes if n.is_run}
    for node in (node for node in graph.nodes if node.is_run):
        texts[node.config.data.domains[0].name].add(node.config.objective.responses_after)
    assert texts.pop(INSTRUCTIONS) == {RESPONSE}
    assert set().union(*texts.values()) == {""}
    with refused("instructions"):
        graph_of(scaling.STUDY, tmp_path, *given)


def test_removal_is_measured_before_and_after_the_stage(tmp_path, capsys):
    flags = ["--preset", "smoke", "--methods", "gram", "--storage", str(tmp_path), "--in-process"]
    with pytest.raises(SystemExit) as ended:
        main(finetuning.STUDY, flags)
    assert ended.value.code in (0, None)
    table = pd.read_csv(tmp_path / "studies" / "finetuning" / "table.csv").set_index(
        ["stage", "method", "profile"]
    )
    before, after = table.loc[finetuning.BEFORE], table.loc[finetuning.AFTER]
    assert before.loc[("baseline", "all"), CORE] == pytest.approx(1.0)
    # Against the pretrained baseline.
    assert after.loc[("baseline", "all"), CORE] != pytest.approx(1.0)
    assert (
        after.loc[("gram", "core+airport"), ["core", "retain", "forget", "elicited"]].notna().all()
    )
    record = json.loads((tmp_path / "studies" / "finetuning" / "study.json").read_text())
    assert record["unit"] == finetuning.BEFORE
