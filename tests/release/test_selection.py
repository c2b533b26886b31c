"""What a user types, as views."""

import dataclasses

import pytest

from gram_platform.config import RoutingConfig, View
from gram_platform.release.selection import available_modules, parse_modules, parse_sources
from gram_platform.store import Store
from tests import tiny
from tests.refused import refused
from tests.release.planted import complete


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "storage").open_for_writing(min_free_bytes=0)


def branch_of(base, domain, seed=0):
    """FT-MLP's: the domain's module on the frozen base."""
    modules = tuple(m for m in tiny.model_config().modules if m.domain == domain)
    routing, draws = (
        RoutingConfig(1.0, 0.0, freeze_core=True),
        (64, 16, 0) if domain == "lisp" else (64, 0, 16),
    )
    model = dataclasses.replace(base.model, modules=modules)
    return tiny.run_config(
        draws=draws, model=model, routing=routing, start=View.of(base.run_id), seed=seed
    )


def test_the_beginning_of_an_id_is_enough(store):
    ids = [complete(store, tiny.run_config(seed=seed)) for seed in range(20)]
    assert store.find_run(ids[0]) == ids[0]
    assert store.find_run(ids[0][:8]) == ids[0]
    letter = max("0123456789abcdef", key=lambda c: sum(i.startswith(c) for i in ids))
    with refused("run_id", letter):
        store.find_run(letter)
    for nothing in ("", "xyz"):
        with refused("run_id", nothing):
            store.find_run(nothing)


def test_modules_by_name_and_weight():
    assert parse_modules("") == {}
    assert parse_modules("virology, lisp=0.5") == {"virology": 1.0, "lisp": 0.5}
    for wrong in ("lisp,lisp", "lisp=much"):
        with refused("modules"):
            parse_modules(wrong)
    with refused("sources", "lisp"):
        parse_sources("lisp")


def test_views_of_a_modular_run(store):
    found = available_modules(store, complete(store, tiny.run_config()))
    assert found.modules == ("lisp", "virology")
    assert found.view({"lisp": 1.0}, {}) == View.of(found.run_id, {"lisp": 1.0})
    with refused("modules", "nuclear"):
        found.view({"nuclear": 1.0}, {})
    with refused("view.weights[lisp]", 2.0):
        found.view({"lisp": 2.0}, {})
    with refused("sources", ["virology"]):
        found.view({"lisp": 1.0}, {"virology": "x"})


def test_modules_of_branches(store):
    """FT-MLP: the base has none, its branches have; of two branches for a domain one must be
    named."""
    base = tiny.run_config(modular=False)
    complete(store, base)
    with refused("modules", "lisp"):
        available_modules(store, base.run_id).view({"lisp": 1.0}, {})
    branches = {domain: complete(store, branch_of(base, domain)) for domain in ("lisp", "virology")}
    found = available_modules(store, base.run_id)
    assert set(found.modules) == set(branches)
    view = found.view({"lisp": 1.0, "virology": 1.0}, {})
    assert dict(view.sources) == branches
    assert found.view({"lisp": 0.0}, {}) == View(base.run_id)
    other = complete(store, branch_of(base, "lisp", seed=1))
    found = available_modules(store, base.run_id)
    with refused("sources"):
        found.view({"lisp": 1.0}, {})
    assert dict(found.view({"lisp": 1.0}, {"lisp": other}).sources) == {"lisp": other}
