"""Nodes of a study: runs and evaluations with the names a study gives them, and what each one waits for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gram_platform.config import AnyEvaluation, Evaluation, RunConfig, View
from gram_platform.methods import plan
from gram_platform.methods.elicitation import attacks
from gram_platform.methods.setting import Profile, Setting, profile_name


@dataclass(frozen=True)
class Node:
    """One run or evaluation. `tags` are names for people and tables; they never enter the id."""

    config: RunConfig | AnyEvaluation
    tags: tuple[tuple[str, str], ...]

    @property
    def kind(self) -> str:
        return "run" if isinstance(self.config, RunConfig) else "evaluation"

    @property
    def id(self) -> str:
        return self.config.run_id if isinstance(self.config, RunConfig) else self.config.eval_id

    @property
    def needs(self) -> frozenset[str]:
        """The run ids that must be complete before."""
        view = self.config.start if isinstance(self.config, RunConfig) else self.config.view
        return view_runs(view)

    @property
    def name(self) -> str:
        tags = dict(self.tags)
        name = " ".join(tags[key] for key in ("method", "size", "profile", "variant") if key in tags)
        return f"{name} s{tags['seed']}" + (f" attacked for {tags['elicited']}" if "elicited" in tags else "")

    def tagged(self, **tags: str) -> "Node":
        """The same node with more names."""
        return replace(self, tags=tuple(sorted((dict(self.tags) | tags).items())))


def view_runs(view: View | None) -> frozenset[str]:
    """The runs whose weights a view takes."""
    return frozenset() if view is None else view.run_ids


def method_nodes(method: str, setting: Setting) -> list[Node]:
    """The runs of a method in a setting, the evaluation of each of its views, and the attacks on them."""
    plans = plan(method, setting)
    common = {"method": method, "size": setting.size.name, "seed": str(setting.seed)}
    nodes = [_node(run, common | {"profile": label, "kind": "run"}) for label, run in plans.runs.items()]
    for profile, view in plans.views.items():
        nodes.append(_evaluation(setting, common, profile, view))
        for domain, run in attacks(setting, profile, view, plans.runs.values()).items():
            nodes.append(_node(run, {**common, **_names(setting, profile), "kind": "run", "elicited": domain}))
    return nodes


def _names(setting: Setting, profile: Profile) -> dict[str, str]:
    return {"profile": profile_name(profile, setting.auxiliary), "retained": ",".join(profile)}


def _evaluation(setting: Setting, common: Mapping[str, str], profile: Profile, view: View) -> Node:
    domains = tuple(setting.num_sequences)
    config = Evaluation(view, setting.data_id, domains, setting.num_eval_sequences, precision=setting.size.precision)
    return _node(config, {**common, **_names(setting, profile), "kind": "evaluation"})


def _node(config: RunConfig | AnyEvaluation, tags: Mapping[str, str]) -> Node:
    return Node(config, tuple(sorted(tags.items())))


def unique(nodes: Iterable[Node]) -> list[Node]:
    """Each id once, where it is first asked for: studies and methods that ask for the same node share it."""
    first: dict[str, Node] = {}
    for node in nodes:
        first.setdefault(node.id, node)
    return list(first.values())


def require_closed(nodes: Sequence[Node]) -> None:
    """Asserts that everything a node needs is among the nodes."""
    ids = {node.id for node in nodes}
    dangling = {node.name: sorted(node.needs - ids) for node in nodes if node.needs - ids}
    assert not dangling, dangling
