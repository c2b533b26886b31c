"""The attacker's budget: every combination of sequences and steps, on runs that the scaling study
shares."""

import pytest

from gram_platform.studies.library import accumulation, attack_budget, scaling
from tests.refused import refused
from tests.submitted import parse, study_plan


def test_budgets_differ_in_attacks_alone(tmp_path):
    def graph_of(study, *flags):
        return study_plan(
            study, ["--preset", "smoke", "--seeds", "1", "--storage", str(tmp_path), *flags]
        )

    graph = graph_of(attack_budget.STUDY)
    names = [variant.name for variant in graph.preset.variants]
    assert names == ["4x6", "4x24", "16x6", "16x24"]
    attacks = [node for node in graph.nodes if node.is_attack]
    found = {
        (node.method, node.names["variant"], node.names["elicited"]): node.config
        for node in attacks
    }
    forgotten = ("attic", "bakery", "beach")
    assert set(found) == {
        (m, name, d) for m in ("gram", "filtering") for name in names for d in forgotten
    }
    for (_, name, domain), config in found.items():
        (data,) = config.data.domains
        assert (data.name, f"{data.num_sequences}x{config.num_steps}") == (domain, name)
    runs = {node.id for node in graph.nodes if node.is_run and not node.is_attack}
    of_scaling = graph_of(scaling.STUDY, "--sizes", "tiny", "--methods", "gram", "filtering")
    assert runs == {node.id for node in of_scaling.nodes if node.is_run and not node.is_attack}


def test_a_study_of_attacks_without_any_is_bad_input(tmp_path):
    flags = parse(
        attack_budget.STUDY, ["--set", "options.elicitation=false", "--storage", str(tmp_path)]
    )
    with refused("options.elicitation", False):
        study_plan(attack_budget.STUDY, flags)


def test_longer_attacks_are_other_runs_of_the_same_models(tmp_path):
    def ids(*flags):
        shared = ["--preset", "smoke", "--sizes", "tiny", "--storage", str(tmp_path), *flags]
        plan = study_plan(scaling.STUDY, shared)
        attacks = {node.id: node.config.num_steps for node in plan.nodes if node.is_attack}
        return attacks, {node.id for node in plan.nodes} - set(attacks), plan.changes

    default, models, changes = ids()
    longer, same, changed = ids("--attack-steps", "12")
    assert (set(default.values()), set(longer.values())) == ({6}, {12})
    assert models == same
    assert not set(default) & set(longer)
    assert (changes, changed) == ((), ("options.elicitation.num_steps=12",))
    # The preset's number is no change.
    assert ids("--attack-steps", "6")[:2] == (default, models)


@pytest.mark.parametrize(
    ("study", "steps", "field"),
    [
        (scaling.STUDY, "-1", "elicitation.num_steps"),
        (accumulation.STUDY, "12", "options.elicitation"),
        # Its variants have their own numbers.
        (attack_budget.STUDY, "12", "attack_steps"),
    ],
)
def test_attack_steps_that_no_attack_can_have_are_bad_input(study, steps, field, tmp_path):
    flags = ["--preset", "smoke", "--attack-steps", steps, "--storage", str(tmp_path)]
    with refused(field):
        study_plan(study, parse(study, flags))
