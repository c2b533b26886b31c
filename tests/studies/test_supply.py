"""What a corpus can serve: bytes by size, ids that sizes and studies share, and shortages before
anything is packed."""

import json

import pytest

from gram_platform.corpora.recipe import HubSource
from gram_platform.studies.dry_run import describe
from gram_platform.studies.library import dual_use
from gram_platform.studies.library.scaling import STUDY
from gram_platform.studies.packing import require_supply
from tests.submitted import approved, plan_of, study_plan


def graph_of(study, *arguments):
    return study_plan(study, ["--preset", "paper", *arguments])


def described(*arguments):
    return describe(plan_of(STUDY, ["--preset", "paper", *arguments]))


def baselines(graph, size):
    runs = [n for n in graph.entries if n.is_run and (n.size, n.method) == (size, "baseline")]
    return {node.id for node in runs if not node.is_attack}


def test_a_size_is_the_same_data_in_every_study_and_choice_of_sizes(storage):
    every, one, other = graph_of(STUDY), graph_of(STUDY, "--sizes", "50M"), graph_of(dual_use.STUDY)
    assert len(every.corpora) == len(every.choice.sizes)  # one a size
    assert one.data_id == every.corpora[0].data_id
    assert baselines(one, "50M") == baselines(every, "50M") != set()
    assert other.recipes["800M"] == every.recipes["800M"]
    assert baselines(other, "800M") == baselines(every, "800M") != set()
    assert not any("shortage: " in line for line in described().splitlines())


def test_a_dry_run_says_the_bytes_of_each_size(storage):
    graph = graph_of(STUDY, "--sizes", "50M", "800M")
    text = described("--sizes", "50M", "800M")
    for size, tokens in (("50M", 0.96e9), ("800M", 16.1e9)):
        num_bytes = sum(graph.recipes[size][0].source.available_bytes)
        assert 4.5 < num_bytes / tokens < 5.5
        assert f"{num_bytes:,}" in text
    assert isinstance(graph.corpora[0].source, HubSource)


def test_the_papers_data_alone_stops_at_the_second_size(storage):
    """1.19B tokens of other papers serve 0.96B of core, not 2.1B; the dry run goes on, submitting
    fetches nothing."""
    plan = plan_of(STUDY, ["--preset", "paper", "--corpus", "dual-use-papers"])
    (line,) = [line for line in describe(plan).splitlines() if "shortage: " in line]
    assert line.endswith("100M, 200M, 400M, 800M, 2B, 5B")
    with pytest.raises(ValueError, match="domain core: "):
        approved(plan)
    assert not (storage / "data").exists()


def test_a_shortage_that_depends_on_the_tokenizer_is_no_error(storage, tmp_path):
    """200 kB of core are about 47,500 training tokens at 4 bytes each and 95,000 at 2; the size
    needs 60,000."""
    texts = {"core": 200_000, "law": 100_000}
    documents = [
        {"text": f"{label} {n} " + "word " * 198, "label": label}
        for label, size in texts.items()
        for n in range(size // 1000)
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    plan = plan_of(STUDY, ["--preset", "smoke", "--sizes", "small", "--corpus", str(path)])
    (line,) = [line for line in describe(plan).splitlines() if "shortage: " in line]
    assert "core: " in line
    require_supply(plan.studies)
