"""The demos: one set-up at several sizes, whose studies share their runs, on seeds that nothing was
chosen on."""

import dataclasses
import importlib

import pytest

from gram_platform.config.flops import core_parameters
from gram_platform.config.ladder import DEMO_SIZES
from gram_platform.methods.setting import Elicitation
from tests.refused import refused
from tests.submitted import flags_of, study_plan

TOKENS_PER_PARAMETER = 9


def study(name):
    return importlib.import_module(f"gram_platform.studies.library.{name}").STUDY


def graph(name, storage, **flags):
    return study_plan(
        study(name), flags_of(study(name), preset="demo", storage=str(storage), **flags)
    )


@pytest.mark.parametrize("size", DEMO_SIZES.values(), ids=DEMO_SIZES)
def test_tokens_a_parameter_are_constant_along_the_ladder(size):
    assert size.core_tokens / core_parameters(size.dense()) == pytest.approx(
        TOKENS_PER_PARAMETER, rel=0.01
    )
    assert size.d_aux * 2 == size.d_dense == size.d_core


def test_the_scaling_demo_reports_what_it_was_not_chosen_on():
    preset = study("scaling").presets["demo"]
    assert list(preset.seeds("0.1M")) == [100, 101, 102]
    assert list(preset.seeds("0.15M")) == [*range(100, 109)]
    assert list(study("scaling").presets["study"].seeds("0.1M")) == [100, 101, 102, 103, 104]
    after_warmup = preset.num_eval_points - int(preset.warmup_fraction * preset.num_eval_points)
    assert after_warmup >= 20
    assert preset.num_eval_sequences >= 256


def test_a_preset_may_have_fewer_methods_and_the_flag_adds_them():
    scaling = study("scaling")
    methods_of = lambda **given: study_plan(scaling, flags_of(scaling, **given)).methods
    assert methods_of() == ("baseline", "filtering", "gram")
    assert methods_of(preset="smoke") == scaling.methods
    assert methods_of(methods=("ft_lora",)) == ("baseline", "ft_lora")


def test_demos_share_runs(tmp_path):
    def runs(name, method):
        nodes = (node for node in graph(name, tmp_path).nodes if node.kind == "run")
        return {n.id for n in nodes if n.method == method and not n.is_attack}

    for method in ("baseline", "gram"):
        assert runs("architecture", method) <= runs("stories", method)
        assert runs("attack_budget", method) <= runs("composing", method)


def test_an_attack_grows_with_the_domain_it_is_on():
    attack = Elicitation(2, 19, batch_size=8, domain_share=0.013)
    assert attack.on_domain(100) == dataclasses.replace(attack, num_sequences=2, batch_size=2)
    assert attack.on_domain(400) == dataclasses.replace(attack, num_sequences=5, batch_size=5)
    assert attack.on_domain(1000) == dataclasses.replace(attack, num_sequences=13, batch_size=8)
    with refused("elicitation.domain_share", 1.5):
        dataclasses.replace(attack, domain_share=1.5)


def test_attacks_of_the_demo_have_the_papers_share_of_a_domain(tmp_path):
    for setting in graph("scaling", tmp_path).settings:
        of_domain = setting.num_sequences[setting.auxiliary[0]]
        sample = setting.options.elicitation.on_domain(of_domain).num_sequences
        assert sample / of_domain == pytest.approx(0.013, abs=0.5 / of_domain + 0.01)
