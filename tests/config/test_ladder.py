"""Laws against the paper's printed values, their files, and the sizes they give."""

import dataclasses
import json

import pytest

from gram_platform.config.flops import total_parameters
from gram_platform.config.ladder import (
    DEMO_SIZES,
    GRID_DEMO_SIZES,
    LAWS,
    PAPER_LAW,
    PAPER_SIZES,
    Law,
    apply_law,
    load_law,
)
from tests.refused import refused

LAW = Law("ours", 0.5, -0.4, 2e-3, 0.5, 64, "a test")


def test_the_papers_law_gives_the_printed_values():
    assert PAPER_LAW.lr(806_441_600) == pytest.approx(5.62e-4, rel=1e-3)  # method.md, "Model sizes"
    assert round(PAPER_LAW.batch(806_441_600)) == 644
    assert round(PAPER_LAW.batch(4_967_623_680), -1) == 2750  # "approximately 2750 at 5B"


@pytest.mark.parametrize("size", PAPER_SIZES.values(), ids=PAPER_SIZES)
def test_the_papers_literals_lie_near_its_law(size):
    sized = apply_law(size, PAPER_LAW, total_parameters(size.dense()))
    assert sized.peak_lr == pytest.approx(size.peak_lr, rel=0.04)
    assert sized.batch_size % size.micro_batch == 0
    assert sized.batch_size == pytest.approx(size.batch_size, rel=0.12)
    same = dataclasses.replace(sized, peak_lr=size.peak_lr, batch_size=size.batch_size)
    assert same == size


def test_the_batch_is_converted_by_tokens():
    size = DEMO_SIZES["0.6M"]  # sequences of 64 tokens, micro-batches of 8
    num_parameters = total_parameters(size.dense())
    sequences = PAPER_LAW.batch(num_parameters)
    assert PAPER_LAW.batch(num_parameters, 64) == pytest.approx(16 * sequences)
    sized = apply_law(size, PAPER_LAW, num_parameters)
    assert sized.batch_size == 8 * round(16 * sequences / 8)
    assert sized.micro_batch == size.micro_batch


@pytest.mark.parametrize(
    ("sequences", "batch", "micro_batch"),
    [(4096.0, 4096, 8), (19.0, 16, 8), (5.0, 8, 8), (3.0, 4, 4), (0.01, 1, 1)],
)
def test_batches_at_and_below_the_micro_batch(sequences, batch, micro_batch):
    law = dataclasses.replace(LAW, batch_coefficient=sequences, batch_exponent=0.0)
    sized = apply_law(GRID_DEMO_SIZES["0.2M"], law, 200_000)
    assert (sized.batch_size, sized.micro_batch) == (batch, micro_batch)
    assert sized.peak_lr == law.lr(200_000)


def test_laws_by_name_and_from_a_file(tmp_path):
    assert load_law("paper") is LAWS["paper"] is PAPER_LAW
    path = tmp_path / "law.json"
    path.write_text(json.dumps(dataclasses.asdict(LAW) | {"evidence": {"r2": 0.9}}))
    assert load_law(str(path)) == LAW


BAD_LAWS = {
    "lr_coefficient": {"lr_coefficient": -1.0},
    "name": {"name": 3},
    "smallest": {"num_sizes": 3},
    "largest": {"smallest": 3e6, "largest": 2e6},
}


@pytest.mark.parametrize("field", BAD_LAWS)
def test_bad_fields_of_a_law_are_refused_by_name(tmp_path, field):
    path = tmp_path / "law.json"
    path.write_text(json.dumps(dataclasses.asdict(LAW) | BAD_LAWS[field]))
    with refused(f"law.{field}"):
        load_law(str(path))


@pytest.mark.parametrize("text", [None, "{", "[1]", "{}", '{"no_law": "one size", "evidence": []}'])
def test_a_file_without_a_law_is_refused(tmp_path, text):
    path = tmp_path / "law.json"
    if text is not None:
        path.write_text(text)
    with refused("law", str(path)):
        load_law(str(path))
