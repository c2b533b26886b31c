"""Defines the input of a method, `Setting`, and its output, `MethodRuns`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, count
from math import comb
from typing import Any, Self

from gram_platform.config import CORE, OptimizerConfig, RoutingConfig, RunConfig, Slice, View
from gram_platform.config.identity import (
    invalid,
    require_choice,
    require_fields,
    require_int,
    require_name,
    require_real,
)
from gram_platform.config.ladder import Size
from gram_platform.config.routing import hash_key
from gram_platform.config.training import MISDIRECTION, OBJECTIVES

# Pairs of a domain and its p_af.
Factors = tuple[tuple[str, float], ...]
# The auxiliary domains that are retained, sorted; () is core alone.
Profile = tuple[str, ...]
# The most subsets of each size, enough for all subsets of five domains.
MOST_SUBSETS = 10


def profile_name(retained: Profile, auxiliary: tuple[str, ...]) -> str:
    """Returns a profile's name, such as `core`, `core+virology` or `all`."""
    if retained and set(retained) == set(auxiliary):
        return "all"
    return "+".join((CORE, *retained))


def subsets_of(domains: Profile) -> tuple[Profile, ...]:
    """Returns subsets of `domains`, smallest first, with at most MOST_SUBSETS of each length.

    If a length has more subsets, the choice is random but reproducible.
    """
    subsets: list[Profile] = []
    for number in range(len(domains) + 1):
        is_few = comb(len(domains), number) <= MOST_SUBSETS
        chosen, draws = set(combinations(domains, number)) if is_few else set(), count()
        while not is_few and len(chosen) < MOST_SUBSETS:
            chosen.add(_draw(domains, number, next(draws)))
        subsets += sorted(chosen)
    return tuple(subsets)


def _draw(domains: Profile, number: int, draw: int) -> Profile:
    by_draw = sorted(domains, key=lambda domain: hash_key("subset", number, draw, domain))
    return tuple(domain for domain in domains if domain in by_draw[:number])


def require_factors(field: str, factor: float, factor_of: Factors) -> None:
    """Raises ValueError if the factor p_af is not positive for every domain."""
    require_real(f"{field}.aux_factor", factor, 0.0, open_low=True)
    for domain, value in factor_of:
        require_real(f"{field}.aux_factor_of[{domain}]", value, 0.0, open_low=True)


@dataclass(frozen=True)
class Branching:
    """Options of the FT methods, which finetune a branch for each domain from one base."""

    # p_ca: the number of core batches (rehearsal) per auxiliary batch.
    core_ratio: float = 1.0
    # p_lr: multiplies the size's peak learning rate.
    lr_factor: float = 1.0
    # p_af: how often the auxiliary domain is drawn.
    aux_factor: float = 1.0
    aux_factor_of: Factors = ()

    def __post_init__(self) -> None:
        require_fields("branching", self, 0, "core_ratio")
        require_fields("branching", self, 0, "lr_factor", open_low=True)
        require_factors("branching", self.aux_factor, self.aux_factor_of)

    def factor(self, domain: str) -> float:
        """Returns p_af, which multiplies a domain's draws."""
        return dict(self.aux_factor_of).get(domain, self.aux_factor)


@dataclass(frozen=True)
class Unlearning:
    """Options of unlearning. The loss is a forget term + `retain_weight` x a retain term."""

    num_steps: int = 2000
    peak_lr: float = 1e-4
    retain_weight: float = 200.0
    kind: str = "maxent_entropy"
    # The rate is constant after the warm-up [ours].
    warmup_fraction: float = 0.02
    # Forget sequences in a step, and also its retain sequences; 0: the size's batch [ours].
    batch_size: int = 0
    # Core's share of retain sequences if the profile has a domain; 0: the mixture's [ours].
    core_share: float = 0.0
    stop_below: float = 0.0
    # 0: no clipping.
    clip_norm: float = OptimizerConfig.clip_norm
    # The share of the layers after which misdirection steers; the authors' 8 of 32.
    depth: float = 0.25
    steering: float = 6.5

    def __post_init__(self) -> None:
        require_choice("unlearning.kind", self.kind, OBJECTIVES[2:])
        require_fields("unlearning", self, 1, "num_steps")
        require_fields(
            "unlearning", self, 0, "retain_weight", "batch_size", "stop_below", "clip_norm"
        )
        require_fields("unlearning", self, 0, "core_share", high=1)
        require_fields("unlearning", self, 0, "peak_lr", "steering", open_low=True)
        require_fields("unlearning", self, 0, "depth", high=1, open_low=True)


# The authors' settings for Zephyr-7B: 150 batches of 4 sequences at a constant rate.
RMU = Unlearning(150, 5e-5, 1200.0, MISDIRECTION, warmup_fraction=0.0, batch_size=4)
# TOFU's settings (Maini and others, 2024) for Llama 2 7B, but for the number of steps [ours].
GRADDIFF = Unlearning(50, 1e-5, 1.0, "gradient_difference", batch_size=32)


TEACHERS = ("maxent", "rmu")


@dataclass(frozen=True)
class Undo:
    """Options of UNDO, which distils an unlearned model into a noised copy of itself."""

    teacher: str = TEACHERS[0]
    # alpha: the share of every weight that noise replaces.
    noise: float = 0.6
    # beta: the noise's scale.
    noise_scale: float = 0.1
    # The distillation's compute, with the teacher's passes, as a share of the baseline's.
    compute: float = 0.8
    lr_factor: float = 1.0

    def __post_init__(self) -> None:
        require_choice("undo.teacher", self.teacher, TEACHERS)
        require_fields("undo", self, 0, "noise", high=1)
        require_fields("undo", self, 0, "noise_scale")
        require_fields("undo", self, 0, "compute", high=1, open_low=True)
        require_fields("undo", self, 0, "lr_factor", open_low=True)


@dataclass(frozen=True)
class Demix:
    """Options of DEMix, which has one expert for each domain in place of the core MLP."""

    # 0: the dense width.
    expert_width: int = 0
    # natural, or balanced: every domain equally often.
    sampling: str = "natural"
    # by_domain: evaluate each domain with its expert; single_expert: all with one.
    views: str = "by_domain"

    def __post_init__(self) -> None:
        require_int("demix.expert_width", self.expert_width, 0)
        require_choice("demix.sampling", self.sampling, ("natural", "balanced"))
        require_choice("demix.views", self.views, ("by_domain", "single_expert"))


@dataclass(frozen=True)
class Sgtm:
    """Options of SGTM, which reserves hidden units (and optionally heads) for auxiliary text."""

    # Each part's share of the hidden units: the authors' 64 of 2,048.
    share: float = 1 / 32
    # Share of core batches without reserved units: the authors' .25 on stories, .1 on Wikipedia.
    retain_share: float = 0.25
    # Whether auxiliary batches do not train embedding and norms: only on Wikipedia.
    mask_embeddings: bool = False
    # One part for all domains (the authors), not one for each domain [ours].
    joint: bool = False
    # Each part's query heads next to the core's [ours]; the authors reserve 1 of 32 heads.
    heads: int = 0

    def __post_init__(self) -> None:
        require_fields("sgtm", self, 0, "share", "retain_share", high=1, open_low=True)
        require_fields("sgtm", self, 0, "heads")


# The text to finetune on: the removed domain's, or the next domain's by name.
OWN, NEIGHBOUR = "own", "neighbour"


@dataclass(frozen=True)
class Elicitation:
    """Options of a stage that finetunes a view's dense model on a fixed sample of text.

    By default, the text is a removed domain's, and the stage is an attack.
    """

    # The first sequences of a domain's training permutation; with `domain_share` the minimum.
    num_sequences: int
    num_steps: int
    # Stops after this many evaluations without improvement; 0: train all steps.
    patience: int = 5
    batch_size: int = 32
    lr_factor: float = 0.25
    # The rate is constant after the warm-up [ours].
    warmup_fraction: float = 0.05
    compared_only: bool = False
    beta2: float = OptimizerConfig.beta2
    # 0: no clipping.
    clip_norm: float = OptimizerConfig.clip_norm
    # The share of the baseline's sequences of the domain; 0: `num_sequences` at every size.
    domain_share: float = 0.0
    # Trains only LoRAs of this rank on every layer's MLP; 0: all parameters.
    rank: int = 0
    # The domain whose text it trains on: OWN, NEIGHBOUR or a name, such as core.
    text: str = OWN
    # Counts only the loss of tokens after this text in each document; "": every token.
    responses_after: str = ""

    def __post_init__(self) -> None:
        require_fields("elicitation", self, 1, "num_sequences", "num_steps", "batch_size")
        require_fields("elicitation", self, 0, "patience", "clip_norm", "rank")
        require_fields("elicitation", self, 0, "domain_share", "beta2", high=1)
        require_fields("elicitation", self, 0, "lr_factor", open_low=True)
        require_name("elicitation.text", self.text)

    def on_domain(self, num_sequences: int) -> "Elicitation":
        """Returns these options for a domain of `num_sequences` sequences.

        The sample has the share `domain_share` of them, but at least `self.num_sequences`. A batch
        is at most as large as the sample.
        """
        sample = max(self.num_sequences, round(self.domain_share * num_sequences))
        return replace(self, num_sequences=sample, batch_size=min(self.batch_size, sample))


@dataclass(frozen=True)
class Options:
    """Options of individual methods."""

    # The paper's dual-use values.
    branch_full: Branching = Branching(core_ratio=4.0, lr_factor=0.2)
    branch_module: Branching = Branching()
    maxent: Unlearning = Unlearning()
    rmu: Unlearning = RMU
    graddiff: Unlearning = GRADDIFF
    undo: Undo = Undo()
    demix: Demix = Demix()
    sgtm: Sgtm = Sgtm()
    elicitation: Elicitation | None = None
    # The stage on every compared view, before it is evaluated and attacked.
    finetuning: Elicitation | None = None
    # Partial labels: the unlabelled share of every domain's sequences.
    unlabelled_share: float = 0.0
    # Label noise: the share of every domain's text that carries its label, not core's.
    recall: float = 1.0
    # Label noise: the share of the text with a domain's label that is the domain's, not adjacent.
    precision: float = 1.0
    maxent_profiles: tuple[tuple[Profile, Unlearning], ...] = ()
    # GRAM: core's and a module's share of the dense MLP's width; None: the size's widths.
    routed_widths: tuple[float, float] | None = None
    # GRAM with partial labels: one probe for each point of the baseline's curve.
    probes: bool = False
    # t: the weight of every active module in evaluated views (titration).
    module_weight: float = 1.0

    def __post_init__(self) -> None:
        require_real("module_weight", self.module_weight, 0.0, 1.0)
        for width in self.routed_widths or ():
            require_real("routed_widths", width, 0.0, 1.0, open_low=True)
        require_fields("", self, 0, "recall", "precision", high=1, open_low=True)
        noiseless = self.recall * self.precision == 1.0
        require_real("unlabelled_share", self.unlabelled_share, 0.0, 0.99 * noiseless)
        pairs = ((tuple(sorted(profile)), options) for profile, options in self.maxent_profiles)
        ordered = tuple(sorted(pairs, key=lambda pair: pair[0]))
        object.__setattr__(self, "maxent_profiles", ordered)
        profiles = [profile for profile, _ in ordered]
        for profile in profiles:
            if profiles.count(profile) > 1 or len(set(profile)) < len(profile):
                allowed = "each profile once, with each domain once"
                raise invalid("maxent_profiles", profile, allowed)

    def maxent_of(self, profile: Profile) -> Unlearning:
        return dict(self.maxent_profiles).get(tuple(sorted(profile)), self.maxent)


@dataclass(frozen=True)
class Conventions:
    """Choices in which the paper's text (the default) differs from its published settings."""

    # Auxiliary batches train the core with probability p_as / p_af, not p_as.
    spread_over_factor: bool = False
    # Companions are drawn in proportion to p_af x their domain's sequences.
    companions_by_size: bool = False
    # An unlabelled micro-batch is of one domain, not of all.
    unlabelled_by_domain: bool = False
    # Equal compute counts p_af, companions and unlabelled batches.
    lambda_counts_plan: bool = False
    # A sweep of p_ca divides a fixed length between core and a branch's domain.
    constant_branches: bool = False
    # Widths given as shares of the dense MLP's are multiples of it.
    width_multiple: int = 1
    document_end: int = -1
    weight_decay: float = OptimizerConfig.weight_decay
    decay_vectors: bool = False

    def __post_init__(self) -> None:
        require_int("conventions.width_multiple", self.width_multiple, 1)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Training and evaluation options that do not depend on method, size, seed or data."""

    # Methods without routing use only its accumulation.
    routing: RoutingConfig
    warmup_fraction: float
    decay_fraction: float
    # Points on the baseline's learning curve.
    num_eval_points: int
    num_eval_sequences: int
    # p_af of routed methods.
    aux_factor: float = 1.0
    aux_factor_of: Factors = ()
    equal_compute: bool = True
    options: Options = field(default_factory=Options)
    conventions: Conventions = Conventions()
    # Evaluates `subsets` too if a method's profiles cost no training.
    every_subset: bool = False

    def with_options(self, **changes: Any) -> Self:
        return replace(self, options=replace(self.options, **changes))


@dataclass(frozen=True, kw_only=True)
class Setting(Setup):
    """A `Setup` for one size, seed, corpus and variant, from which a method plans its runs."""

    size: Size
    seed: int
    data_id: str
    # Sequences in one epoch of every domain, with core.
    num_sequences: Mapping[str, int]
    # The profiles that are compared. Methods that retrain train each of them.
    profiles: tuple[Profile, ...]
    # A tag of every node; "": the study varies only method and size.
    variant: str = ""
    baseline_accumulation: str = "heterogeneous"
    # The number of distinct sequences of each domain that repeats.
    available: Mapping[str, int] = field(default_factory=dict)
    # (domain, label, slice) of text that is packed separately but part of `num_sequences`.
    parts: tuple[tuple[str, str, Slice], ...] = ()
    # The pools from which text gets a domain's label by mistake; (): core.
    adjacent: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_factors("setting", self.aux_factor, self.aux_factor_of)

    def factor(self, domain: str) -> float:
        """Returns p_af, which multiplies a domain's draws."""
        return dict(self.aux_factor_of).get(domain, self.aux_factor)

    def profile_name(self, profile: Profile) -> str:
        return profile_name(profile, self.auxiliary)

    def pool(self, domain: str, num_draws: int) -> int:
        """Returns the number of distinct sequences in `num_draws` draws of a domain."""
        return min(num_draws, self.available.get(domain, num_draws))

    def modules_on(self, profile: Profile) -> dict[str, float]:
        """Returns {domain: `module_weight`} for the modules that are on in a profile's views."""
        return dict.fromkeys(profile, self.options.module_weight)

    @property
    def auxiliary(self) -> tuple[str, ...]:
        return tuple(d for d in self.domains if d != CORE)

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self.num_sequences)

    @property
    def subsets(self) -> tuple[Profile, ...]:
        """If `every_subset`, the subsets of domains that some profile retains. Otherwise ()."""
        if not self.every_subset:
            return ()
        retained = {domain for profile in self.profiles for domain in profile}
        return subsets_of(tuple(d for d in self.auxiliary if d in retained))

    def route_unit(self, accumulation: str) -> int:
        """Returns the number of consecutive sequences that share a route."""
        return self.size.batch_size if accumulation == "uniform" else self.size.micro_batch


@dataclass(frozen=True)
class MethodRuns:
    """A method's runs by label, and its views by profile, in one setting."""

    runs: dict[str, RunConfig]
    views: dict[Profile, View] = field(default_factory=dict)
