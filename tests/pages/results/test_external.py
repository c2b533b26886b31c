"""A folder of losses measured elsewhere: every bad file is refused by its row and field, before any fit."""

import json
import math
import re

import pytest

from gram_platform.pages.results.external import read_external
from gram_platform.pages.results.replication import prepare, replicate
from tests.external_folder import baseline_rows, curve_lines, scaling_rows, view_rows, write_folder

ROWS, CURVES = scaling_rows(), curve_lines()


def changed(place: int, **cells) -> list[dict]:
    """The good rows with cells of one changed."""
    return [row | cells if i == place else row for i, row in enumerate(ROWS)]


def refusal(folder) -> str:
    with pytest.raises(ValueError, match="expected") as error:
        prepare(read_external(folder))
    return str(error.value)


def test_names_of_the_authors_are_ours_and_numbers_have_one_spelling(tmp_path):
    rows = [
        *baseline_rows(study="auxnum", variant="4.0"),
        *view_rows("grmoe", "core", {"core": 0.9}, study="auxnum", variant="4"),
    ]
    curves = [line | {"seed": int(line["seed"])} for line in curve_lines(study="aux_scaling", variant=4)]
    external = read_external(write_folder(tmp_path, rows, curves))
    assert set(external.losses["study"]) == set(external.curves["study"]) == {"aux_scaling"}
    assert set(external.losses["variant"]) == set(external.curves["variant"]) == {"4"}
    assert set(external.losses["seed"]) == set(external.curves["seed"]) == {"1", "2", "3"}
    assert list(dict.fromkeys(external.losses["method"])) == ["baseline", "gram"]


SPELLINGS = [  # (in losses.csv, in curves.jsonl, its one name)
    ("20240101.0", 20240101, "20240101"),
    ("20240101", 20240101.0, "20240101"),
    ("20240101", "20240101.000", "20240101"),
    ("1e6", 1000000, "1000000"),
    ("1000000", 1e6, "1000000"),
    ("0", 0, "0"),
    ("0.0", "-0", "0"),
    ("007", 7, "7"),
    ("-3.0", -3, "-3"),
    ("20240101123456789012", 20240101123456789012, "20240101123456789012"),
    ("seed-a", "seed-a", "seed-a"),
    ("\u00b2", "\u00b2", "\u00b2"),
]


@pytest.mark.parametrize(("in_losses", "in_curves", "name"), SPELLINGS)
def test_a_seed_has_one_name_in_both_files(tmp_path, in_losses, in_curves, name):
    rows = [row | {"seed": in_losses} if row["seed"] == "1" else row for row in ROWS]
    curves = [line | {"seed": in_curves} if line["seed"] == "1" else line for line in CURVES]
    external = read_external(write_folder(tmp_path, rows, curves))
    assert set(external.losses["seed"]) == set(external.curves["seed"]) == {name, "2", "3"}


def test_seeds_of_two_spellings_are_compared(tmp_path):
    rows = [row | {"seed": f"{row['seed']}.0"} for row in ROWS]
    (study,) = prepare(read_external(write_folder(tmp_path, rows, CURVES)))
    assert replicate(study).analysis.table["num_seeds"].max() == 3


def test_long_seeds_stay_apart(tmp_path):
    """They would be one number as floats."""
    rows = [row | {"seed": f"2024010112345678901{row['seed']}"} for row in ROWS]
    assert len(set(read_external(write_folder(tmp_path, rows, [])).losses["seed"])) == 3


def test_line_ends_marks_and_texts_of_other_programs_are_read(tmp_path):
    """A byte-order mark, line ends of other systems, and U+2028 or a next-line character within a text."""
    plain = read_external(write_folder(tmp_path / "plain", ROWS, CURVES))
    folder = write_folder(tmp_path / "other", ROWS, CURVES)
    losses = (folder / "losses.csv").read_text()
    lines = [json.dumps(line | {"note": "a\u2028b\x85c"}, ensure_ascii=False) for line in CURVES]
    for end in ("\n", "\r\n", "\r"):
        (folder / "losses.csv").write_bytes(("\ufeff" + losses.replace("\n", end)).encode())
        (folder / "curves.jsonl").write_bytes(("\ufeff" + end.join(lines)).encode())
        found = read_external(folder)
        assert found.losses.equals(plain.losses)
        assert found.curves.equals(plain.curves)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"seed": ""}, "row 14, seed='': "),
        ({"seed": "NaN"}, "row 14, seed='NaN': "),
        ({"seed": "-inf"}, "row 14, seed='-inf': "),
        ({"seed": "1,000"}, "row 14, seed='1,000': "),
        ({"seed": "1.5"}, "row 14, seed='1.5': "),
        ({"loss": "1,234.5"}, "row 14, loss='1,234.5': "),
        ({"study": "javascript:x"}, "row 14, study='javascript:x': "),
        ({"study": 'x" y'}, """row 14, study='x" y': """),
        ({"loss": ""}, "row 14, loss='': "),
        ({"retained": " "}, "row 14, retained='': "),
        ({"loss": "nan"}, "row 14, loss='nan': "),
        ({"loss": "inf"}, "row 14, loss='inf': "),
        ({"loss": "-2.5"}, "row 14, loss='-2.5': "),
        ({"loss": "0"}, "row 14, loss='0': "),
        ({"loss": "2,5"}, "row 14, loss='2,5': "),
        ({"elicited": "2"}, "row 14, elicited='2': expected 1 "),
        ({"method": "grmo"}, "row 14, method='grmo': "),
        ({"size": "big"}, "row 14, size='big': "),
        ({"study": "a/b"}, "row 14, study='a/b': "),
        (
            {"domain": "virolgy"},
            "row 14, domain='virolgy': ",
        ),
        (
            {"retained": "core+virolgy"},
            "row 14, retained='virolgy': ",
        ),
        ({"retained": "core++lisp"}, "row 14, retained='core++lisp': "),
    ],
)
def test_a_bad_loss_names_row_and_field(tmp_path, cells, said):
    assert said in refusal(write_folder(tmp_path, changed(12, **cells), CURVES))


def test_a_doubled_row_names_both(tmp_path):
    said = refusal(write_folder(tmp_path, [*ROWS, ROWS[10]], CURVES))
    assert f"losses.csv, row {len(ROWS) + 2}=" in said
    assert re.search(r"\bgram\b.* 50M\b.* 1\b.* row 12\b", said)


def test_a_view_without_core_and_one_with_it_are_one_profile_and_may_not_both_be_there(tmp_path):
    both = view_rows("demix", "virology", {"core": 0.2}) + view_rows("demix", "core+virology", {"core": 0.9})
    assert "row 32" in refusal(write_folder(tmp_path, [*ROWS, *both], CURVES))


def line_with(**cells) -> list[dict]:
    return [line | cells if i == 4 else line for i, line in enumerate(CURVES)]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"steps": [1, 2], "losses": [3, 2]}, "row 5, steps='2 points': expected "),
        ({"steps": [1, 2, 3, 4], "losses": [5, 4, 3]}, "row 5, losses='3 points': "),
        (
            {"steps": [1, 2, 3], "losses": [5, math.nan, 3]},
            "row 5, losses=nan: ",
        ),
        ({"steps": [1, 3, 2], "losses": [5, 4, 3]}, "row 5, steps='steps out of order': expected"),
        ({"steps": [1, True, 2], "losses": [5, 4, 3]}, "row 5, steps=True: expected"),
        ({"losses": "5 4 3"}, "row 5, losses='str': "),
        ({"study": "scalng"}, "row 5, study='scalng': "),
        ({"domain": "virolgy"}, "row 5, domain='virolgy': "),
        ({"seed": ""}, "row 5, seed='': "),
        ({"seed": None}, "row 5, seed=None: "),
        ({"seed": True}, "row 5, seed=True: "),
        ({"seed": math.nan}, "row 5, seed='nan': "),
        ({"seed": {"a": 1}}, "row 5, seed={'a': 1}: "),
        ({"size": 50}, "row 5, size='50': "),
        ({"losses": [5, 10**400, 3], "steps": [1, 2, 3]}, "row 5, losses=1000"),
        ({"seed": "1"}, "row 5='study scaling, size 50M, seed 1, domain lisp': "),
    ],
)
def test_a_bad_curve_names_row_and_field(tmp_path, cells, said):
    assert f"curves.jsonl, {said}" in refusal(write_folder(tmp_path, ROWS, line_with(**cells)))


def test_a_line_that_is_no_json_is_named(tmp_path):
    folder = write_folder(tmp_path, ROWS, CURVES)
    path = folder / "curves.jsonl"
    path.write_text(path.read_text() + "{'study'\n")
    assert f"curves.jsonl, row {len(CURVES) + 1}=" in refusal(folder)
    path.write_text("[" * 100_000 + "\n")
    assert "curves.jsonl, row 1='[[[[" in refusal(folder)
    path.write_text('{"seed": ' + "1" * 5_000 + "}\n")
    assert "curves.jsonl, row 1=" in refusal(folder)
    path.write_text("[1, 2]\n")
    assert "curves.jsonl, row 1='[1, 2]': " in refusal(folder)


def test_missing_files_columns_and_cells_are_named(tmp_path):
    folder = write_folder(tmp_path, ROWS, CURVES)
    (folder / "curves.jsonl").unlink()
    assert "curves.jsonl" in refusal(folder)
    (folder / "losses.csv").write_text("study,method,size,retained,domain,elicited,loss\n")
    (folder / "curves.jsonl").write_text("")
    assert re.search(r"losses.csv, row 1=.* seed", refusal(folder))
    header = "study,method,size,seed,retained,domain,elicited,loss\n"
    (folder / "losses.csv").write_text(header)
    assert "losses.csv='no rows'" in refusal(folder)
    (folder / "losses.csv").write_text(header.replace(",", ";"))
    assert "losses.csv, row 1=" in refusal(folder)
    (folder / "losses.csv").write_text(header.replace("loss", "loss,loss"))
    assert "losses.csv, row 1=" in refusal(folder)
    (folder / "losses.csv").write_text("")
    assert "losses.csv, row 1='': " in refusal(folder)
    (folder / "losses.csv").write_text(header + "scaling,base,50M,1,core,core,0\n")
    assert "losses.csv, row 2=" in refusal(folder)
    assert "losses.csv" in refusal(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("studies", "said"),
    [
        ({"scalng": {}}, "studies.json='scalng': "),
        (
            {"scaling": {"units": "a"}},
            "studies.json, scaling, units='a': ",
        ),
        (
            {"scaling": {"own_baseline": "yes"}},
            "studies.json, scaling, own_baseline='yes': ",
        ),
        ({"scaling": {"varies": "method"}}, "studies.json, scaling, varies='method': expected"),
        *(({"scaling": {"varies": name}}, f"varies='{name}': expected") for name in ("class", "compute_ratio", "low")),
        ({"scaling": {"profile": "core+x"}}, "studies.json, scaling, profile='core+x': "),
        ({"scaling": {"baseline_from": "x"}}, "studies.json, scaling, baseline_from='x': "),
        ({"scaling": {"compare_with": "x"}}, "studies.json, scaling, compare_with='x': "),
        ({"scaling": 3}, "studies.json, scaling=3: expected an object"),
    ],
)
def test_a_bad_declaration_is_named(tmp_path, studies, said):
    assert said in refusal(write_folder(tmp_path, ROWS, CURVES, studies))


def test_an_absent_or_ambiguous_baseline_names_study_and_size(tmp_path):
    own = view_rows("gram", "core", {"core": 0.9}, study="mine", size="100M")
    assert re.search("mine, .*100M': expected", refusal(write_folder(tmp_path, [*ROWS, *own], CURVES)))
    lenders = [*baseline_rows(study="stories", size="100M"), *baseline_rows(study="scaling", size="100M")]
    curves = [*curve_lines(study="stories", size="100M"), *curve_lines(size="100M")]
    said = refusal(write_folder(tmp_path, [*own, *lenders], curves))
    assert re.search("mine, .*100M", said)
    assert "stories, scaling" in said
    prepare(read_external(write_folder(tmp_path, [*own, *lenders], curves, {"mine": {"baseline_from": "stories"}})))


def test_a_variant_with_several_baselines_to_choose_from_is_named(tmp_path):
    rows = [row for v in ("a", "b") for row in baseline_rows(study="mine", variant=v)]
    rows += view_rows("gram", "core", {"core": 0.9}, study="mine", variant="c")
    curves = [line for v in ("a", "b") for line in curve_lines(study="mine", variant=v)]
    said = refusal(write_folder(tmp_path, rows, curves))
    assert re.search(r"mine, .*50M, .*\bc\b", said)
    assert " a, b" in said
    prepare(read_external(write_folder(tmp_path, rows, curves, {"mine": {"unit": "a"}})))


def test_the_declarations_are_json_with_a_text_that_stays_as_it_is(tmp_path):
    folder = write_folder(tmp_path, ROWS, CURVES, {"scaling": {"title": "Two  blanks"}})
    assert json.loads((folder / "studies.json").read_text())["scaling"]["title"] == "Two  blanks"
    assert prepare(read_external(folder))[0].record.title == "Two  blanks"
