"""Attacks on views: compute ratios of what is forgotten after finetuning on it (the class `elicited`). Pure.

An attack's loss is the best validation loss of its run. Choosing the checkpoint on validation data follows the paper
and favours the attacker.
"""

import numpy as np
import pandas as pd

from gram_platform.analysis.ratios import VIEW, Notes
from gram_platform.config.identity import invalid

ELICITED = "elicited"
PROFILE = ["method", "size", "profile"]
ATTACK_COLUMNS = [*VIEW, ELICITED, "loss"]  # `elicited`: the attacked domain; loss: NaN while there is no result


def checked_attacks(attacks: pd.DataFrame | None) -> pd.DataFrame:
    """The frame with seeds as text; ValueError for a missing column or an attack that is there twice."""
    if attacks is None:
        return pd.DataFrame(columns=ATTACK_COLUMNS)
    absent = [name for name in ATTACK_COLUMNS if name not in attacks.columns]
    if absent:
        raise invalid("attacks", f"a frame without {', '.join(absent)}", f"the columns {', '.join(ATTACK_COLUMNS)}")
    frame = attacks.assign(seed=attacks["seed"].astype(str))
    doubled = frame[frame.duplicated([*VIEW, ELICITED])]
    if len(doubled):
        first = doubled[[*VIEW, ELICITED]].iloc[0].to_dict()
        raise invalid("attacks", first, "each method, size, seed, profile and attacked domain once")
    return frame


def elicited_ratios(attacks: pd.DataFrame, ratios: pd.DataFrame, references: dict) -> tuple[pd.DataFrame, Notes]:
    """Rows of class `elicited` in the columns of `ratios`, one a forget row of every attacked profile.

    Where an attack has no result its ratio is NaN, where the curve is too flat to convert its loss infinite, and the
    notes name it: a class is known only as a whole.
    """
    columns = list(ratios.columns)
    attacked = set(attacks[PROFILE].itertuples(index=False, name=None))
    keys = ratios[PROFILE].itertuples(index=False, name=None)
    is_target = (ratios["class"] == "forget") & np.array([key in attacked for key in keys], bool)
    targets = ratios[is_target].drop(columns=["loss", "class", "compute_ratio", "run_id"], errors="ignore")
    values = attacks.rename(columns={ELICITED: "domain"})
    values = values[[*VIEW, "domain", "loss", *(["run_id"] if "run_id" in values else [])]]
    rows = targets.merge(values, on=[*VIEW, "domain"], how="left")
    found = [references.get(key) for key in zip(rows["size"], rows["domain"], strict=True)]
    losses = rows["loss"].astype(float)
    known = np.array([r.ratio(loss) if r else np.nan for r, loss in zip(found, losses, strict=True)], float)
    rows = rows.assign(**{"loss": losses, "class": ELICITED, "compute_ratio": known})
    flat = "the baseline's curve is too flat to convert the loss after the attack on"
    notes = [*_unknown(rows[losses.isna()], "no result of the attack on"), *_unknown(rows[np.isinf(known)], flat)]
    return rows.reindex(columns=columns), notes


def _unknown(rows: pd.DataFrame, why: str) -> Notes:
    """One note a view of all seeds, so that a study that has just begun does not list hundreds."""
    notes = []
    for (method, size, profile), group in rows.groupby(PROFILE, sort=False):
        seeds = (f"seed {seed}: {', '.join(own)}" for seed, own in group.groupby("seed")["domain"])
        notes.append((f"{method} {size} {profile}, elicited", f"{why} {'; '.join(seeds)}"))
    return notes
