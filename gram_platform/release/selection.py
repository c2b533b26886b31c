"""Converts the modules that a user selects into a view."""

from collections.abc import Mapping
from dataclasses import dataclass

from gram_platform.config import CORE, View, run_from_plain
from gram_platform.config.identity import invalid, one_of
from gram_platform.config.plain import from_plain
from gram_platform.store import Store


def parse_modules(text: str) -> dict[str, float]:
    """Parses text such as `virology,lisp=0.5` into {domain: weight}."""
    modules = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        domain, given, weight = part.partition("=")
        if domain in modules:
            raise invalid("modules", text, f"every module once, found {domain} twice")
        try:
            modules[domain] = float(weight) if given else 1.0
        except ValueError:
            raise invalid(
                "modules", part, "a name, or name=weight with a number from 0 to 1"
            ) from None
    return modules


def parse_sources(text: str) -> dict[str, str]:
    """Parses text such as `virology=RUN_ID,lisp=RUN_ID` into {domain: run id}."""
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    if wrong := [domain for domain, _, run_id in pairs if not domain or not run_id]:
        raise invalid("sources", wrong[0], "domain=RUN_ID, the run that trained the module")
    return {domain: run_id for domain, _, run_id in pairs}


@dataclass(frozen=True)
class AvailableModules:
    """The modules of a run and of its branches, which started from it with a frozen core."""

    run_id: str
    trained_here: tuple[str, ...]
    # The ids of branches, by module.
    branches: Mapping[str, tuple[str, ...]]
    # A run without a core has an MLP for each domain instead.
    has_core: bool

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.trained_here, *self.branches)))

    def source(self, domain: str) -> str:
        """Returns the id of the only run that trained the module, or raises ValueError."""
        if domain in self.trained_here:
            return self.run_id
        runs = self.branches.get(domain, ())
        if not self.modules:
            raise invalid("modules", domain, f"none: run {self.run_id} is dense")
        if not runs:
            raise invalid(
                "modules", domain, one_of(domain, self.modules, f"run {self.run_id}'s modules: ")
            )
        if len(runs) > 1:
            raise invalid(
                "sources",
                "",
                f"{domain}=RUN_ID, because several runs trained it: {', '.join(runs)}",
            )
        return runs[0]

    def view(self, modules: Mapping[str, float], sources: Mapping[str, str]) -> View:
        """Returns the view with these modules and weights.

        `sources` maps a module to the id of the run that trained it (default: `source(module)`).
        """
        if stray := sorted(set(sources) - set(modules)):
            raise invalid("sources", stray, "only modules that `modules` names")
        origins = ((domain, sources.get(domain) or self.source(domain)) for domain in modules)
        elsewhere = tuple((d, run) for d, run in origins if run != self.run_id and modules[d])
        if self.has_core:
            return View.of(self.run_id, modules, sources=elsewhere)
        return View.of(self.run_id, {CORE: 1.0, **modules}, rule="by_domain")


def available_modules(store: Store, run_id: str) -> AvailableModules:
    """Finds the modules that a view of the run can switch on."""
    model = store.origin(run_id).model_config()
    branches: dict[str, tuple[str, ...]] = {}
    for other in store.list_runs() if not model.modules else ():
        plain = store.run(other).config()
        if plain["start"] is None or from_plain(View, plain["start"]) != View(run_id):
            continue
        run = run_from_plain(plain)
        for domain in run.model.module_domains if run.routing.freeze_core else ():
            branches[domain] = (*branches.get(domain, ()), other)
    return AvailableModules(run_id, model.module_domains, branches, has_core=bool(model.d_mlp))


def dense_parts(view: View) -> dict[str, View]:
    """Returns {subfolder: view to export as a dense checkpoint}.

    A view whose rule is `constant` becomes one checkpoint, with the subfolder "". A view whose rule
    is `by_domain` becomes one checkpoint for core and one for each active expert.
    """
    if view.rule == "constant":
        return {"": view}
    domains = (CORE, *dict(view.weights))
    return {domain: View.of(view.run_id, view.active(domain)) for domain in domains}
