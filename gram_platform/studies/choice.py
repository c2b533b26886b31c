"""What a submission asks for, by subject: the small values that flags are resolved into.

How nodes are executed is said by the engine's values: `Execution`, `Resources`, and a placement for each node.
"""

from dataclasses import dataclass

from gram_platform.planner import Budget


@dataclass(frozen=True)
class Choice:
    """Which runs of a preset are wanted, and on which text; the flags of the same names say what each field means."""

    sizes: tuple[str, ...]
    seeds: int
    first_seed: int
    retain: tuple[str, ...]
    corpus: str
    core_label: str
    core_tokenizer: bool
    # Where fetched text is kept, and what earlier versions have packed.
    storage: str
    instructions: str = ""


@dataclass(frozen=True)
class Destination:
    """Where results go: to a storage, and to the MLflow that mirrors it."""

    storage: str
    tracking_uri: str


@dataclass(frozen=True)
class Limits:
    """What a submission may cost: over all submissions, and predicted without the user's word."""

    budget: Budget
    # In dollars.
    confirm_above: float
    yes: bool

    @property
    def is_approved(self) -> bool:
        """Whether the user has said that a high price is right, or where it ends."""
        return self.yes or self.budget.max_cost > 0.0
