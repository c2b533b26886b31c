"""Defines a study's nodes: runs and evaluations, their tags, and the runs that each node needs."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from itertools import chain

from gram_platform.config import (
    AnyEvaluation,
    Evaluation,
    ModelConfig,
    RunConfig,
    View,
    is_unlabelled,
)
from gram_platform.config.flops import compute_units, mlp_parameters, module_parameters
from gram_platform.methods import plan
from gram_platform.methods.budgets import add_teacher, plan_compute_units
from gram_platform.methods.elicitation import add_finetuning, plan_attacks
from gram_platform.methods.setting import MethodRuns, Profile, Setting

# The method that sets the unit of compute ratios, and the tag of a study's variant.
BASELINE, VARIANT = "baseline", "variant"
STUDY_TAGS = frozenset(("method", "size", "profile", "retained", "seed", "kind", "measure"))
STUDY_TAGS |= {VARIANT, "elicited"}


@dataclass(frozen=True)
class Node:
    """One run or evaluation. `tags` are for people and tables, and do not affect the id."""

    config: RunConfig | AnyEvaluation
    tags: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, config: RunConfig | AnyEvaluation, tags: Mapping[str, str]) -> "Node":
        return cls(config, tuple(sorted(tags.items())))

    @property
    def is_run(self) -> bool:
        return isinstance(self.config, RunConfig)

    @property
    def kind(self) -> str:
        return "run" if self.is_run else "evaluation"

    @property
    def id(self) -> str:
        return self.config.run_id if isinstance(self.config, RunConfig) else self.config.eval_id

    @property
    def data_id(self) -> str:
        config = self.config
        return config.data.data_id if isinstance(config, RunConfig) else config.data_id

    @property
    def view(self) -> View:
        assert not isinstance(self.config, RunConfig), self.name
        return self.config.view

    @property
    def needs(self) -> frozenset[str]:
        """The ids of the runs that must be complete before this node starts."""
        return view_runs(self.config.start if isinstance(self.config, RunConfig) else self.view)

    @property
    def is_attack(self) -> bool:
        """True if this run finetunes a view to regain a domain that the view forgets."""
        return self.is_run and "elicited" in self.names

    @property
    def names(self) -> dict[str, str]:
        return dict(self.tags)

    @property
    def method(self) -> str:
        return self.names["method"]

    @property
    def size(self) -> str:
        return self.names["size"]

    @property
    def name(self) -> str:
        return node_name(self.kind, self.id, self.names)

    def with_tags(self, **tags: str) -> "Node":
        return Node.of(self.config, self.names | tags)


def node_name(kind: str, node_id: str, tags: Mapping[str, str]) -> str:
    """Returns a readable name of a node.

    Examples are `gram tiny all s0`, `gram tiny core+lisp s0, heterogeneous, attacked for virology`
    and `gram tiny core s0, evaluated`. A study's variant follows the seed. A trial's parameters
    come first, as in `batch 16, lr 0.004, tiny baseline s0`, because MLflow's pages truncate names.
    The name of an evaluation ends in its measure, or in `evaluated` for losses.
    """
    name = [f"{key} {value}" for key, value in sorted(tags.items()) if key not in STUDY_TAGS]
    keys = ("size", "method", "profile") if name else ("method", "size", "profile")
    parts = [tags[key] for key in keys if tags.get(key)]
    if name and parts[-1:] == ["all"]:
        parts.pop()
    parts += [f"s{tags['seed']}"] if "seed" in tags else []
    name += [" ".join(parts) or node_id, *([tags[VARIANT]] if tags.get(VARIANT) else [])]
    if tags.get("elicited"):
        name.append(f"attacked for {tags['elicited']}")
    elif kind == "evaluation":
        name.append(tags.get("measure", "evaluated"))
    return ", ".join(name)


def tags_to_add(stored: Mapping[str, str], tags: Mapping[str, str]) -> dict[str, str]:
    """Returns the tags that a study or a search adds to a node's stored tags.

    A search adds its parameters only to new nodes, because nodes are named after their tags.
    """
    return {k: v for k, v in tags.items() if k in STUDY_TAGS or k in stored or not stored}


def view_runs(view: View | None) -> frozenset[str]:
    return frozenset() if view is None else view.run_ids


def method_nodes(method: str, setting: Setting) -> list[Node]:
    """Returns a method's runs in a setting, and for each view an evaluation and attacks.

    With a finetuning stage, adds the stage's runs, and the finetuned views replace the method's.
    """
    plans, stage = plan(method, setting), setting.options.finetuning
    plans = add_finetuning(setting, stage, plans) if stage else plans
    common = {"method": method, "size": setting.size.name, "seed": str(setting.seed)}
    common |= {VARIANT: setting.variant} if setting.variant else {}
    nodes = [
        Node.of(run, common | {"profile": label, "kind": "run"})
        for label, run in plans.runs.items()
    ]
    for profile, view in plans.views.items():
        names = common | {"profile": setting.profile_name(profile)}
        names |= {"retained": ",".join(profile)}
        evaluation = Evaluation(
            view,
            setting.data_id,
            setting.domains,
            setting.num_eval_sequences,
            precision=setting.size.precision,
        )
        nodes.append(Node.of(evaluation, names | {"kind": "evaluation"}))
        for domain, run in plan_attacks(setting, profile, view, plans.runs.values()).items():
            nodes.append(Node.of(run, names | {"kind": "run", "elicited": domain}))
    return nodes


def unique(nodes: Iterable[Node]) -> list[Node]:
    """Keeps the first node of each id, because studies and methods can share nodes."""
    first: dict[str, Node] = {}
    for node in nodes:
        first.setdefault(node.id, node)
    return list(first.values())


def require_closed(nodes: Sequence[Node]) -> None:
    """Asserts that the nodes include every run that any of them needs."""
    ids = {node.id for node in nodes}
    dangling = {node.name: sorted(node.needs - ids) for node in nodes if node.needs - ids}
    assert not dangling, dangling


def longest_paths(
    needs_of: Mapping[str, Collection[str]], lengths: Mapping[str, float]
) -> dict[str, float]:
    """Returns {node id: length of the longest chain that starts with the node}.

    In a chain, each node needs the one before. Of the ready nodes, the one with the longest chain
    should start first. `needs_of` maps each incomplete node to the ids that it needs. `lengths`
    maps each node to its own length.
    """
    after = dict.fromkeys(needs_of, 0.0)
    left = {node_id: after.keys() & set(needed) for node_id, needed in needs_of.items()}
    for node_id in reversed(tuple(TopologicalSorter(left).static_order())):
        after[node_id] += lengths[node_id]
        for needed in left[node_id]:
            after[needed] = max(after[needed], after[node_id])
    return after


def method_costs(
    setting: Setting, methods: Sequence[str], compared: Sequence[str] = ()
) -> list[dict]:
    """Returns one row for each method. Costs and parameters are multiples of the baseline's.

    Counts only profiles that switch a domain off:

    - `of_profiles`: how many have a view in any method of `methods` or `compared`.
    - `profiles`: how many of these have a view in the method's planned runs.
    - `train_shown`: `train_all` of the runs for the example profile `shown` alone.

    The other columns describe runs for all `of_profiles`, even if the study trains for fewer:

    - `served`: how many profiles have a view in these runs.
    - `runs`: (number of runs from random weights, number from trained weights).
    - `train_all`: their compute_units as the paper counts them (`_paper_units`).
    - `plan_all`: their compute_units with every companion of a batch (other active modules).
    - `active_mlp`: (fewest, most) MLP parameters of a forward pass with at most one module.
    - `total_mlp_all`: all MLP parameters.
    """
    planned = {method: plan(method, setting) for method in dict.fromkeys((*methods, *compared))}
    served = {method: _list_served(plans, setting) for method, plans in planned.items()}
    profiles = tuple(dict.fromkeys(chain.from_iterable(served.values())))
    example = next((profile for profile in setting.profiles if profile), setting.profiles[0])
    alone = replace(setting, profiles=(example,), every_subset=False)
    base = next(iter(plan(BASELINE, setting).runs.values()))
    rows = []
    for method in methods:
        plans = planned[method]
        if set(profiles) - set(served[method]):
            plans = plan(method, replace(setting, profiles=profiles))
        row = {
            "method": method,
            "profiles": len(served[method]),
            "of_profiles": len(profiles),
            "shown": setting.profile_name(example),
            "train_shown": _train_cost(plan(method, alone), base),
            "served": len(_list_served(plans, setting)),
        }
        rows.append(row | _cost(plans, base))
    return rows


def _list_served(plans: MethodRuns, setting: Setting) -> list[Profile]:
    return [profile for profile in plans.views if set(profile) != set(setting.auxiliary)]


def _distinct(plans: MethodRuns) -> list[RunConfig]:
    return list({run.run_id: run for run in plans.runs.values()}.values())


def _train_cost(plans: MethodRuns, base: RunConfig) -> float:
    return sum(map(_paper_units, _distinct(plans))) / plan_compute_units(base)


def _cost(plans: MethodRuns, base: RunConfig) -> dict:
    runs, unit = _distinct(plans), _core_mlps(base.model)
    served = {view.run_id for view in plans.views.values()}
    active, total = set(), 0
    for run in runs:
        core = _core_mlps(run.model) if run.model.d_mlp else 0
        modules = [module_parameters(run.model, d) for d in run.model.module_domains]
        total += sum(modules)
        active |= {core + part for part in modules}
        if core and run.run_id in served:
            total += core
            active.add(core)
    num_branches = sum(run.start is not None for run in runs)
    return {
        "runs": (len(runs) - num_branches, num_branches),
        "train_all": _train_cost(plans, base),
        "plan_all": sum(map(plan_compute_units, runs)) / plan_compute_units(base),
        "active_mlp": (min(active) / unit, max(active) / unit),
        "total_mlp_all": total / unit,
    }


def _core_mlps(model: ModelConfig) -> int:
    return model.num_layers * mlp_parameters(model.architecture, model.d_model, model.d_mlp)


def _paper_units(run) -> int:
    """Counts tokens x active parameters as the paper does.

    In an unlabelled batch, all modules are active. They are also active in every batch if the core
    is frozen or `companions` is "all". Otherwise only the module of the batch's domain is active.
    """
    modules, total = run.model.module_domains, 0
    for budget in run.data.domains:
        has_all = run.routing.freeze_core or is_unlabelled(budget.name)
        has_all |= run.routing.companions == "all"
        active = modules if has_all else (budget.name,) if budget.name in modules else ()
        total += compute_units(run.model, budget.num_draws * run.model.seq_len, active)
    return add_teacher(run, total)
