"""The text of one of the paper's claims, found by what it compares."""

from gram_platform.paper.claims import CLAIMS


def claim_of(study: str, left: str, right: str) -> str:
    """The text of the study's claim about two sides, each a method and a class as `gram retain`."""
    (text,) = {
        claim.text
        for claim in CLAIMS[study]
        if [f"{side.method} {side.name}" for side in (claim.left, claim.right)] == [left, right]
    }
    return text
