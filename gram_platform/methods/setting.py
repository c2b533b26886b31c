"""What a method is given, and what it returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, count
from math import comb

from gram_platform.config import CORE, OptimizerConfig, RoutingConfig, RunConfig, View
from gram_platform.identity import invalid, require_choice, require_int, require_real
from gram_platform.ladder import Size
from gram_platform.routing import hash_key

Factors = tuple[tuple[str, float], ...]  # (domain, p_af)
Profile = tuple[str, ...]  # the auxiliary domains that are retained, sorted; () is core alone
MOST_SUBSETS = 10  # of each number of domains: all of them up to five domains


def profile_name(retained: Profile, auxiliary: tuple[str, ...]) -> str:
    """`core`, `core+virology`, or `all`."""
    if retained and set(retained) == set(auxiliary):
        return "all"
    return "+".join((CORE, *retained))


def subsets_of(domains: Profile) -> tuple[Profile, ...]:
    """Every subset, fewest domains first; of a number that has more than MOST_SUBSETS so many of them, drawn at random
    but always the same.
    """
    found: list[Profile] = []
    for number in range(len(domains) + 1):
        is_few = comb(len(domains), number) <= MOST_SUBSETS
        chosen, draws = set(combinations(domains, number)) if is_few else set(), count()
        while not is_few and len(chosen) < MOST_SUBSETS:
            chosen.add(_drawn(domains, number, next(draws)))
        found += sorted(chosen)
    return tuple(found)


def _drawn(domains: Profile, number: int, draw: int) -> Profile:
    """So many of the domains, in their order: the first ones of the draw's own order."""
    by_draw = sorted(domains, key=lambda domain: hash_key("subset", number, draw, domain))
    return tuple(domain for domain in domains if domain in by_draw[:number])


def require_factors(field: str, factor: float, factor_of: Factors) -> None:
    """ValueError for a p_af that is not a positive number."""
    require_real(f"{field}.aux_factor", factor, 0.0, open_low=True)
    for domain, own in factor_of:
        require_real(f"{field}.aux_factor_of[{domain}]", own, 0.0, open_low=True)


@dataclass(frozen=True)
class Branching:
    """FT methods: how a branch is trained on top of its base."""

    core_ratio: float = 1.0  # p_ca: core batches (rehearsal) for each auxiliary batch
    lr_factor: float = 1.0  # p_lr: of the size's peak learning rate
    aux_factor: float = 1.0  # p_af: how often the auxiliary domain is drawn
    aux_factor_of: Factors = ()  # of single domains, in place of `aux_factor`

    def __post_init__(self) -> None:
        require_real("branching.core_ratio", self.core_ratio, 0.0)
        require_real("branching.lr_factor", self.lr_factor, 0.0, open_low=True)
        require_factors("branching", self.aux_factor, self.aux_factor_of)

    def factor(self, domain: str) -> float:
        """p_af of a domain."""
        return dict(self.aux_factor_of).get(domain, self.aux_factor)


@dataclass(frozen=True)
class MaxEnt:
    """Unlearning from the baseline: ME(forget) + retain_weight x CE(retain)."""

    num_steps: int = 2000
    peak_lr: float = 1e-4
    retain_weight: float = 200.0
    kind: str = "maxent_kl"
    warmup_fraction: float = 0.02  # then constant [ours]
    batch_size: int = 0  # forgotten sequences of a step, and as many retained ones; 0: the size's batch of each [ours]
    core_share: float = 0.0  # of the retained sequences where a domain is retained too; 0: as in the mixture [ours]
    stop_below: float = 0.0  # ends after a step whose ME is at most this; 0: never
    clip_norm: float = OptimizerConfig.clip_norm  # 0: no clipping

    def __post_init__(self) -> None:
        require_int("maxent.num_steps", self.num_steps, 1)
        require_real("maxent.peak_lr", self.peak_lr, 0.0, open_low=True)
        require_real("maxent.retain_weight", self.retain_weight, 0.0)
        require_choice("maxent.kind", self.kind, ("maxent_kl", "maxent_entropy"))
        require_int("maxent.batch_size", self.batch_size, 0)
        require_real("maxent.core_share", self.core_share, 0.0, 1.0)
        require_real("maxent.stop_below", self.stop_below, 0.0)
        require_real("maxent.clip_norm", self.clip_norm, 0.0)


@dataclass(frozen=True)
class Demix:
    """DEMix: an expert a domain in place of the core MLP."""

    expert_width: int = 0  # 0: the dense width
    sampling: str = "natural"  # or balanced: every domain drawn equally often
    views: str = "by_domain"  # each domain by its own granted expert; or single_expert: one expert for every domain

    def __post_init__(self) -> None:
        require_int("demix.expert_width", self.expert_width, 0)
        require_choice("demix.sampling", self.sampling, ("natural", "balanced"))
        require_choice("demix.views", self.views, ("by_domain", "single_expert"))


@dataclass(frozen=True)
class Elicitation:
    """The attack: all parameters of a view's dense model finetuned on a fixed sample of a forgotten domain."""

    num_sequences: int  # of the domain's training split: the first of its permutation; with `domain_share` at least
    num_steps: int  # at most
    patience: int = 5  # evaluations without improvement; 0: all steps
    batch_size: int = 32
    lr_factor: float = 0.25  # of the size's peak learning rate
    warmup_fraction: float = 0.05  # then constant [ours]
    compared_only: bool = False  # attack the compared profiles alone, not every one that a method has
    beta2: float = OptimizerConfig.beta2
    clip_norm: float = OptimizerConfig.clip_norm  # 0: no clipping
    domain_share: float = 0.0  # of the sequences that the baseline trains on; 0: `num_sequences` at every size

    def __post_init__(self) -> None:
        require_real("elicitation.domain_share", self.domain_share, 0.0, 1.0)
        require_int("elicitation.num_sequences", self.num_sequences, 1)
        require_int("elicitation.num_steps", self.num_steps, 1)
        require_int("elicitation.patience", self.patience, 0)
        require_int("elicitation.batch_size", self.batch_size, 1)
        require_real("elicitation.lr_factor", self.lr_factor, 0.0, open_low=True)
        require_real("elicitation.beta2", self.beta2, 0.0, 1.0)
        require_real("elicitation.clip_norm", self.clip_norm, 0.0)

    def on_domain(self, num_sequences: int) -> "Elicitation":
        """The attack on a domain whose training set has so many sequences."""
        sample = max(self.num_sequences, round(self.domain_share * num_sequences))
        return replace(self, num_sequences=sample, batch_size=min(self.batch_size, sample))

    @property
    def is_full_batch(self) -> bool:
        """Whether every step sees the whole sample."""
        return self.batch_size >= self.num_sequences


@dataclass(frozen=True)
class Options:
    """What single methods need to know."""

    branch_full: Branching = Branching(core_ratio=4.0, lr_factor=0.2)  # the paper's dual-use values
    branch_module: Branching = Branching()
    maxent: MaxEnt = MaxEnt()
    demix: Demix = Demix()
    elicitation: Elicitation | None = None
    unlabelled_share: float = 0.0  # partial labels: of every domain's sequences
    maxent_profiles: tuple[tuple[Profile, MaxEnt], ...] = ()  # of single profiles, in place of `maxent`
    # of GRAM: the widths of the core MLP and of a module as shares of the dense MLP's; None: the size's own
    routed_widths: tuple[float, float] | None = None
    probes: bool = False  # of GRAM with partial labels: measured at as many steps as the baseline's curve has points
    module_weight: float = 1.0  # t: of every module that is switched on, in evaluated views (titration)

    def __post_init__(self) -> None:
        require_real("module_weight", self.module_weight, 0.0, 1.0)
        for width in self.routed_widths or ():
            require_real("routed_widths", width, 0.0, 1.0, open_low=True)
        require_real("unlabelled_share", self.unlabelled_share, 0.0, 0.99)
        pairs = sorted(((tuple(sorted(p)), own) for p, own in self.maxent_profiles), key=lambda pair: pair[0])
        object.__setattr__(self, "maxent_profiles", tuple(pairs))
        profiles = [profile for profile, _ in pairs]
        doubled = [p for p in profiles if profiles.count(p) > 1 or len(set(p)) < len(p)]
        if doubled:
            raise invalid("maxent_profiles", doubled[0], "each profile once, and each domain once in a profile")

    def maxent_of(self, profile: Profile) -> MaxEnt:
        """MaxEnt's parameters for a profile: its own, else those of all."""
        return dict(self.maxent_profiles).get(tuple(sorted(profile)), self.maxent)


@dataclass(frozen=True)
class Conventions:
    """Choices on which the paper's text and its published settings differ; the defaults are the text's, or ours."""

    spread_over_factor: bool = False  # a domain's batches train the core with p_as / p_af, not p_as
    companions_by_size: bool = False  # modules are companions in proportion to p_af x the domain's sequences
    unlabelled_by_domain: bool = False  # unlabelled micro-batches are of one domain each, not of all
    lambda_counts_plan: bool = False  # equal compute counts p_af, companions and unlabelled batches
    constant_branches: bool = False  # a sweep of p_ca reallocates a fixed length between core and a branch's domain
    document_end: int = -1  # the token that attention does not cross; -1: it does
    weight_decay: float = OptimizerConfig.weight_decay
    decay_vectors: bool = False  # weight decay on biases and norms too


@dataclass(frozen=True)
class Setting:
    """One cell of a study: a size, a seed, the data, and the choices that its methods share."""

    size: Size
    seed: int
    data_id: str
    num_sequences: Mapping[str, int]  # of each domain, core included: the baseline's one epoch
    profiles: tuple[Profile, ...]  # what retraining methods train for, and every method is compared on
    routing: RoutingConfig  # of routed methods; its accumulation also the others'
    warmup_fraction: float
    decay_fraction: float
    num_eval_points: int  # on the baseline's learning curve
    num_eval_sequences: int  # of each domain's validation split
    aux_factor: float = 1.0  # p_af of routed methods
    aux_factor_of: Factors = ()  # of single domains, in place of `aux_factor`
    equal_compute: bool = True  # lambda of `app:equal-compute`
    baseline_accumulation: str = "heterogeneous"
    options: Options = field(default_factory=Options)
    conventions: Conventions = Conventions()
    available: Mapping[str, int] = field(default_factory=dict)  # sequences of domains that repeat rather than run out
    every_subset: bool = False  # evaluate `subsets` too, of methods in which a profile costs no training

    def __post_init__(self) -> None:
        require_factors("setting", self.aux_factor, self.aux_factor_of)

    def factor(self, domain: str) -> float:
        """p_af of a domain."""
        return dict(self.aux_factor_of).get(domain, self.aux_factor)

    def pool(self, domain: str, num_draws: int) -> int:
        """Distinct sequences behind so many draws."""
        return min(num_draws, self.available.get(domain, num_draws))

    def modules_on(self, profile: Profile) -> dict[str, float]:
        """The weights of a profile's modules in evaluated views."""
        return dict.fromkeys(profile, self.options.module_weight)

    @property
    def auxiliary(self) -> tuple[str, ...]:
        return tuple(d for d in self.num_sequences if d != CORE)

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self.num_sequences)

    @property
    def subsets(self) -> tuple[Profile, ...]:
        """Every subset of the domains that compared profiles retain (`subsets_of`), where it is asked for."""
        retained = {domain for profile in self.profiles for domain in profile}
        return subsets_of(tuple(d for d in self.auxiliary if d in retained)) if self.every_subset else ()

    def route_unit(self, accumulation: str) -> int:
        """Sequences that share one route."""
        return self.size.batch_size if accumulation == "uniform" else self.size.micro_batch


@dataclass(frozen=True)
class Plans:
    """The runs of a method in a setting, and its views by what they retain."""

    runs: dict[str, RunConfig]  # a label within the method -> run
    views: dict[Profile, View] = field(default_factory=dict)
