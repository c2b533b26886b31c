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
    load_law,
    sized_by,
)

LAW = Law("ours", 0.5, -0.4, 2e-3, 0.5, 64, "a test")


def test_the_papers_law_gives_the_printed_values():
    assert PAPER_LAW.lr(806_441_600) == pytest.approx(5.62e-4, rel=1e-3)  # method.md, "Model sizes"
    assert round(PAPER_LAW.batch(806_441_600)) == 644
    assert round(PAPER_LAW.batch(4_967_623_680), -1) == 2750  # "approximately 2750 at 5B"


@pytest.mark.parametrize("size", PAPER_SIZES.values(), ids=PAPER_SIZES)
def test_the_papers_literals_lie_near_its_law(size):
    sized = sized_by(size, PAPER_LAW, total_parameters(size.dense()))
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
    sized = sized_by(size, PAPER_LAW, num_parameters)
    assert sized.batch_size == 8 * round(16 * sequences / 8)
    assert sized.micro_batch == size.micro_batch


@pytest.mark.parametrize(
    ("sequences", "batch", "micro_batch"), [(4096.0, 4096, 8), (19.0, 16, 8), (5.0, 8, 8), (3.0, 4, 4), (0.01, 1, 1)]
)
def test_batches_at_and_below_the_micro_batch(sequences, batch, micro_batch):
    law = dataclasses.replace(LAW, batch_coefficient=sequences, batch_exponent=0.0)
    sized = sized_by(GRID_DEMO_SIZES["0.2M"], law, 200_000)
    assert (sized.batch_size, sized.micro_batch) == (batch, micro_batch)
    assert sized.peak_lr == law.lr(200_000)


def test_laws_by_name_and_from_a_file(tmp_path):
    assert load_law("paper") is LAWS["paper"] is PAPER_LAW
    path = tmp_path / "law.json"
    path.write_text(json.dumps(dataclasses.asdict(LAW) | {"evidence": {"r2": 0.9}}))
    assert load_law(str(path)) == LAW


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"^law=.*one of paper"),
        ("{", r"^law=.*JSON file"),
        ("[1]", r"^law=.*lacks name"),
        (json.dumps({k: v for k, v in dataclasses.asdict(LAW).items() if k != "seq_len"}), r"^law=.*lacks seq_len"),
        (json.dumps(dataclasses.asdict(LAW) | {"lr_coefficient": -1.0}), r"^law.lr_coefficient=-1.0"),
        (json.dumps(dataclasses.asdict(LAW) | {"lr_exponent": float("nan")}), r"^law.lr_exponent=nan"),
        (json.dumps(dataclasses.asdict(LAW) | {"seq_len": 0.5}), r"^law.seq_len=0.5"),
        (json.dumps(dataclasses.asdict(LAW) | {"name": 3}), r"^law.name=3"),
        (json.dumps(dataclasses.asdict(LAW) | {"no_law": 3}), r"^law.no_law=3"),
        (json.dumps(dataclasses.asdict(LAW) | {"num_sizes": -1}), r"^law.num_sizes=-1"),
        (json.dumps(dataclasses.asdict(LAW) | {"num_sizes": 3}), r"^law.smallest=0.0"),
        (json.dumps(dataclasses.asdict(LAW) | {"num_sizes": 3, "smallest": 2e6, "largest": 2e6}), r"^law.largest=200"),
        (json.dumps(dataclasses.asdict(LAW) | {"smallest": 3e6, "largest": 2e6}), r"^law.largest=2000000.0"),
        (json.dumps({"no_law": "one size", "evidence": []}), r"^law=.*lacks name.*one size"),
    ],
)
def test_bad_laws_are_refused_by_name(tmp_path, text, message):
    path = tmp_path / "law.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_law(str(path))
