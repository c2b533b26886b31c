"""The authors' published losses and baseline curves as the frames that `analyse` takes.

Source: the public results of agencyenterprise/modular-pretraining, read through the public fork
JR-Vickers/modular-pretraining, commit b55fb36. They are no part of the product (no licence is
stated), so tests that read them are skipped where the folder is not beside the repository.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.intervals import CURVE_FIXED
from gram_platform.analysis.ratios import ROW, sort_rows
from gram_platform.analysis.tables import (
    CLASSES,
    NUM_DOMAINS,
    Analysis,
    StudyLosses,
    analyse,
    per_seed_frame,
)
from gram_platform.methods.nodes import VARIANT
from gram_platform.pages.results.external import read_external
from gram_platform.pages.results.replication import prepare, replicate
from gram_platform.paper.paper import PUBLISHED_FILE, SOURCE

FOLDER = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "published"
METHODS = {"base": "baseline", "grmoe": "gram", "lora": "ft_lora", "coreftaux": "ft_full"}
# The study whose baselines are the unit.
BASELINE_STUDY = {"stories": "stories", "scaling": "scaling", "dual_use": "scaling"}
# Six more studies, in the format of `gram replicate`.
REPLICATED = (
    "composability",
    "titration",
    "partial_labels",
    "architecture",
    "accumulation",
    "aux_scaling",
)
SIZES = ("26M", "50M", "100M", "200M", "400M", "800M")  # those with curves
WITHOUT_CURVES = ("2B", "5B")  # final losses, and the ratios that the authors computed from them
NEEDS_FOLDER = pytest.mark.skipif(
    not FOLDER.is_dir(), reason=f"the published losses are not there: {FOLDER}"
)
VIEW = ["method", "size", "seed", "profile"]
PUBLISHED_COLUMNS = ("study", VARIANT, *ROW, "seed", *CLASSES, "retained", *NUM_DOMAINS.values())


@dataclass(frozen=True)
class Published:
    """What one study's numbers are analysed from."""

    evaluations: pd.DataFrame
    curves: pd.DataFrame
    attacks: pd.DataFrame
    ratios: pd.DataFrame  # VIEW, domain, is_elicited, published_ratio


@cache
def published_losses() -> pd.DataFrame:
    """`losses.csv` in our words: VIEW, `study, retained, domain, is_elicited, loss,
    published_ratio`.

    DEMix's views have one expert alone, which `retained` names without core; here they are called
    as other methods' (`core+<domain>`), so that claims compare them.
    """
    rows = pd.read_csv(FOLDER / "losses.csv", dtype={"seed": str})
    kept = [[name for name in text.split("+") if name != "core"] for text in rows["retained"]]
    is_all = rows["method"] == "base"
    profiles = [
        "all" if every else "+".join(["core", *own])
        for every, own in zip(is_all, kept, strict=True)
    ]
    named = {
        "method": rows["method"].replace(METHODS),
        "profile": profiles,
        "retained": [",".join(k) for k in kept],
    }
    return rows.assign(**named, is_elicited=rows["elicited"] == 1).drop(columns="elicited")


@cache
def published_frames(study: str) -> Published:
    """The frames of `stories`, `scaling` or `dual_use`."""
    rows, unit = published_losses(), BASELINE_STUDY[study]
    rows = rows[rows["size"].isin(SIZES)]
    sizes = set(rows[rows["study"] == study]["size"])
    is_unit = (rows["study"] == unit) & (rows["method"] == "baseline") & rows["size"].isin(sizes)
    rows = rows[(rows["study"] == study) | is_unit]
    plain, attacked = rows[~rows["is_elicited"]], rows[rows["is_elicited"]]
    wide = (
        plain.pivot(index=[*VIEW, "retained"], columns="domain", values="loss")
        .add_prefix("loss/")
        .reset_index()
    )
    attacks = attacked[[*VIEW, "domain", "loss"]].rename(columns={"domain": "elicited"})
    ratios = rows[[*VIEW, "domain", "is_elicited", "published_ratio"]]
    lines = (FOLDER / "curves.jsonl").read_text().splitlines()
    curves = pd.DataFrame([json.loads(line) for line in lines])
    curves = curves[(curves["study"] == unit) & curves["size"].isin(sizes)].rename(
        columns={"steps": "step"}
    )
    curves = curves.explode(["step", "losses"]).rename(columns={"losses": "loss"})
    return Published(wide, curves.astype({"step": float, "loss": float}), attacks, ratios)


@cache
def published_analysis(study: str) -> Analysis:
    frames = published_frames(study)
    return analyse(
        StudyLosses(frames.evaluations, frames.curves, attacks=frames.attacks),
        SIZES,
        intervals=CURVE_FIXED,
    )


@cache
def replicated_analysis(study: str) -> Analysis:
    """One of REPLICATED through `gram replicate`."""
    prepared = prepare(read_external(FOLDER / "replicate" / study))
    (own,) = (one for one in prepared if one.record.name == study)
    return replicate(own, is_beside=False).analysis


def published_table() -> pd.DataFrame:
    """What the product ships as `paper/published.csv`: `per_seed` of each study, to six
    decimals."""
    parts = []
    for study in BASELINE_STUDY:
        both = pd.concat([published_analysis(study).per_seed, *_per_seed_without_curves(study)])
        parts.append(sort_rows(both, ()).assign(study=study, variant=""))
    for study in REPLICATED:
        parts.append(pd.DataFrame({VARIANT: ""} | dict(replicated_analysis(study).per_seed)))
        parts[-1] = parts[-1].assign(study=study)
    return pd.concat(parts, ignore_index=True)[list(PUBLISHED_COLUMNS)].round(
        dict.fromkeys(CLASSES, 6)
    )


def _per_seed_without_curves(study: str) -> list[pd.DataFrame]:
    """`per_seed` of the sizes without curves, from the published ratios; the baselines have
    none."""
    rows = published_losses()
    rows = rows[
        (rows["study"] == study)
        & rows["size"].isin(WITHOUT_CURVES)
        & rows["published_ratio"].notna()
    ]
    kept = [d in r.split(",") for d, r in zip(rows["domain"], rows["retained"], strict=True)]
    conditions = [rows["domain"] == "core", rows["is_elicited"], np.array(kept, bool)]
    classes = np.select(conditions, ["core", "elicited", "retain"], "forget")
    ratios = rows.assign(**{"class": classes, "compute_ratio": rows["published_ratio"]})
    return [per_seed_frame(ratios, ratios.drop_duplicates(VIEW))[0]] if len(ratios) else []


def write_published_table() -> None:
    """Write the shipped file anew: `python -c "from tests.published import *;
    write_published_table()"`."""
    PUBLISHED_FILE.write_text(
        f"# {SOURCE}\n" + published_table().to_csv(index=False, lineterminator="\n")
    )
