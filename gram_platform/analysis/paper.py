"""The paper's own numbers and claims, literally, each with the label of its place in the paper."""

import math
from dataclasses import dataclass

import pandas as pd

from gram_platform.analysis.ratios import BASELINE
from gram_platform.analysis.tables import CLASSES, MEAN, interval_text

STORIES = "stories"  # the study whose table these are beside

# tab:synthetic, mean over the five profiles: (compute ratio, half-width of the 90% interval) in the order of CLASSES
STORIES_TABLE = {
    "filtering": ((0.961, 0.015), (0.962, 0.024), (0.780, 0.009), (0.870, 0.012)),
    "gram": ((0.938, 0.029), (0.952, 0.030), (0.766, 0.017), (0.855, 0.024)),
    "ft_full": ((0.874, 0.013), (1.029, 0.011), (0.722, 0.007), (0.806, 0.011)),
    "ft_lora": ((0.841, 0.023), (0.928, 0.033), (0.692, 0.021), (0.774, 0.021)),
    "maxent": ((0.961, 0.066), (0.934, 0.078), (0.840, 0.061), (0.983, 0.051)),
    "demix": ((0.248, 0.030), (0.183, 0.085), (0.257, 0.031), (0.302, 0.040)),
}
STORIES_SIZE, STORIES_SEEDS = "26M", 3  # app:stories
# the table in fig:realistic-results, for the dual-use models: train FLOPs, active and total MLP parameters over the
# baseline's
COST_TABLE = {
    "filtering": ("5x", "1x", "5x"),
    "gram": ("1x", "1x or 1.1x", "1.4x"),
    "ft_lora": ("1x", "1x or 1.1x", "1.4x"),
    "ft_full": ("1x", "1x", "5x"),
    "maxent": ("1x", "1x", "5x"),
}


@dataclass(frozen=True)
class Claim:
    """`left - right > 0`, or with `matches` equal within the margin; each side a method and a class."""

    text: str
    left: tuple[str, str]
    right: tuple[str, str]
    source: str  # label in the paper
    matches: bool = False


STORIES_CLAIMS = (
    Claim("GRAM: retain is above forget", ("gram", "retain"), ("gram", "forget"), "fig:grmoe_vs_filtering"),
    Claim(
        "Filtering: retain is above forget",
        ("filtering", "retain"),
        ("filtering", "forget"),
        "fig:grmoe_vs_filtering",
    ),
    Claim("GRAM matches filtering on core", ("gram", "core"), ("filtering", "core"), "tab:synthetic", True),
    Claim("GRAM matches filtering on retain", ("gram", "retain"), ("filtering", "retain"), "tab:synthetic", True),
    Claim("GRAM matches filtering on forget", ("gram", "forget"), ("filtering", "forget"), "tab:synthetic", True),
    Claim(
        "GRAM matches filtering on elicited forget",
        ("gram", "elicited"),
        ("filtering", "elicited"),
        "tab:synthetic",
        True,
    ),
    Claim("GRAM resists the attack: retain is above elicited", ("gram", "retain"), ("gram", "elicited"), "app:stories"),
    Claim(
        "The attack undoes MaxEnt: elicited is above forget",
        ("maxent", "elicited"),
        ("maxent", "forget"),
        "app:stories",
    ),
    Claim(
        "MaxEnt recovers almost completely: elicited matches the baseline",
        ("maxent", "elicited"),
        ("baseline", "retain"),
        "app:stories",
        True,
    ),
    Claim(
        "MaxEnt is less robust than GRAM: its elicited is above",
        ("maxent", "elicited"),
        ("gram", "elicited"),
        "app:stories",
    ),
    Claim(
        "MaxEnt is less robust than filtering: its elicited is above",
        ("maxent", "elicited"),
        ("filtering", "elicited"),
        "app:stories",
    ),
    Claim("FT-LoRA has a lower core than GRAM", ("gram", "core"), ("ft_lora", "core"), "app:stories"),
    Claim("FT-Full has a lower core than GRAM", ("gram", "core"), ("ft_full", "core"), "app:stories"),
    Claim("DEMix is poor on core: below GRAM", ("gram", "core"), ("demix", "core"), "app:stories"),
    Claim("DEMix is poor on retain: below GRAM", ("gram", "retain"), ("demix", "retain"), "app:stories"),
    Claim(
        "DEMix recovers little: elicited matches forget",
        ("demix", "elicited"),
        ("demix", "forget"),
        "app:stories",
        True,
    ),
)


def paper_difference(claim: Claim) -> float:
    """left - right in the paper's own Stories table, the baseline being 1; NaN where it does not give both."""
    values = {method: [value for value, _ in classes] for method, classes in STORIES_TABLE.items()}
    values[BASELINE] = [1.0] * len(CLASSES)
    unknown = [math.nan] * len(CLASSES)
    left, right = (values.get(m, unknown)[CLASSES.index(name)] for m, name in (claim.left, claim.right))
    return left - right


def beside_paper(table: pd.DataFrame) -> pd.DataFrame:
    """Our `mean` rows, each followed by the paper's row of the method: `mean [low, high]` as text, 90% intervals.

    Columns `method, size, from` ("ours" or "paper"), the four classes, `num_seeds`. Empty where there is no value.
    """
    rows = []
    means = table[(table["profile"] == MEAN) & (table["method"] != BASELINE)]
    for record in means.to_dict("records"):
        own = {name: interval_text(*(record[f"{name}{end}"] for end in ("", "_low", "_high"))) for name in CLASSES}
        key = {"method": record["method"], "size": record["size"]}
        rows.append({**key, "from": "ours", **own, "num_seeds": record["num_seeds"]})
        if record["method"] in STORIES_TABLE:
            values = zip(CLASSES, STORIES_TABLE[record["method"]], strict=True)
            paper = {name: interval_text(mean, mean - error, mean + error) for name, (mean, error) in values}
            rows.append({**key, "size": STORIES_SIZE, "from": "paper", **paper, "num_seeds": STORIES_SEEDS})
    return pd.DataFrame(rows, columns=["method", "size", "from", *CLASSES, "num_seeds"])
