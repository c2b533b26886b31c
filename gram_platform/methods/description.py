"""Says what a study is about, apart from its settings."""

from dataclasses import KW_ONLY, dataclass, fields


@dataclass(frozen=True)
class Description:
    """What a study is about, and how its results are compared."""

    name: str
    title: str
    # The plain text of the report's head.
    question: str
    _: KW_ONLY
    # The paper's study whose tables and claims stand beside ours.
    compare_with: str = ""
    # The column of the variants, such as "accumulation".
    varies: str = ""
    # The variant whose baselines are the reference of all; "": each variant's own.
    unit: str = ""
    # Whether compute ratios are against the baseline of the same seed, not all seeds' pooled.
    own_baseline: bool = False

    @property
    def description(self) -> dict:
        """The fields of the description by name."""
        return {field.name: getattr(self, field.name) for field in fields(Description)}
