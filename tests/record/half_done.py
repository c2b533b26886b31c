"""Half-done work that the code of commit eca63a33 wrote: a study, a campaign and three searches.

Each has a storage of its own in `half_done.tar.xz`. The commands ran in a checkout of that commit,
with OMP_NUM_THREADS=1 and RAY_ADDRESS=local, with Python 3.11, torch 2.13.0 for CPUs and Ray
2.60.0 on two cores. The folder F had the archive's three preset files.

    python experiments/scaling.py --preset F/preset.toml --methods baseline gram --in-process
        --seeds 1 --storage F/study
    the same with --seeds 2 --checkpoint-every 0.01
    python experiments/all.py --preset F/campaign.toml --studies stories titration
        --searches hyperparams --seeds 1 --checkpoint-every 0.01 --storage F/campaign
    python experiments/lr_bs_grid.py --preset F/preset.toml --checkpoint-every 0.01
        --max-concurrent 1 --storage F/grid
    python experiments/hyperparams.py --preset F/stories.toml --seeds 1
        --knobs p_cr=0:0.25:0.5:1 --checkpoint-every 0.01 --max-concurrent 1
        --storage F/hyperparams
    python experiments/maxent_search.py --preset F/stories.toml --seeds 1 --retain airport
        --trials 3 --checkpoint-every 0.01 --max-concurrent 1 --storage F/maxent

The first command ended. Every process of each other command, Ray's too, got SIGKILL while a run
was in training, whose process had been suspended just before, when the storage had

    study        GRAM's run of seed 1 with step 12 saved; the nodes of seed 0 and the baseline of
                 seed 1 were done (14 of 24 nodes)
    campaign     16 of the 23 nodes of its studies; its search had not begun
    grid         4 of 9 points
    hyperparams  2 of 4 values; the next one was running. It has no Optuna history.
    maxent       2 of 6 trials; the next one was running, in Optuna's database too

The archive leaves out MLflow's database and artifacts, Ray Tune's folder, packed data, pages, the
first submission's files in `history/`, and, of a killed run, checkpoints before the last complete
one and the half-written one of `grid`. The data is packed again under the same id. `reported/` has
the `trials.csv` that the same commit wrote of each half-done search with `--report-only`.
"""

import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

ARCHIVE = Path(__file__).with_name("half_done.tar.xz")


@dataclass(frozen=True)
class HalfDone:
    """A storage of the archive, the command that continues it, and the run that was killed."""

    name: str
    experiment: str
    preset: str
    flags: tuple[str, ...]
    # Studies and searches that have a table in the end.
    tables: tuple[str, ...]
    killed_run: str
    # The last checkpoint of that run.
    saved_step: int

    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, f"experiments/{self.experiment}.py")

    def unpack(self, folder: Path) -> tuple[Path, tuple[str, ...]]:
        """Returns the storage, and the flags with the preset's file in that folder."""
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(folder, filter="data")
        return folder / self.name, ("--preset", str(folder / self.preset), *self.flags)


STUDY = HalfDone(
    "study",
    "scaling",
    "preset.toml",
    ("--methods", "baseline", "gram", "--seeds", "2", "--in-process"),
    ("scaling",),
    "2ef032c87989",
    12,
)
CAMPAIGN = HalfDone(
    "campaign",
    "all",
    "campaign.toml",
    ("--studies", "stories", "titration", "--searches", "hyperparams", "--seeds", "1"),
    ("stories", "titration", "hyperparams"),
    "dbc6ef56d27c",
    53,
)
GRID = HalfDone("grid", "lr_bs_grid", "preset.toml", (), ("lr_bs_grid",), "22c3c023ef54", 10)
SWEEP = HalfDone(
    "hyperparams",
    "hyperparams",
    "stories.toml",
    ("--seeds", "1", "--knobs", "p_cr=0:0.25:0.5:1"),
    ("hyperparams",),
    "bb94c18d7677",
    9,
)
MAXENT = HalfDone(
    "maxent",
    "maxent_search",
    "stories.toml",
    ("--seeds", "1", "--retain", "airport", "--trials", "3"),
    ("maxent_search",),
    "58853ed5d973",
    4,
)
