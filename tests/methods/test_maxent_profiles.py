"""MaxEnt's parameters of single profiles: they change the runs of their profile and nothing
else."""

import dataclasses

from gram_platform.methods import METHODS, plan
from gram_platform.methods.nodes import method_nodes
from gram_platform.methods.setting import Options, Unlearning
from tests.methods.test_plans import setting
from tests.refused import refused

PROFILES = ((), ("lisp",), ("virology",))
CELL = setting(profiles=PROFILES)
OWN = Unlearning(num_steps=4, peak_lr=3e-4, retain_weight=75.0)


def with_own(*pairs) -> Options:
    return dataclasses.replace(CELL.options, maxent_profiles=pairs)


def ids_of(options: Options) -> dict[str, str]:
    """Run id by the profile's name of MaxEnt's runs."""
    return {
        name: run.run_id
        for name, run in plan("maxent", dataclasses.replace(CELL, options=options)).runs.items()
    }


def test_own_parameters_equal_to_those_of_all_are_the_same_run():
    assert ids_of(with_own((("lisp",), CELL.options.maxent))) == ids_of(CELL.options)


def test_own_parameters_change_their_profiles_run_and_no_other():
    before, after = ids_of(CELL.options), ids_of(with_own((("lisp",), OWN)))
    assert [name for name in before if before[name] != after[name]] == ["core+lisp"]
    run = plan("maxent", dataclasses.replace(CELL, options=with_own((("lisp",), OWN)))).runs[
        "core+lisp"
    ]
    assert (run.optimizer.peak_lr, run.objective.retain_weight) == (OWN.peak_lr, OWN.retain_weight)
    assert run.run_id == ids_of(dataclasses.replace(CELL.options, maxent=OWN))["core+lisp"]


def test_own_parameters_reach_no_other_method():
    own = dataclasses.replace(CELL, options=with_own(*((profile, OWN) for profile in PROFILES)))
    for method in set(METHODS) - {"maxent", "undo"}:
        assert [n.id for n in method_nodes(method, own)] == [
            n.id for n in method_nodes(method, CELL)
        ], method


def test_core_alone_is_a_profile_and_the_order_of_domains_means_nothing():
    options = with_own((("virology", "lisp"), OWN), ((), Unlearning(num_steps=2)))
    assert options == with_own(((), Unlearning(num_steps=2)), (("lisp", "virology"), OWN))
    assert options.maxent_of(("lisp", "virology")) == options.maxent_of(("virology", "lisp")) == OWN
    assert options.maxent_of(()).num_steps == 2
    assert options.maxent_of(("lisp",)) == CELL.options.maxent


def test_a_profile_twice_or_of_unknown_domains_is_refused():
    with refused("maxent_profiles", ("lisp", "virology")):
        with_own((("lisp", "virology"), OWN), (("virology", "lisp"), OWN))
    with refused("maxent_profiles", ("lisp", "lisp")):
        with_own((("lisp", "lisp"), OWN))
    with refused("maxent_profiles", ("algebra",)):
        ids_of(with_own((("algebra",), OWN)))
