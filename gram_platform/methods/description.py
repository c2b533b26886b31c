"""Says what a study is about, apart from its settings."""

from dataclasses import KW_ONLY, dataclass, fields


@dataclass(frozen=True)
class Description:
    """What a study is about, and how its results are compared."""

    name: str
    title: str
    question: str  # plain text of the report's head
    _: KW_ONLY
    compare_with: str = ""  # the paper's study whose tables and claims stand beside ours
    varies: str = ""  # the column of the variants, such as "accumulation"
    # the variant whose baselines are the reference of all; "": each variant's own
    unit: str = ""
    # compute ratios against the baseline of the same seed, not against all seeds' pooled
    own_baseline: bool = False

    @property
    def description(self) -> dict:
        """The fields of the description by name."""
        return {field.name: getattr(self, field.name) for field in fields(Description)}
