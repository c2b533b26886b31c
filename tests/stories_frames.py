"""Frames of a whole stories study with planted compute ratios: eight methods, five profiles, three
seeds, attacks."""

import numpy as np
import pandas as pd

from tests.study_frames import NUM_STEPS

AUXILIARY = ("Alien Encounters", "A Deadline or Time Limit", "Bygone Eras", "Cultural Traditions")
DOMAINS = ("core", *AUXILIARY)
SEEDS = ("0", "1", "2")
SIZE = "26M"
PARAMETERS = {SIZE: 26.0e6}
PROFILES = {"core": "", **{f"core+{d}": d for d in AUXILIARY}}
PLANTED = {  # core, retain, forget, elicited
    "filtering": (0.961, 0.962, 0.780, 0.870),
    "gram": (0.938, 0.952, 0.766, 0.855),
    "gram_lora": (0.930, 0.940, 0.760, 0.850),
    "ft_full": (0.874, 1.029, 0.722, 0.806),
    "ft_lora": (0.841, 0.928, 0.692, 0.774),
    "ft_mlp": (0.845, 0.930, 0.700, 0.780),
    "maxent": (0.961, 0.934, 0.840, 0.983),
    "demix": (0.248, 0.183, 0.257, 0.302),
}


def loss_at(domain: str, step):
    j = DOMAINS.index(domain)
    return (5.0 + 0.2 * j) * (np.asarray(step, float) + 10.0 + 5.0 * j) ** -(0.2 + 0.02 * j)


def jitter(method: str, seed: str) -> float:
    """Of core, retain, forget and elicited of a seed alike: its mean over seeds is 0."""
    return 0.01 * (int(seed) - 1) * (1.0 + 0.1 * len(method))


def view(method: str, seed: str, profile: str) -> dict[str, str]:
    return {
        "method": method,
        "size": SIZE,
        "seed": seed,
        "profile": profile,
        "retained": PROFILES.get(profile, ""),
    }


def evaluations(methods=tuple(PLANTED), seeds=SEEDS) -> pd.DataFrame:
    rows = []
    for seed in seeds:
        own = {
            f"loss/{d}": float(loss_at(d, NUM_STEPS * (1.0 + jitter("", seed)))) for d in DOMAINS
        }
        baseline = {**view("baseline", seed, "all"), "retained": ",".join(AUXILIARY)}
        rows.append({**baseline, "run_id": f"run-baseline-{seed}", **own})
        rows += [_evaluation(method, seed, profile) for method in methods for profile in PROFILES]
    return pd.DataFrame(rows)


def _evaluation(method: str, seed: str, profile: str) -> dict:
    core, retain, forget, _ = PLANTED[method]
    kept = {"core": core, **dict.fromkeys(PROFILES[profile].split(","), retain)}
    ratios = {d: kept.get(d, forget) + jitter(method, seed) for d in DOMAINS}
    losses = {f"loss/{d}": float(loss_at(d, NUM_STEPS * ratio)) for d, ratio in ratios.items()}
    return {**view(method, seed, profile), "run_id": f"run-{method}-{seed}", **losses}


def attacks(methods=tuple(PLANTED), seeds=SEEDS) -> pd.DataFrame:
    """Every forgotten domain of every view."""
    rows = []
    for method in methods:
        for seed, profile in ((seed, profile) for seed in seeds for profile in PROFILES):
            for domain in (d for d in AUXILIARY if d != PROFILES[profile]):
                loss = loss_at(domain, NUM_STEPS * (PLANTED[method][3] + jitter(method, seed)))
                run_id = f"attack-{method}-{seed}-{profile}-{domain}"
                rows.append(
                    {
                        **view(method, seed, profile),
                        "elicited": domain,
                        "loss": float(loss),
                        "run_id": run_id,
                    }
                )
    return pd.DataFrame(rows)


def curves(seeds=SEEDS) -> pd.DataFrame:
    steps = np.linspace(NUM_STEPS / 25, NUM_STEPS, 25)
    run = {"method": "baseline", "size": SIZE}
    parts = [
        pd.DataFrame(
            {
                **run,
                "run_id": f"b-{s}",
                "seed": s,
                "step": steps,
                "domain": d,
                "loss": loss_at(d, steps),
            }
        )
        for s in seeds
        for d in DOMAINS
    ]
    return pd.concat(parts, ignore_index=True)


def runs() -> pd.DataFrame:
    """The nodes of the study as the report shows them: attacks have a non-empty `elicited`."""
    done = {"status": "complete", "elapsed_s": 61.0, "tokens_per_second": 41234.5, "error": ""}
    trained = evaluations().drop_duplicates("run_id")[
        ["run_id", "method", "size", "seed", "profile"]
    ]
    tested = evaluations()[["run_id", "method", "size", "seed", "profile"]]
    attacked = attacks().rename(columns={"loss": "best_loss"}).drop(columns="retained")
    parts = [tested.assign(kind="evaluation", **done), trained.assign(kind="run", **done)]
    return pd.concat([*parts, attacked.assign(kind="run", **done)], ignore_index=True).fillna(
        {"elicited": ""}
    )


_SERVED = {"size": SIZE, "shown": "core+Bygone Eras", "of_profiles": 5, "served": 5}
COSTS = (
    {
        **_SERVED,
        "method": "filtering",
        "profiles": 1,
        "train_shown": 0.93,
        "runs": [5, 0],
        "train_all": 4.52,
        "plan_all": 4.52,
        "active_mlp": [1.0, 1.0],
        "total_mlp_all": 5.0,
    },
    {
        **_SERVED,
        "method": "gram",
        "profiles": 5,
        "train_shown": 1.0,
        "runs": [1, 0],
        "train_all": 1.0,
        "plan_all": 1.02,
        "active_mlp": [0.906, 1.0],
        "total_mlp_all": 1.28125,
    },
)
