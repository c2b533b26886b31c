"""Studies that measure tokens and continuations: their nodes, and from stored arrays to tables and
pages."""

import dataclasses
import html

import numpy as np
import pytest

from gram_platform.analysis.localization import ShadedText, shading_scale
from gram_platform.config import CORE, Continuations, RoutingConfig, TokenLosses
from gram_platform.methods import METHODS, Setting
from gram_platform.methods.measurements import Samples, TokenIncreases
from gram_platform.methods.nodes import method_nodes, require_closed
from gram_platform.methods.setting import Elicitation, Options
from gram_platform.pages.report.localization import increases_frame, shade_html
from gram_platform.studies.dry_run import describe
from gram_platform.studies.library import samples
from gram_platform.studies.library.stories import STORIES_SMOKE_SIZES
from gram_platform.studies.packing import shortages
from tests.submitted import plan_of, study_plan

AUXILIARY = ("airport", "beach")
SETTING = Setting(
    size=STORIES_SMOKE_SIZES["tiny"],
    seed=0,
    data_id="d" * 12,
    num_sequences={CORE: 320, **dict.fromkeys(AUXILIARY, 32)},
    profiles=((), *((domain,) for domain in AUXILIARY)),
    routing=RoutingConfig(0.5, 0.3),
    warmup_fraction=0.1,
    decay_fraction=0.1,
    num_eval_points=4,
    num_eval_sequences=4,
    options=Options(elicitation=Elicitation(4, 6, batch_size=4)),
)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("measurement", [TokenIncreases(), Samples(8, 16)])
def test_the_runs_are_those_of_the_study_of_losses(method, measurement):
    nodes, others = measurement.nodes(method, SETTING), method_nodes(method, SETTING)
    require_closed(nodes)
    runs = [node for node in others if node.is_run and not node.is_attack]
    assert [node for node in nodes if node.kind == "run"] == runs
    tags = [node.names for node in nodes if node.kind == "evaluation"]
    assert tags
    assert {own["measure"] for own in tags} == {measurement.name}
    views = {(n.config.view, n.names["profile"]) for n in others if n.kind == "evaluation"}
    assert {(n.config.view, n.names["profile"]) for n in nodes if n.kind == "evaluation"} <= views


def test_what_is_asked_of_a_view():
    tokens = [
        node.config for node in TokenIncreases().nodes("gram", SETTING) if node.kind == "evaluation"
    ]
    assert {type(config) for config in tokens} == {TokenLosses}
    assert {(config.domains, config.num_sequences) for config in tokens} == {(AUXILIARY, 4)}
    assert len(tokens) == 4  # core, two single domains, all
    nodes = Samples(8, 16, documents=(3,)).nodes("gram", SETTING)
    asked = {n.names["profile"]: n.config for n in nodes if n.kind == "evaluation"}
    assert {profile: config.domains for profile, config in asked.items()} == {
        "core": AUXILIARY,
        "core+airport": ("airport",),
        "core+beach": ("beach",),
    }
    assert asked["core"] == Continuations(
        asked["core"].view,
        SETTING.data_id,
        AUXILIARY,
        (3,),
        8,
        16,
        precision=SETTING.size.precision,
    )
    baseline = [
        n.config for n in Samples(8, 16).nodes("baseline", SETTING) if n.kind == "evaluation"
    ]
    assert [config.domains for config in baseline] == [AUXILIARY]


def test_the_compared_views_continue_core_too():
    compared = dataclasses.replace(SETTING, profiles=((), ("beach",)))
    for method, expected in {
        "baseline": {"all": (CORE, "beach")},
        "gram": {"core": (CORE, "beach"), "core+beach": (CORE, "beach")},
        "filtering": {"core": (CORE, "beach"), "core+beach": (CORE, "beach")},
    }.items():
        nodes = Samples(8, 16, compared_only=True).nodes(method, compared)
        assert {
            n.names["profile"]: n.config.domains for n in nodes if n.kind == "evaluation"
        } == expected


def test_python_and_cpp_from_the_packages_on_this_disk(storage):
    """Every method is trained with C++ and without it, and asked to continue both; of both there is
    text enough."""
    plan = plan_of(samples.STUDY, ["--preset", "installed"])
    (graph,) = plan.studies
    evaluations = [node for node in graph.nodes if node.kind == "evaluation"]
    assert {node.config.domains for node in evaluations} == {(CORE, "cpp")}
    profiles = [node.names["profile"] for node in evaluations if node.method == "filtering"]
    assert sorted(profiles) == ["core", "core+cpp"]
    short = {shortage.domain for shortage in shortages(graph.nodes, graph.preset, graph.recipes)}
    assert not short & {CORE, "cpp"}
    other = study_plan(samples.STUDY, ["--preset", "installed", "--retain", "stubs"])
    assert {node.config.domains for node in other.nodes if node.kind == "evaluation"} == {
        (CORE, "stubs")
    }
    assert graph.data_id == other.data_id
    describe(plan)
    # Nothing is packed.
    assert sorted(path.name for path in (storage / "data").iterdir()) == ["installed", "scans"]


def test_shaded_text_is_escaped():
    hostile = '<script>alert("x")</script>'
    increases = np.array([0.0, 0.5, -1.0, 4.0])
    views = {hostile: increases, "kept": np.zeros(4)}
    text = ShadedText(
        "lisp", ("a", " b", hostile, "", "\n"), np.full(4, 2.0), shading_scale(increases), views
    )
    markup = shade_html(text)
    assert "<script" not in markup
    # Twice as a label, once as a token of each view.
    assert html.unescape(markup).count(hostile) == 4
    table = increases_frame(text)
    assert table["kept"].tolist() == [0.0] * 4
    assert table["token"].tolist() == [" b", hostile, "", "\\n"]
