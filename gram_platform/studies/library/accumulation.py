"""Declares the study of gradient accumulation (the paper's "Heterogeneous Accumulation")."""

from dataclasses import replace

from gram_platform.studies import Study
from gram_platform.studies.library.scaling import (
    AS_RUN,
    DEMO,
    PAPER,
    SMOKE,
    at_size,
    vary_accumulation,
)

# Windows of 192 micro-batches, one for each of their 32 processes and 6 passes.
AS_RUN_WINDOWS = replace(AS_RUN.sizes["200M"], batch_size=384, micro_batch=2)

STUDY = Study(
    name="accumulation",
    title="Uniform and heterogeneous accumulation",
    question=(
        "What does it change whether all micro-batches of a window share one route or each has its"
        " own?"
    ),
    methods=("baseline", "gram", "ft_lora"),
    presets={
        "smoke": vary_accumulation(at_size(SMOKE, "tiny")),
        "demo": vary_accumulation(
            at_size(
                DEMO,
                "0.15M",
                methods=(),
                sizes={"0.15M": replace(DEMO.sizes["0.15M"], batch_size=16, micro_batch=4)},
            )
        ),
        "paper": vary_accumulation(at_size(PAPER, "200M", num_seeds=1)),
        "as_run": vary_accumulation(
            at_size(AS_RUN, "200M", num_seeds=1, sizes={"200M": AS_RUN_WINDOWS})
        ),
    },
    compare_with="accumulation",
    varies="accumulation",
    unit="heterogeneous",
    paper={"Table 4": "heterogeneous accumulation raises core and retain"},
)
