"""A storage that commit ec81bf3 (2026-11-25) wrote, with the corpus and the presets of its study and its search.

Made there, in a folder with `corpus/`, `preset.toml` and `search.toml`, by

    python experiments/scaling.py --preset preset.toml --corpus corpus --seeds 1 --methods baseline gram --in-process
    the same with --seeds 2 --checkpoint-every 0.01, killed when GRAM's run of seed 1 had saved step 12 of 30
    python experiments/hyperparams.py --preset search.toml --corpus corpus --seeds 1 --knobs p_cr=0.25:0.5
    gram gc

without MLflow's database, Ray Tune's folder and the HTML reports. Its table of `scaling` is that of seed 0.
"""

import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).with_name("earlier.tar.xz")
GRAM_RUN = "5f7254ecbbb5"  # complete, with modules `lisp` and `virology`
KILLED_RUN, SAVED_STEP = "df03ea22c2ba", 12
BASELINE_OF_SEED_1 = "e35f5f6c02f2"
NUM_RUNS, NUM_EVALUATIONS = 13, 10


def unpack(folder: Path) -> Path:
    """Returns the folder, with `storage/`, `corpus/`, `preset.toml` and `search.toml` in it."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def flags_of(folder: Path, preset: str) -> tuple[str, ...]:
    return ("--preset", str(folder / preset), "--corpus", str(folder / "corpus"))
