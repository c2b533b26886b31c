"""Presets `paper` and `as_run`: printed hyperparameters by their place in the paper, published
settings by their row.

The paper's places are labels of its LaTeX source; rows are those of the authors' stored settings,
read where they lie beside the checkout.
"""

import importlib
import json
from pathlib import Path

import pytest

from gram_platform.config import CORE
from gram_platform.config.flops import module_parameters, total_parameters
from gram_platform.config.ladder import PAPER_SIZES, STORIES_SIZES, lora_rank
from gram_platform.config.routing import CORE_MLP, Schedule
from gram_platform.methods import plan
from gram_platform.methods.budgets import plan_compute_units
from gram_platform.methods.elicitation import plan_attacks
from gram_platform.methods.gram import modular_size
from gram_platform.studies.definition import MaxEntRanges
from gram_platform.studies.library.scaling import AS_RUN_SIZES
from gram_platform.studies.searches.flags import KNOB
from tests.submitted import flags_of, study_plan

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT.parent / "shared" / "data" / "published" / "settings.jsonl"
AUXILIARY = ("cybersecurity", "lisp", "nuclear", "virology")
THEIRS = {
    "lisp": "code-lisp",
    "virology": "papers-biology",
    "nuclear": "papers-nuclear",
    "cybersecurity": "papers-cyber",
}
SINGLES = ((), *((d,) for d in AUXILIARY))
needs_settings = pytest.mark.skipif(
    not SETTINGS.exists(), reason="the authors' settings are not beside the checkout"
)


def study(name):
    module = importlib.import_module(f"gram_platform.studies.library.{name}")
    return getattr(module, "STUDY", None) or module.SEARCH


def preset(name, kind="paper"):
    return study(name).presets[kind]


def cell(
    name,
    kind="paper",
    size=None,
    seed=0,
    domains=(CORE, *AUXILIARY),
    profiles=SINGLES,
    variant=None,
):
    own = preset(name, kind)
    chosen = own.sizes[size or next(iter(own.sizes))]
    end = 50_256 if own.vocab_size == 50_304 else 1  # of the two tokenizers
    setting = own.setting(chosen, seed, "data", domains, profiles, end)
    return (
        next(v for v in own.variants if v.name == variant).changed(setting) if variant else setting
    )


def gram(*args, **parts):
    return plan("gram", cell(*args, **parts)).runs["all"]


# --------------------------------------------------------------------------------- the paper's text


LADDER = {  # tab:grmoe-scaling-training: module, layers, core MLP, aux MLP, batch, core data, rate
    "50M": (0.6e6, 6, 1536, 128, 72, 0.96e9, 1.3e-3),
    "100M": (3.0e6, 9, 2560, 256, 128, 2.1e9, 1.1e-3),
    "200M": (9.0e6, 13, 3584, 384, 216, 4.0e9, 8.7e-4),
    "400M": (22.4e6, 18, 4864, 512, 368, 8.0e9, 7.0e-4),
    "800M": (49.2e6, 24, 6400, 640, 672, 16.1e9, 5.7e-4),
    "2B": (132.2e6, 32, 9216, 896, 1329, 40.3e9, 4.3e-4),
    "5B": (351.3e6, 47, 12288, 1216, 2752, 99.4e9, 3.2e-4),
}


@pytest.mark.parametrize("name", LADDER)
def test_the_ladder_is_the_printed_one(name):
    module, layers, core_mlp, aux_mlp, batch, tokens, rate = LADDER[name]
    run = gram("scaling", size=name)
    shape = (
        run.model.num_layers,
        run.model.d_mlp,
        run.model.modules[0].width,
        run.model.d_model * 4,
    )
    assert shape == (layers, core_mlp, aux_mlp, core_mlp)
    # at 50M and 400M the printed module sizes are of another width than the printed one
    if name not in ("50M", "400M"):
        assert module_parameters(run.model, "lisp") == pytest.approx(module, rel=0.02)
    # 1,329 has no micro-batch that ranks could divide.
    assert run.batch_size == (1328 if name == "2B" else batch)
    assert PAPER_SIZES[name].core_tokens == tokens
    assert run.optimizer.peak_lr == rate
    assert (run.model.seq_len, run.model.vocab_size) == (1024, 50_304)  # app:realistic
    assert (run.model.num_heads, run.model.num_kv_heads) == (8, 2)  # app:realistic


@pytest.mark.parametrize("name", ["scaling", "dual_use", "partial_labels"])
def test_dual_use_routing_is_the_printed_one(name):
    """app:realistic, app:partial: p_as 0.5, p_cr 0.2, p_af 4 for code and 3 otherwise; FT-LoRA's 2
    and 1."""
    setting = cell(name)
    assert (setting.routing.p_aux_spread, setting.routing.p_core_robust) == (0.5, 0.2)
    assert {d: setting.factor(d) for d in AUXILIARY} == {
        d: 4.0 if d == "lisp" else 3.0 for d in AUXILIARY
    }
    module = setting.options.branch_module
    assert {d: module.factor(d) for d in AUXILIARY} == {
        d: 2.0 if d == "lisp" else 1.0 for d in AUXILIARY
    }
    assert (module.core_ratio, module.lr_factor) == (1.0, 1.0)
    assert (setting.warmup_fraction, setting.decay_fraction) == (0.02, 0.1)
    run = gram(name)
    drawn = {d.name: d.num_draws / d.num_sequences for d in run.data.domains}
    assert drawn["lisp"] == pytest.approx(4.0, rel=0.02)
    assert drawn["virology"] == pytest.approx(3.0, rel=0.02)
    assert (run.optimizer.beta1, run.optimizer.beta2, run.optimizer.weight_decay) == (
        0.9,
        0.95,
        0.1,
    )
    assert run.optimizer.clip_norm == 1.0


def test_full_finetuning_and_unlearning_are_the_printed_ones():
    """app:realistic: FT-Full p_ca 4, p_af 1, p_lr 0.2; MaxEnt 2,000 steps."""
    options = cell("dual_use").options
    assert (options.branch_full.core_ratio, options.branch_full.lr_factor) == (4.0, 0.2)
    assert {options.branch_full.factor(d) for d in AUXILIARY} == {1.0}
    assert options.maxent.num_steps == 2000
    for kind in ("paper", "as_run"):
        searched = preset("dual_use", kind).maxent_search
        assert (searched.peak_lr, searched.retain_weight) == ((5e-5, 2e-4), (50.0, 600.0))
        # not printed: the ranges and trials of the authors' searches on stories
        assert preset("stories", kind).maxent_search == MaxEntRanges((3e-4, 1e-2), (5.0, 300.0), 30)


def test_the_attack_is_the_printed_one():
    """app:realistic: 512 sequences, at most 200 epochs, a quarter of the peak rate, early
    stopping."""
    setting = cell("dual_use")
    plans = plan("gram", setting)
    attack = plan_attacks(setting, (), plans.views[()], plans.runs.values())["lisp"]
    (sample,) = attack.data.domains
    assert sample.num_sequences == 512
    assert attack.eval_points.num_points == sample.num_draws / sample.num_sequences == 200
    assert attack.optimizer.peak_lr == pytest.approx(5.7e-4 / 4)
    assert attack.eval_points.patience > 0


def test_the_mixture_is_the_printed_one():
    """tab:realistic-mix: 40M tokens of each domain beside 16.1B of core at 800M; app:scaling: 1% of
    core."""
    setting = cell("dual_use")
    for domain in AUXILIARY:
        assert setting.num_sequences[domain] * 1024 == pytest.approx(40e6, rel=0.01)
    assert sum(setting.num_sequences[d] for d in AUXILIARY) == pytest.approx(
        0.01 * setting.num_sequences[CORE], rel=1e-3
    )


def test_scaling_and_dual_use_share_their_800M_runs():
    for kind in ("paper", "as_run"):
        for method in ("baseline", "gram", "ft_lora"):
            runs = [
                {run.run_id for run in plan(method, cell(name, kind, "800M")).runs.values()}
                for name in ("scaling", "dual_use")
            ]
            assert runs[0] == runs[1], (kind, method)
        assert {
            r.run_id
            for r in plan(
                "filtering", cell("scaling", kind, "800M", profiles=(("virology",),))
            ).runs.values()
        } <= {r.run_id for r in plan("filtering", cell("dual_use", kind)).runs.values()}


def test_accumulation_is_mixed_as_printed():
    """app:hetacc: below 5B routed methods and filtering are uniform, the baseline and all of 5B
    heterogeneous."""
    for name in LADDER:
        setting = cell("scaling", size=name)
        uniform = "uniform" if name != "5B" else "heterogeneous"
        assert gram("scaling", size=name).routing.accumulation == uniform
        assert plan("filtering", setting).runs["core"].routing.accumulation == uniform
        assert plan("baseline", setting).runs["all"].routing.accumulation == "heterogeneous"


def test_seeds_are_the_published_ones():
    """app:scaling and the authors' results: three below 2B, one at 2B and 5B; tab:hetacc-200m is of
    one seed."""
    for kind in ("paper", "paper_het", "as_run"):
        own = preset("scaling", kind)
        assert {name: len(own.seeds(name)) for name in own.sizes} == {
            n: 1 if n in ("2B", "5B") else 3 for n in LADDER
        }
        assert list(own.seeds("5B", 2, 7)) == [7, 8]  # what the user asks for holds everywhere
    for kind in ("paper", "as_run"):
        assert preset("accumulation", kind).num_seeds == 1
        for name in (
            "stories",
            "dual_use",
            "partial_labels",
            "architecture",
            "aux_scaling",
            "hyperparams",
        ):
            assert preset(name, kind).num_seeds == 3


def test_partial_labels_are_the_printed_ones():
    """app:partial: half the labels, a core of 95% and modules of 1.25% of the width, 400M,
    heterogeneous."""
    setting = cell("partial_labels", profiles=((),), variant="0.5")
    size = modular_size(setting)
    assert setting.options.unlabelled_share == 0.5
    assert (size.d_core, size.d_aux) == (round(0.95 * 4864), round(0.0125 * 4864))
    as_run = modular_size(cell("partial_labels", "as_run", profiles=((),), variant="0.5"))
    assert (as_run.d_core, as_run.d_aux) == (4608, 64)
    assert setting.routing.accumulation == "heterogeneous"
    assert list(preset("partial_labels").sizes) == ["400M"]


def test_titration_pools_its_baselines_as_run_alone():
    """The text compares each seed with its own baseline, the authors' code pools them."""
    own = {name: one.own_baseline for name, one in study("titration").presets.items()}
    assert own == {"smoke": True, "demo": True, "paper": True, "as_run": False}


def test_lora_ranks_are_the_printed_ones():
    """app:equal-compute: 128 at 800M, about 102 at 400M."""
    ranks = {n: lora_rank(s.d_model, s.d_core, s.d_aux) for n, s in PAPER_SIZES.items()}
    assert ranks["800M"] == 128
    assert ranks["400M"] == pytest.approx(102, abs=1)


@pytest.mark.parametrize("name", ["architecture", "accumulation"])
def test_ablations_have_no_auxiliary_factor(name):
    """app:expert-arch, tab:hetacc-200m: p_af 1, p_as 0.5, p_cr 0.2, p_ca 1, p_lr 1."""
    for kind in ("paper", "as_run"):
        setting = cell(name, kind)
        assert {setting.factor(d) for d in AUXILIARY} == {1.0}
        assert (setting.routing.p_aux_spread, setting.routing.p_core_robust) == (0.5, 0.2)
        assert (
            setting.options.branch_module.core_ratio,
            setting.options.branch_module.lr_factor,
        ) == (1.0, 1.0)
        assert setting.options.branch_module.factor("lisp") == 1.0


def test_stories_are_the_printed_ones():
    """app:stories."""
    setting = cell("stories")
    run = gram("stories")
    size = setting.size
    assert (run.model.num_layers, run.model.num_heads, run.model.d_model) == (8, 8, 512)
    assert (run.model.seq_len, run.model.vocab_size) == (256, 4096)
    assert (size.d_dense, run.model.d_mlp, run.model.modules[0].width) == (2048, 1856, 192)
    assert total_parameters(size.dense()) == pytest.approx(26e6, rel=0.02)
    assert module_parameters(run.model, "lisp") == pytest.approx(1.6e6, rel=0.02)
    assert (run.batch_size, run.optimizer.peak_lr) == (128, 5e-3)
    assert (setting.warmup_fraction, setting.decay_fraction) == (0.1, 0.1)
    assert (
        setting.routing.p_aux_spread,
        setting.routing.p_core_robust,
        setting.factor("lisp"),
    ) == (0.3, 0.5, 1.0)
    assert setting.routing.accumulation == "heterogeneous"
    assert (setting.options.branch_module.core_ratio, setting.options.branch_full.core_ratio) == (
        2.0,
        2.0,
    )
    assert setting.options.maxent.num_steps == 2000
    attack = setting.options.elicitation
    assert (attack.num_sequences, attack.num_steps) == (128, 75)
    base = plan("baseline", setting).runs["all"]
    # "the same number of training steps"; the logs' number.
    assert base.num_steps == run.num_steps == 16_544
    assert STORIES_SIZES["26M"].core_tokens == pytest.approx(0.99 * 501_664_802, rel=1e-3)


def test_sweeps_and_numbers_of_domains_are_the_printed_ones():
    """app:hyperparams, app:aux-scaling, fig:titration."""
    values = study("hyperparams").points["paper"]
    assert values["p_cr"] == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    assert values["p_as"] == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert values["p_ca"] == (0.25, 0.5, 1.0, 2.0, 4.0)
    for kind, spread in (("paper", 0.3), ("as_run", 0.2)):
        own = preset("aux_scaling", kind)
        assert [v.num_auxiliary for v in own.variants] == [4, 8, 12, 16, 20]
        assert own.aux_share == 0.25  # a fifth of all tokens
        assert own.routing.p_aux_spread == spread


@pytest.mark.parametrize("name", ["architecture", "accumulation", "dual_use"])
def test_studies_of_one_size_compare_every_profile(tmp_path, name):
    """Though the ladder that they are taken from compares core + virology alone."""
    for kind in ("paper", "as_run"):
        graph = study_plan(study(name), flags_of(study(name), preset=kind, storage=str(tmp_path)))
        assert graph.settings[0].profiles == SINGLES


# ---------------------------------------------------------------------------- the authors' settings


@pytest.fixture(scope="module")
def rows():
    return [json.loads(line) for line in SETTINGS.read_text().splitlines()]


def found(rows, prefix, name, num_parameters=None, arch=None):
    """The settings of runs, each different one once, without what names them."""
    kept = {}
    for row in rows:
        run = row.get("run", {})
        is_one = (
            row["folder"].startswith(prefix)
            and row.get("name") == name
            and run.get("num_gpus") != 2
        )
        is_size = is_one and num_parameters in (None, run["num_base_params"])
        if is_size and arch in (None, row["model"].get("arch")):
            kept[row["folder"]] = row
    assert kept, (prefix, name)
    return list(kept.values())


@needs_settings
@pytest.mark.parametrize("name", AS_RUN_SIZES)
def test_sizes_are_those_of_the_settings(rows, name):
    size = AS_RUN_SIZES[name]
    own = [r for r in found(rows, "scaling/", "baseline") if abs(r["lr"] - size.peak_lr) < 1e-12]
    assert own, f"no baseline has the rate of {name}"
    for row in own:
        run = row["run"]
        assert run["effective_batch_size"] == size.batch_size
        assert 20 * run["num_base_params"] == size.core_tokens
        assert total_parameters(size.dense()) == pytest.approx(run["num_base_params"], rel=1.2e-3)
        assert (run["warmup_prc"], run["decay_prc"]) == (0.02, 0.1)
        assert (
            run["max_num_test_sequences"]
            == cell("scaling", "as_run", name).num_eval_sequences
            == 10_000
        )
        if name not in ("2B", "5B"):  # theirs cannot be sharded
            assert run["micro_batch_size"] == size.micro_batch


@needs_settings
@pytest.mark.parametrize("name", AS_RUN_SIZES)
def test_routing_is_that_of_the_settings(rows, name):
    num_parameters = AS_RUN_SIZES[name].core_tokens // 20
    setting = cell("scaling", "as_run", name)
    for row in found(rows, "scaling/realistic/grmoe", "routed", num_parameters):
        assert row["robust_prc"] == setting.routing.p_core_robust
        assert row["aux_route_prc"] == setting.routing.p_aux_spread
        assert {d: row["aux_factor"][THEIRS[d]] for d in AUXILIARY} == {
            d: setting.factor(d) for d in AUXILIARY
        }
        model = row["model"]
        assert (model["num_layers"], model["mlp_dim"], model["embed_dim"]) == (
            setting.size.num_layers,
            setting.size.d_core,
            setting.size.d_model,
        )
        assert (model["num_heads"], model["num_key_value"], model["eos_token_id"]) == (8, 2, 50_256)
        assert gram("scaling", "as_run", size=name).model.document_end == 50_256
    for row in found(rows, "scaling/realistic/lora", "routed", num_parameters):
        module = setting.options.branch_module
        assert row["core_aux_ratio"] == module.core_ratio
        assert {d: row["aux_factor"][THEIRS[d]] for d in AUXILIARY} == {
            d: module.factor(d) for d in AUXILIARY
        }


@needs_settings
def test_full_finetuning_and_unlearning_are_those_of_the_settings(rows):
    options = cell("dual_use", "as_run").options
    last = max(
        found(rows, "scaling/realistic/coreftaux", "coreftaux"),
        key=lambda r: r["folder"].split("/")[-2],
    )
    assert (last["core_aux_ratio"], last["ft_lr_factor"]) == (
        options.branch_full.core_ratio,
        options.branch_full.lr_factor,
    )
    assert float(last["aux_factor"]) == options.branch_full.aux_factor
    for name, prefix, batch in (
        ("dual_use", "scaling/realistic/maxent", 48),
        ("stories", "stories/", 64),
    ):
        own = cell(name, "as_run").options.maxent
        assert {(r["steps"], r["early_stop_thresh"]) for r in found(rows, prefix, "maxent")} == {
            (own.num_steps, own.stop_below)
        }
        assert own.batch_size == batch  # half of the sequences that all processes pass at once
        assert (own.clip_norm, own.warmup_fraction, own.core_share) == (0.0, 0.0, 0.75)


@needs_settings
def test_stories_are_those_of_the_settings(rows):
    setting = cell("stories", "as_run")
    assert all(
        r["run"]["micro_batch_size"] == setting.size.micro_batch == 128
        for r in found(rows, "stories/", "baseline")
    )
    assert {r["num_train_evals"] for r in found(rows, "stories/seed", "baseline")} == {
        setting.num_eval_points
    }
    routed = [r for r in found(rows, "stories/", "routed", arch="moe") if r["aux_route_prc"] == 0.3]
    for row in routed:
        assert (row["robust_prc"], row["aux_factor"], row["equal_compute"]) == (
            0.5,
            1.0,
            setting.equal_compute,
        )
        assert (row["model"]["mlp_dim"], row["model"]["core_param_prc"]) == (
            setting.size.d_core,
            1.0,
        )
    for row in found(rows, "stories/", "coreftaux"):
        assert (row["core_aux_ratio"], row["ft_lr_factor"]) == (
            2.0,
            setting.options.branch_full.lr_factor,
        )
    assert setting.options.demix.views == "single_expert"


@needs_settings
def test_the_smaller_studies_are_those_of_the_settings(rows):
    partial = cell("partial_labels", "as_run", profiles=((),), variant="0.5")
    for row in found(rows, "partial/400M", "routed", arch="moe"):
        assert (row["aux_route_prc"], row["robust_prc"]) == (
            partial.routing.p_aux_spread,
            partial.routing.p_core_robust,
        )
        assert {row["aux_factor"]} == {partial.factor(d) for d in AUXILIARY}
        shares = (row["model"]["core_param_prc"], row["model"]["aux_param_prc"])
        assert shares == partial.options.routed_widths
        # The authors' model class rounds widths to multiples of 64.
        widths = (row["model"]["mlp_dim"] * share for share in shares)
        assert (modular_size(partial).d_core, modular_size(partial).d_aux) == tuple(
            64 * round(width / 64) for width in widths
        )
        assert row["acc_mode"] == partial.routing.accumulation
    for row in found(rows, "partial/400M", "routed", arch="lora"):
        assert {row["aux_factor"]} == {partial.options.branch_module.factor(d) for d in AUXILIARY}
    for row in found(rows, "accumulation/base", "baseline"):
        size = cell("accumulation", "as_run").size
        assert (row["run"]["effective_batch_size"], row["run"]["micro_batch_size"]) == (
            size.batch_size,
            size.micro_batch,
        )
    spreads = {
        r["aux_route_prc"]
        for version in ("v2", "v3")
        for r in found(rows, f"auxnum/{version}", "routed")
    }
    assert preset("aux_scaling", "as_run").routing.p_aux_spread in spreads
    for row in found(rows, "arch/100M", "baseline"):
        own = preset("architecture", "as_run")
        assert (row["num_train_evals"], row["run"]["micro_batch_size"]) == (
            own.num_eval_points,
            own.sizes["100M"].micro_batch,
        )


@needs_settings
def test_the_sweep_of_p_ca_keeps_its_length(rows):
    factors = {
        r["core_aux_ratio"]: r["aux_factor"]
        for r in found(rows, "sweep/stories", "routed", arch="lora")
    }
    assert set(factors) == set(study("hyperparams").points["as_run"]["p_ca"])
    lengths = set()
    for ratio, factor in factors.items():
        turned = KNOB["p_ca"].turned(cell("hyperparams", "as_run"), ratio)
        assert turned.options.branch_module.aux_factor == pytest.approx(factor)
        lengths |= {
            run.num_steps for name, run in plan("ft_lora", turned).runs.items() if name != "core"
        }
    assert len(lengths) == 1  # of every branch at every ratio


def test_routes_of_800M_are_those_of_the_logs():
    """Windows of the authors' 800M run: Lisp 227, of which 28 train the core; virology 170 and 28;
    companions 1,369 (Lisp) and 1,027 (each other), of 23,358 steps."""
    run = gram("dual_use", "as_run", size="800M")
    windows = {}
    for (domain, route), count in Schedule(run).route_counts().items():
        companion = route.active[0][0] if domain == CORE and route.active else ""
        key = (domain, companion, CORE_MLP in route.trained)
        windows[key] = windows.get(key, 0) + count / run.micro_batches_per_step
    assert run.num_steps == pytest.approx(23_358, rel=1e-3)
    for domain, drawn in (("lisp", 227), ("virology", 170)):
        own = {trains: windows.get((domain, "", trains), 0) for trains in (True, False)}
        assert sum(own.values()) == pytest.approx(drawn, rel=0.025)
        assert own[True] == pytest.approx(28, abs=3 * 28**0.5)
    for domain, beside in (
        ("lisp", 1_369),
        ("virology", 1_027),
        ("nuclear", 1_027),
        ("cybersecurity", 1_027),
    ):
        assert windows[CORE, domain, True] == pytest.approx(beside, abs=2.5 * beside**0.5)


@pytest.mark.parametrize("name", ["dual_use", "stories"])
def test_routed_runs_of_as_run_cost_what_the_baseline_costs(name):
    base = plan_compute_units(plan("baseline", cell(name, "as_run")).runs["all"])
    assert plan_compute_units(gram(name, "as_run")) == pytest.approx(base, rel=2e-3)
