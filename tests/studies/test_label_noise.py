"""The study of wrong labels: its plan, the user's own noise, and a study on records that name their
true labels."""

import json

import pandas as pd
import pytest

from gram_platform.config import CORE
from gram_platform.studies import main
from gram_platform.studies.library import scaling
from gram_platform.studies.library.label_noise import STUDY
from tests.corpora.conftest import make_records, write_jsonl
from tests.refused import refused
from tests.submitted import study_plan


def graph_of(study, storage, *flags, preset="smoke"):
    given = ["--preset", preset, "--seeds", "1", "--storage", str(storage), *flags]
    return study_plan(study, given)


def trained(graph, variant=None):
    nodes = (n for n in graph.nodes if n.is_run and not n.is_attack)
    return {n.id for n in nodes if variant in (None, n.names.get("variant"))}


def test_the_demo_varies_recall_and_precision_and_shares_runs_with_the_scaling_study(tmp_path):
    graph = graph_of(STUDY, tmp_path, preset="demo")
    names = [variant.name for variant in graph.preset.variants]
    assert names == ["1", "1, precision 0.5", "0.95", "0.8", "0.5"]
    shared = graph_of(scaling.STUDY, tmp_path, "--sizes", "0.15M", preset="demo")
    assert trained(shared) <= trained(graph)
    of_methods = {
        method: {n.names["variant"] for n in graph.entries if n.method == method}
        for method in graph.methods
    }
    assert all(variants == set(names) for variants in of_methods.values())
    attacked = {n.names["profile"] for n in graph.nodes if n.is_attack}
    assert attacked == {"core+airport"}


def test_a_user_gives_noise_to_every_study(tmp_path):
    graph = graph_of(STUDY, tmp_path, "--recall", "0.9")
    assert [variant.name for variant in graph.preset.variants] == ["1", "0.9"]
    of_scaling = ("--sizes", "tiny", "--methods", *STUDY.methods)
    plain = graph_of(scaling.STUDY, tmp_path, *of_scaling)
    noisy = graph_of(scaling.STUDY, tmp_path, *of_scaling, "--recall", "0.9")
    assert trained(graph, "1") == trained(plain)
    assert trained(plain) | trained(noisy) == trained(graph)
    near = ("--precision", "0.95", "--adjacent", "canal")
    graph = graph_of(STUDY, tmp_path, *near)
    [gram] = [
        n.config
        for n in graph.nodes
        if n.is_run
        and n.method == "gram"
        and n.names["variant"] == "1, precision 0.95"
        and not n.is_attack
    ]
    pools = {b.name: {part.domain for part in b.pool} for b in gram.data.domains}
    assert pools["airport"] == {"airport", "core:core"}


def test_bad_noise_is_refused_before_any_work(tmp_path):
    for flag in ("recall", "precision"):
        for share in ("0", "1.5"):
            with refused(flag, float(share)):
                graph_of(STUDY, tmp_path, f"--{flag}", share)
    with refused("adjacent", "moon"):
        graph_of(STUDY, tmp_path, "--precision", "0.9", "--adjacent", "moon")
    with refused("precision", 0.1):
        graph_of(STUDY, tmp_path, "--precision", "0.1", "--adjacent", "canal")
    with refused("adjacent", "canal"):
        graph_of(scaling.STUDY, tmp_path, "--adjacent", "canal")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_records_with_true_labels_are_trained_as_labelled(tmp_path):
    records = make_records(num=1500)
    for record in records[1::8]:
        record |= {"label": CORE, "true_label": record["label"]}
    write_jsonl(tmp_path / "text" / "all.jsonl", records)
    flags = ["--preset", "smoke", "--seeds", "1", "--methods", "filtering", "gram", "ft_lora"]
    flags += ["--corpus", str(tmp_path / "text"), "--storage", str(tmp_path / "s")]
    with pytest.raises(SystemExit) as ended:
        main(STUDY, [*flags, "--in-process"])
    assert ended.value.code in (0, None)
    folder = tmp_path / "s" / "studies" / "label_noise"
    table = pd.read_csv(folder / "table.csv", dtype={"recall": str}).set_index("method")
    assert set(table["recall"]) == {"1", "as labelled"}
    attacked = table[(table["profile"] == CORE) & (table.index != "baseline")]
    assert len(attacked) == 6
    assert attacked[["core", "forget", "elicited"]].notna().all(axis=None)
    graph = study_plan(STUDY, flags)
    labels = {
        variant: {b.name: [part.domain for part in b.pool] for b in n.config.data.domains}
        for n in graph.nodes
        if n.is_run and n.method == "gram" and not n.is_attack
        for variant in [n.names["variant"]]
    }
    assert labels["1"] == {CORE: [CORE], "virology": ["virology", "virology:core"]}
    assert labels["as labelled"] == {CORE: [CORE, "virology:core"], "virology": ["virology"]}
    assert "Beyond the paper" in json.loads((folder / "study.json").read_text())["question"]
