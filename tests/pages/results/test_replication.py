"""Losses measured elsewhere come out as the compute ratios that were planted, each against the
baseline it should."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from gram_platform.analysis.intervals import t_interval
from gram_platform.analysis.tables import CLASSES
from gram_platform.cli import main, reports
from gram_platform.pages.index import read_shown
from gram_platform.pages.report.sections import report_sections
from gram_platform.pages.results.external import read_external
from gram_platform.pages.results.record import Results
from gram_platform.pages.results.replication import (
    load_published_studies,
    prepare,
    read_known_studies,
    replicate,
)
from gram_platform.pages.results.results import summary_text
from gram_platform.paper.paper import load_published, read_printed
from gram_platform.store import Store
from tests.external_folder import (
    SEEDS,
    baseline_rows,
    curve_lines,
    jitter,
    scaling_rows,
    view_rows,
    write_folder,
)
from tests.pages.site.pages import require_links_lead_somewhere
from tests.paper.claim_texts import claim_of
from tests.published import FOLDER, NEEDS_FOLDER

DOCS = Path(__file__).resolve().parents[3] / "docs" / "replicate.md"
HALF = t_interval([jitter(seed) for seed in SEEDS]).high  # of every planted interval


def replicated(folder: Path, **how) -> dict[str, Results]:
    return {p.record.name: replicate(p, **how) for p in prepare(read_external(folder))}


def row_of(study: Results, **where: str) -> pd.Series:
    table = study.analysis.table
    for name, value in where.items():
        table = table[table[name] == value]
    assert len(table) == 1, (where, table)
    return table.iloc[0]


def require_values(row: pd.Series, **values: float) -> None:
    """Each class at its planted ratio, with the interval of the planted seeds."""
    for name, value in values.items():
        found = [row[name], row[f"{name}_low"], row[f"{name}_high"]]
        assert found == pytest.approx([value, value - HALF, value + HALF], abs=2e-4), name


def test_planted_ratios_come_back_with_their_intervals(tmp_path):
    study = replicated(write_folder(tmp_path, scaling_rows(), curve_lines()))["scaling"]
    require_values(
        row_of(study, profile="core+virology"), core=0.9, retain=0.95, forget=0.6, elicited=0.8
    )
    require_values(row_of(study, profile="core", method="gram"), core=0.9, forget=0.7)
    require_values(
        row_of(study, profile="mean", method="gram"), core=0.9, retain=0.95, forget=2.0 / 3.0
    )
    assert study.analysis.missing.empty
    claims = study.claims.set_index("claim")
    assert claims.loc[claim_of("scaling", "gram retain", "gram forget"), "verdict"] == "agree"


def test_a_view_that_a_seed_lacks_is_missing_and_not_an_error(tmp_path):
    rows = [r for r in scaling_rows() if not (r["retained"] == "core" and r["seed"] == "3")]
    study = replicated(write_folder(tmp_path, rows, curve_lines()))["scaling"]
    missing = dict(study.analysis.missing.itertuples(index=False))
    assert "seed 3" in missing["gram 50M core"]
    assert "core" in missing["gram 50M mean seed 3"]
    assert row_of(study, profile="mean", method="gram")["num_seeds"] == 2


def test_a_size_without_curves_and_an_attack_without_a_view_are_missing(tmp_path):
    rows = [
        *scaling_rows(),
        *baseline_rows(size="2B"),
        *view_rows("gram", "core", {"core": 0.9}, size="2B"),
    ]
    rows += view_rows("lora", "core", {"lisp": 0.8}, elicited=1, seeds="1")
    rows += view_rows("grmoe", "core+virology", {"virology": 0.8}, elicited=1, seeds="1")
    study = replicated(write_folder(tmp_path, rows, curve_lines()))["scaling"]
    missing = dict(study.analysis.missing.itertuples(index=False))
    lacking = (
        "all rows of size 2B",
        "ft_lora 50M core seed 1, attack on lisp",
        "gram 50M core+virology seed 1, attack on virology",
    )
    assert set(lacking) <= missing.keys()
    assert set(study.analysis.table["size"]) == {"50M"}


UNUSABLE = {
    "others": lambda line: {"seed": f"{line['seed']}0"},
    "rising": lambda line: {"losses": sorted(line["losses"])},
    "flat": lambda line: {"losses": [2.5] * len(line["losses"])},
}


@pytest.mark.parametrize(
    ("name", "what"),
    [("mine", "others"), ("mine", "rising"), ("scaling", "flat"), ("titration", "others")],
)
def test_a_study_without_any_reference_says_why(tmp_path, name, what):
    """Curves of other seeds, rising or flat ones: the size is missing, whichever claims the study
    has."""
    rows, curves = (
        [row | {"study": name} for row in found] for found in (scaling_rows(), curve_lines())
    )
    lines = [line | UNUSABLE[what](line) for line in curves]
    study = replicated(write_folder(tmp_path, rows, lines))[name]
    assert study.analysis.table.empty
    assert study.claims.empty
    lacking = "size 50M" if what == "others" else "size 50M, domain core"
    assert any(lacking in reason for reason in study.analysis.missing["what"])
    assert summary_text(study.record, study).startswith("no table:\n")
    assert any(section.title == "Missing" for section in report_sections(study)[1])


@pytest.mark.parametrize("is_own", [False, True])
def test_titration_borrows_the_baselines_and_pools_their_seeds_unless_told(tmp_path, is_own):
    """The authors pool them; the paper's text compares each seed with its own baseline."""
    rows = scaling_rows()
    for weight, retain in (("0", 0.5), ("0.5", 0.8), ("1", 1.0)):
        where = {"study": "titration", "variant": weight}
        rows += view_rows(
            "grmoe", "core+lisp", {"core": 0.9, "lisp": retain, "virology": 0.6}, **where
        )
    folder = write_folder(tmp_path, rows, curve_lines())
    if is_own:
        (folder / "studies.json").write_text('{"titration": {"own_baseline": true}}')
    study = replicated(folder)["titration"]
    assert any("50M" in fact and "scaling" in fact for fact in study.record.facts)
    assert study.record.variants == ("0", "0.5", "1")
    per_seed = study.analysis.per_seed
    own = per_seed[
        (per_seed["method"] == "gram")
        & (per_seed["profile"] == "core+lisp")
        & (per_seed["variant"] == "0.5")
    ]
    units = [1.0 + jitter(seed) * is_own for seed in own["seed"]]
    expected = [(0.8 + jitter(s)) / unit for s, unit in zip(own["seed"], units, strict=True)]
    assert own["retain"].tolist() == pytest.approx(expected, abs=2e-4)
    baseline = per_seed[per_seed["method"] == "baseline"]
    assert (baseline["core"].std() < 1e-9) == is_own
    claims = study.claims[study.claims["claim"].str.match("GRAM: half .*none")]
    assert claims["verdict"].tolist() == ["agree"]


def test_accumulation_has_one_unit_even_where_both_have_baselines(tmp_path):
    rows, curves = [], []
    for kind, scale in (("uniform", 6.5), ("heterogeneous", 6.0)):
        where = {"study": "accumulation", "variant": kind, "size": "200M", "seeds": ["5"]}
        rows += baseline_rows(scale=scale, **where)
        rows += view_rows(
            "grmoe", "core+lisp", {"core": 0.9, "lisp": 1.1, "virology": 0.7}, **where
        )
        curves += curve_lines(scale=scale, **where)
    study = replicated(write_folder(tmp_path, rows, curves))["accumulation"]
    for kind in ("uniform", "heterogeneous"):  # planted against the heterogeneous one in both
        row = row_of(study, variant=kind, method="gram", profile="mean")
        shifted = 1.0 + jitter("5")
        assert [row["core"], row["retain"]] == pytest.approx(
            [(r + jitter("5")) / shifted for r in (0.9, 1.1)], abs=2e-4
        )
        assert pd.isna(row["core_low"])
    assert row_of(study, variant="uniform", method="baseline", profile="all")["core"] < 0.9
    assert any("heterogeneous" in fact for fact in study.record.facts)


def test_every_number_of_domains_has_its_own_baseline(tmp_path):
    rows, curves = [], []
    for number, domains, scale in (
        ("2", ("core", "lisp", "virology"), 6.0),
        ("10", ("core", "a", "b", "lisp"), 6.6),
    ):
        where = {"study": "aux_scaling", "variant": number, "size": "26M"}
        rows += baseline_rows(domains, scale=scale, **where)
        ratios = {"core": 0.9, **dict.fromkeys(domains[1:], 0.7)}
        rows += view_rows(
            "gram", f"core+{domains[1]}", ratios | {domains[1]: 0.9}, scale=scale, **where
        )
        curves += curve_lines(domains, scale=scale, **where)
    study = replicated(write_folder(tmp_path, rows, curves))["aux_scaling"]
    assert study.record.variants == ("2", "10")
    for number in ("2", "10"):
        require_values(
            row_of(study, variant=number, method="gram", profile="mean"),
            core=0.9,
            retain=0.9,
            forget=0.7,
        )
    assert set(study.analysis.fits["variant"]) == {"2", "10"}


@pytest.mark.parametrize("variant", ["", "1"])
def test_partial_labels_measure_all_against_the_only_baseline(tmp_path, variant):
    rows = baseline_rows(study="partial", variant=variant, size="400M")
    for share, method, forget in (
        ("1", "filtering", 0.54),
        ("0.5", "filtering", 0.85),
        ("0.5", "gram", 0.6),
    ):
        ratios = {"core": 0.95, "lisp": forget, "virology": forget}
        rows += view_rows(method, "core", ratios, study="partial", variant=share, size="400M")
    study = replicated(write_folder(tmp_path, rows, curve_lines(study="partial", size="400M")))[
        "partial_labels"
    ]
    require_values(
        row_of(study, variant="1", method="filtering", profile="core"), core=0.95, forget=0.54
    )
    require_values(
        row_of(study, variant="0.5", method="gram", profile="core"), core=0.95, forget=0.6
    )
    claims = study.claims[study.claims["claim"].str.match("Filtering .*half .*all")]
    assert claims["verdict"].tolist() == ["agree"]


def test_composability_has_every_subset(tmp_path):
    rows = [*baseline_rows(("core", "a", "b", "c"))]
    for retained in (
        "core",
        "core+a",
        "core+b",
        "core+c",
        "core+a+b",
        "a+c+core",
        "core+b+c",
        "a+b+c+core",
    ):
        ratios = {d: 0.9 if d in retained.split("+") else 0.5 for d in ("core", "a", "b", "c")}
        rows += view_rows("grmoe", retained, ratios, study="arbsub")
    study = replicated(write_folder(tmp_path, rows, curve_lines(("core", "a", "b", "c"))))[
        "composability"
    ]
    profiles = list(study.analysis.table.query("method == 'gram'")["profile"])
    assert profiles == [
        "core",
        "core+a",
        "core+b",
        "core+c",
        "core+a+b",
        "core+a+c",
        "core+b+c",
        "all",
        "mean",
    ]
    require_values(row_of(study, profile="core+a+b"), core=0.9, retain=0.9, forget=0.5)
    require_values(row_of(study, method="gram", profile="all"), core=0.9, retain=0.9)


def test_a_baseline_without_curves_takes_those_of_the_same_models(tmp_path):
    rows = [
        *scaling_rows(),
        *baseline_rows(study="mine"),
        *view_rows("gram", "core", {"core": 0.8}, study="mine"),
    ]
    studies = replicated(write_folder(tmp_path, rows, curve_lines()))
    require_values(row_of(studies["mine"], method="gram", profile="core"), core=0.8)
    assert any("50M" in fact and "scaling" in fact for fact in studies["mine"].record.facts)
    rows = [
        *scaling_rows(),
        *baseline_rows(study="mine", scale=7.0),
        *view_rows("gram", "core", {"core": 0.8}, study="mine"),
    ]
    missing = replicated(write_folder(tmp_path, rows, curve_lines()))["mine"].analysis.missing
    assert missing["what"].str.endswith("size 50M").any()


def test_published_points_stand_beside_under_our_names_of_domains(tmp_path):
    folder = write_folder(tmp_path, scaling_rows(), curve_lines())
    study = replicated(folder)["scaling"]
    theirs = study.published.set_index(["method", "size", "profile"])["retain"]
    rows = load_published("scaling").query(
        "method == 'gram' and size == '5B' and profile == 'core+papers-biology'"
    )
    assert theirs["gram", "5B", "core+virology"] == pytest.approx(rows["retain"].mean())
    assert study.record.parameters["5B"] > 4e9
    assert replicated(folder, is_beside=False)["scaling"].published is None


@pytest.mark.slow  # tests/paper/test_published.py is its quick relative
@NEEDS_FOLDER
def test_the_published_losses_give_the_printed_table_and_what_ships(tmp_path):
    studies = replicated(FOLDER)
    means = studies["stories"].analysis.table.query("profile == 'mean'").set_index("method")
    for theirs in read_printed("stories").to_dict("records"):
        row = means.loc[theirs["method"]]
        for name in CLASSES:
            half = (row[f"{name}_high"] - row[f"{name}_low"]) / 2.0
            given = (theirs[name], theirs[f"{name}_error"])
            assert (row[name], half) == pytest.approx(given, abs=6e-4), (theirs["method"], name)
    for shipped in load_published_studies():
        ours = studies[shipped.record.name].analysis.table
        both = shipped.analysis.table.merge(
            ours, on=["method", "size", "profile"], suffixes=("", "_ours")
        )
        assert set(both["size"]) == set(ours["size"])
        for name in (name + end for name in CLASSES for end in ("", "_low", "_high")):
            assert both[name].to_numpy() == pytest.approx(
                both[f"{name}_ours"].to_numpy(), abs=1e-4, nan_ok=True
            )
    assert any("800M" in fact and "scaling" in fact for fact in studies["dual_use"].record.facts)
    notes = set(studies["scaling"].analysis.missing["what"])
    assert {"2B", "5B"} <= {note.split()[-1] for note in notes}


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", DOCS.read_text(), flags=re.S)


def test_the_documented_commands_write_what_the_page_says(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "my_results", scaling_rows(), curve_lines())
    commands = re.findall(r"^    gram (replicate.*?)(?: +#.*)?$", DOCS.read_text(), flags=re.M)
    assert len(commands) == 4
    for command in commands:
        main(command.split())
    out = capsys.readouterr().out
    assert "0.950 [0.916, 0.984]" in out
    assert "published" in out
    for place, name in (
        ("replication", "scaling"),
        ("pages", "scaling"),
        ("replication", "stories"),
    ):
        files = {path.name for path in (tmp_path / place / "studies" / name).iterdir()}
        tables = {"table.csv", "per_seed.csv", "claims.csv"}
        assert files - {"history", "hashes.json"} == {
            "report.html",
            "study.json",
            "card.svg",
            *tables,
        }
        require_links_lead_somewhere(tmp_path / place / "site")
    (scaling,) = [
        one for one in read_shown(Store(tmp_path / "pages"))[0] if "scaling" in one.report
    ]
    assert scaling.card.headline.startswith("GRAM (3 seeds) at 50M, profile core+virology.")
    assert "Yes: GRAM's retain is 0.35 \u00b1 0.00 above its forget." in scaling.card.headline
    assert scaling.verdicts
    table = pd.read_csv(tmp_path / "pages" / "studies" / "scaling" / "table.csv")
    gram = table.query("method == 'gram' and profile == 'core+virology'").iloc[0]
    assert gram[["core", "retain", "forget", "elicited"]].tolist() == pytest.approx(
        [0.9, 0.95, 0.6, 0.8], abs=2e-4
    )


def test_the_documented_files_are_read(tmp_path):
    (losses,), (curve, studies) = blocks("csv"), blocks("json")
    (tmp_path / "losses.csv").write_text(
        losses + losses.splitlines()[4].replace("scaling", "widths") + "\n"
    )
    (tmp_path / "curves.jsonl").write_text(curve)
    (tmp_path / "studies.json").write_text(studies)
    external = read_external(tmp_path)
    assert len(external.losses) == 8
    assert external.declared == json.loads(studies)
    assert [p.record.name for p in prepare(external)] == ["scaling", "widths"]
    assert all(name in DOCS.read_text() for name in read_known_studies())


def test_a_bad_folder_is_an_error_that_writes_nothing(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["replicate", str(tmp_path / "none"), "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert "losses.csv" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("is_published", [True, False])
def test_an_unwritable_place_is_an_error_before_any_fit(
    tmp_path, capsys, monkeypatch, is_published
):
    monkeypatch.setattr(reports, "replicate", None)
    monkeypatch.setattr(reports, "load_published_studies", None)
    folder = [] if is_published else [str(write_folder(tmp_path, scaling_rows(), curve_lines()))]
    with pytest.raises(SystemExit) as stop:
        main(["replicate", *folder, "--out", "/proc/pages"])
    assert stop.value.code == 2
    assert "--out /proc/pages: " in capsys.readouterr().err
