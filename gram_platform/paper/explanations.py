"""Why our runs disagree with a claim: one sentence for each, and what shows it. Literal; written by hand."""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from gram_platform.paper.verdicts import DISAGREE

EXPLANATION = "explanation"  # the column of claims


class Explanation(NamedTuple):
    """Shown as one text beside the verdict that it explains."""

    sentence: str  # with its full stop
    shown_by: str  # a run id, or the command whose table shows it


Explanations = Mapping[tuple[str, str, str], Explanation]  # {(study, preset, the claim's text): explanation}
EXPLANATIONS: Explanations = {}


def explained(claims: pd.DataFrame, study: str, preset: str, explanations: Explanations = EXPLANATIONS) -> pd.DataFrame:
    """The claims with a column `explanation`, at every size and variant that the claim is judged at.

    Empty beside other verdicts than "disagree", and where there is none.
    """
    texts = [
        _text(explanations.get((study, preset, claim))) if verdict.startswith(DISAGREE) else ""
        for claim, verdict in zip(claims["claim"], claims["verdict"], strict=True)
    ]
    return claims.assign(**{EXPLANATION: pd.Series(texts, claims.index, dtype=object)})


def _text(found: Explanation | None) -> str:
    return f"{found.sentence} Shown by {found.shown_by}." if found else ""
