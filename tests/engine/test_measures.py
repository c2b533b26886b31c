"""What is measured of a view beside its losses: losses of tokens, continuations, and how they are
stored.
"""

import dataclasses

import numpy as np
import pytest
import torch

from gram_platform.config import CORE, Continuations, Evaluation, TokenLosses, View
from gram_platform.config.identity import InvalidField
from gram_platform.corpora.packed import prompts_and_truths, split_documents
from gram_platform.corpora.tokenizer import end_of_text_id, load_tokenizer
from gram_platform.engine.evaluation import execute_evaluation
from gram_platform.engine.node import execute_run
from gram_platform.methods import plan
from gram_platform.methods.measurements import Samples
from gram_platform.methods.nodes import Node
from gram_platform.pages.report.samples import read_samples, samples_page
from gram_platform.pages.results.record import StudyRecord
from gram_platform.planner.ranks import Ranks
from gram_platform.store import Store
from gram_platform.studies.workplace import placement_of

NUM_SEQUENCES = 5


@pytest.fixture
def execution(execution):
    """Without checkpoints: nothing interrupts these runs."""
    return dataclasses.replace(execution, checkpoint_every_s=1e9)


@pytest.fixture
def view(setting, execution):
    """A trained GRAM with one module on."""
    plans = plan("gram", setting)
    execute_run(plans.runs["all"], {}, execution)
    return plans.views[setting.auxiliary[:1]]


def test_losses_of_tokens_add_up_to_the_domains(view, setting, execution):
    evaluation = Evaluation(
        view, setting.data_id, setting.domains, NUM_SEQUENCES, precision="float32"
    )
    tokens = TokenLosses(view, setting.data_id, setting.auxiliary, NUM_SEQUENCES, "float32")
    losses = execute_evaluation(evaluation, {}, execution)["losses"]
    result = execute_evaluation(tokens, {"measure": "tokens"}, execution)
    tensors = execution.store().evaluation(tokens.eval_id).tensors()
    assert set(tensors) == set(result["losses"]) == set(setting.auxiliary)
    for domain, tensor in tensors.items():
        assert tensor.shape == (NUM_SEQUENCES, setting.size.seq_len)
        assert tensor.dtype == torch.float32
        assert result["losses"][domain] == pytest.approx(losses[domain], rel=1e-6)
        assert result["losses"][domain] == float(tensor.double().mean())
    assert execute_evaluation(tokens, {}, execution) == result


def test_corrupted_tensors_are_made_again(view, setting, execution):
    tokens = TokenLosses(view, setting.data_id, setting.auxiliary, NUM_SEQUENCES, "float32")
    result = execute_evaluation(tokens, {}, execution)
    directory = execution.store().evaluation(tokens.eval_id)
    (name,) = (n for n in directory.folder.list() if n.endswith(".safetensors"))
    data = bytearray(directory.folder.read(name))
    data[-1] ^= 1
    directory.folder.write(name, bytes(data))
    with pytest.warns(RuntimeWarning), pytest.raises(InvalidField):
        directory.tensors()
    assert directory.result() is None
    assert execute_evaluation(tokens, {}, execution) == result
    assert set(directory.tensors()) == set(setting.auxiliary)
    plain = Evaluation(view, setting.data_id, (CORE,), 2)
    execute_evaluation(plain, {}, execution)
    with pytest.raises(InvalidField):
        Store(execution.storage).evaluation(plain.eval_id).tensors()


def test_continuations_of_documents(view, setting, execution):
    asked = Continuations(
        view, setting.data_id, setting.auxiliary[:2], (0, 2), 6, 20, precision="float32"
    )
    result = execute_evaluation(asked, {}, execution)
    corpus = execution.corpus(setting.data_id)
    end_of_text = end_of_text_id(load_tokenizer(corpus.tokenizer_path))
    for domain in asked.domains:
        documents = [
            d for d in split_documents(corpus.validation(domain), end_of_text) if len(d) > 6
        ]
        assert result["prompts"][domain] == [documents[0][:6].tolist(), documents[2][:6].tolist()]
        assert result["truths"][domain] == [
            documents[0][6:26].tolist(),
            documents[2][6:26].tolist(),
        ]
        drawn = result["continuations"][domain]
        assert all(0 < len(tokens) <= 20 and end_of_text not in tokens[:-1] for tokens in drawn)
        assert result["num_tokens"][domain] == sum(map(len, drawn))
        assert 0.0 < result["surprisals"][domain] < 2.0 * np.log(setting.size.vocab_size)
    other = dataclasses.replace(asked, domains=asked.domains[1:], documents=(2,))
    alone = execute_evaluation(other, {}, execution)["continuations"][asked.domains[1]]
    assert alone == result["continuations"][asked.domains[1]][1:]  # whatever else is asked for
    another_seed = execute_evaluation(dataclasses.replace(asked, seed=1), {}, execution)
    assert another_seed["continuations"] != result["continuations"]


def test_a_page_of_continuations_has_a_row_of_core_for_every_profile(setting, execution):
    """From trained views to the table and the page: core is kept by both, the domain by one."""
    kept = setting.auxiliary[0]
    nodes = Samples(6, 20, (0,), compared_only=True).nodes(
        "gram", dataclasses.replace(setting, profiles=((kept,),))
    )
    for node in nodes:
        execute = execute_run if node.kind == "run" else execute_evaluation
        execute(node.config, node.names, execution)
    entries = tuple({"id": node.id, "kind": node.kind, "tags": node.names} for node in nodes)
    record = StudyRecord("samples", "Samples", "?", (), {}, ("tiny",), {"tiny": 1}, "mean", entries)
    results = read_samples(record, execution.store(), None)
    found = results.samples[["domain", "profile", "topic"]].itertuples(index=False, name=None)
    profiles = ("core", f"core+{kept}")
    expected = [(kept, profiles[0], "removed"), (kept, profiles[1], "kept")]
    assert sorted(found) == sorted([*expected, *((CORE, profile, "kept") for profile in profiles)])
    sections = {section.title: section for section in samples_page(record, results, None).sections}
    of_core = sections[f"{CORE}, document 0"].table
    assert list(of_core.columns) == ["method", "profile", "continuation"]
    assert sorted(of_core["profile"]) == sorted(profiles)
    assert of_core["continuation"].str.len().min() > 0
    assert list(sections[f"{kept}, document 0"].table.columns) == [
        "method",
        "topic kept",
        "topic removed",
    ]


def test_documents_of_packed_rows():
    # 0 ends a document; the last one is cut.
    stream = np.array([5, 6, 0, 7, 0, 8, 9, 10, 0, 11, 12], np.uint16)
    rows = np.stack([stream[:6], stream[5:]])
    assert [d.tolist() for d in split_documents(rows, 0)] == [[5, 6], [7], [8, 9, 10]]
    assert prompts_and_truths(rows, 0, (0, 1), 1, 1) == [([5], [6]), ([8], [9])]
    with pytest.raises(InvalidField) as caught:
        prompts_and_truths(rows, 0, (0, 2), 1, 1)
    assert caught.value.value == (0, 2)
    assert split_documents(np.array([[1, 2, 3]]), 0) == []
    assert [d.tolist() for d in split_documents(np.array([[1, 2, 0]]), 0)] == [[1, 2]]


def test_evaluations_of_every_kind_have_one_rank(setting):
    kinds = (Evaluation, TokenLosses)
    asked = [kind(View("abc"), setting.data_id, (CORE,), 4) for kind in kinds]
    asked.append(Continuations(View("abc"), setting.data_id, (CORE,), (0,), 4, 8))
    placed = [
        placement_of(Node.of(evaluation, {"size": "tiny"}), Ranks(4), "cpu") for evaluation in asked
    ]
    assert [placement.fewest.num_ranks for placement in placed] == [1, 1, 1]
