"""A folder of losses measured elsewhere: every bad file is refused by its row and field, before any
fit."""

import json
import math

import pytest

from gram_platform.config.identity import InvalidField
from gram_platform.pages.results.external import read_external
from gram_platform.pages.results.replication import prepare
from tests.external_folder import baseline_rows, curve_lines, scaling_rows, view_rows, write_folder

ROWS, CURVES = scaling_rows(), curve_lines()


def changed(place: int, **cells) -> list[dict]:
    """The good rows with cells of one changed."""
    return [row | cells if i == place else row for i, row in enumerate(ROWS)]


def refusal(folder) -> tuple[str, object]:
    """The field and the value for which the folder is refused."""
    with pytest.raises(InvalidField) as error:
        prepare(read_external(folder))
    return error.value.field, error.value.value


def test_names_of_the_authors_are_ours_and_numbers_have_one_spelling(tmp_path):
    rows = [
        *baseline_rows(study="auxnum", variant="4.0"),
        *view_rows("grmoe", "core", {"core": 0.9}, study="auxnum", variant="4"),
    ]
    curves = [
        line | {"seed": int(line["seed"])} for line in curve_lines(study="aux_scaling", variant=4)
    ]
    external = read_external(write_folder(tmp_path, rows, curves))
    assert set(external.losses["study"]) == set(external.curves["study"]) == {"aux_scaling"}
    assert set(external.losses["variant"]) == set(external.curves["variant"]) == {"4"}
    assert set(external.losses["seed"]) == set(external.curves["seed"]) == {"1", "2", "3"}
    assert list(dict.fromkeys(external.losses["method"])) == ["baseline", "gram"]


SPELLINGS = [  # (in losses.csv, in curves.jsonl, its one name)
    ("20240101.0", 20240101, "20240101"),
    ("-1", -1.0, "-1"),
    ("0.0", "-0", "0"),
    # These are names, such as the beginnings of hashes.
    ("1e5", "1e5", "1e5"),
    ("007", "007", "007"),
    ("1_0", "1_0", "1_0"),
    ("\u0661\u0662", "\u0661\u0662", "\u0661\u0662"),
    ("20240101123456789012", 20240101123456789012, "20240101123456789012"),
    ("seed-a", "seed-a", "seed-a"),
]


@pytest.mark.parametrize(("in_losses", "in_curves", "name"), SPELLINGS)
def test_a_seed_has_one_name_in_both_files(tmp_path, in_losses, in_curves, name):
    rows = [row | {"seed": in_losses} if row["seed"] == "1" else row for row in ROWS]
    curves = [line | {"seed": in_curves} if line["seed"] == "1" else line for line in CURVES]
    external = read_external(write_folder(tmp_path, rows, curves))
    assert set(external.losses["seed"]) == set(external.curves["seed"]) == {name, "2", "3"}


@pytest.mark.parametrize("spellings", [("600K", "0.6M", "0.6m", "600000"), ("0.7M", "700k", "7e5")])
def test_spellings_of_one_size_are_one_size(tmp_path, spellings):
    """The name of a size of ours, else the first spelling."""
    rows = [row | {"size": spellings[i % len(spellings)]} for i, row in enumerate(ROWS)]
    curves = [line | {"size": spellings[-i % len(spellings)]} for i, line in enumerate(CURVES)]
    external = read_external(write_folder(tmp_path, rows, curves))
    assert set(external.losses["size"]) == set(external.curves["size"])
    assert set(external.losses["size"]) == {"0.6M" if "0.6M" in spellings else spellings[0]}
    [study] = prepare(external)
    assert len(study.record.sizes) == 1


def test_a_number_of_parameters_is_a_size(tmp_path):
    rows, curves = [row | {"size": "1234567.0"} for row in ROWS], curve_lines(size=1234567)
    folder = write_folder(tmp_path, rows, curves)
    [study] = prepare(read_external(folder))
    assert study.record.parameters == {"1.234567M": 1234567.0}


def test_columns_without_a_name_and_long_cells_are_left_out(tmp_path):
    """An index, a comma at the end of each row, or of those below the header alone."""
    plain = read_external(write_folder(tmp_path / "plain", ROWS, CURVES)).losses
    folder = write_folder(tmp_path / "other", ROWS, CURVES)
    header, *lines = (folder / "losses.csv").read_text().splitlines()
    indexed = ["," + header, *(f"{place},{line}" for place, line in enumerate(lines))]
    for table in (
        indexed,
        [header + ",", *(line + "," for line in lines)],
        [header, *(line + ",," for line in lines)],
        [header + ",", *lines],
        [line + "," for line in indexed],
        [header.replace(",", " , "), *lines],
        [header + ",note,note", *(line + ",a,b" for line in lines)],
        [header + ",note", *(line + ",x" for line in lines[:-1]), lines[-1] + "," + "x" * 200_000],
    ):
        (folder / "losses.csv").write_text("\n".join(table))
        assert read_external(folder).losses.equals(plain)
    (folder / "losses.csv").write_text("\n".join([header, *lines, lines[-1] + ",x"]))
    assert refusal(folder)[0] == f"losses.csv, row {len(lines) + 2}"


def test_long_seeds_stay_apart(tmp_path):
    """They would be one number as floats."""
    rows = [row | {"seed": f"2024010112345678901{row['seed']}"} for row in ROWS]
    assert len(set(read_external(write_folder(tmp_path, rows, [])).losses["seed"])) == 3


def test_line_ends_marks_and_texts_of_other_programs_are_read(tmp_path):
    """A byte-order mark, line ends of other systems, and U+2028 or a next-line character within a
    text."""
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
    ("name", "cell"),
    [
        ("seed", ""),
        ("seed", "NaN"),
        ("loss", "nan"),
        ("loss", "-2.5"),
        ("loss", "1,234.5"),
        ("loss", "1_0"),
        ("retained", "core++lisp"),
        ("retained", "core+virolgy"),
        ("domain", "virolgy"),
        ("elicited", "2"),
        ("method", "grmo"),
        ("size", "big"),
        ("size", "0M"),
        ("size", "9" * 400 + "M"),
        ("study", "a/b"),
        ("study", "javascript:x"),
        ("study", 'x" y'),
    ],
)
def test_a_bad_loss_names_row_and_field(tmp_path, name, cell):
    field, value = refusal(write_folder(tmp_path, changed(12, **{name: cell}), CURVES))
    assert field == f"losses.csv, row 14, {name}"
    assert value in (cell.strip(), cell.rpartition("+")[2])


def test_a_circle_of_links_is_no_folder(tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    assert refusal(tmp_path / "circle") == ("folder", str(tmp_path / "circle"))


def test_a_doubled_row_names_both(tmp_path):
    assert (
        refusal(write_folder(tmp_path, [*ROWS, ROWS[10]], CURVES))[0]
        == f"losses.csv, row {len(ROWS) + 2}"
    )


def test_a_view_without_core_and_one_with_it_are_one_profile_and_may_not_both_be_there(tmp_path):
    both = view_rows("demix", "virology", {"core": 0.2}) + view_rows(
        "demix", "core+virology", {"core": 0.9}
    )
    assert (
        refusal(write_folder(tmp_path, [*ROWS, *both], CURVES))[0]
        == f"losses.csv, row {len(ROWS) + 5}"
    )


def line_with(**cells) -> list[dict]:
    return [line | cells if i == 4 else line for i, line in enumerate(CURVES)]


@pytest.mark.parametrize(
    ("cells", "field"),
    [
        ({"steps": [1, 2], "losses": [3, 2]}, "steps"),
        ({"steps": [1, 2, 3, 4], "losses": [5, 4, 3]}, "losses"),
        ({"steps": [1, 2, 3], "losses": [5, math.nan, 3]}, "losses"),
        ({"steps": [1, 2, 3], "losses": [5, 10**400, 3]}, "losses"),
        ({"steps": [1, 3, 2], "losses": [5, 4, 3]}, "steps"),
        ({"steps": [1, True, 2], "losses": [5, 4, 3]}, "steps"),
        ({"losses": "5 4 3"}, "losses"),
        ({"study": "scalng"}, "study"),
        ({"domain": "virolgy"}, "domain"),
        ({"seed": None}, "seed"),
        ({"seed": True}, "seed"),
        ({"seed": {"a": 1}}, "seed"),
        ({"size": 50}, "size"),
    ],
)
def test_a_bad_curve_names_row_and_field(tmp_path, cells, field):
    assert (
        refusal(write_folder(tmp_path, ROWS, line_with(**cells)))[0]
        == f"curves.jsonl, row 5, {field}"
    )


def test_a_doubled_curve_names_its_row(tmp_path):
    assert refusal(write_folder(tmp_path, ROWS, line_with(seed="1")))[0] == "curves.jsonl, row 5"


def test_a_line_that_is_no_json_is_named(tmp_path):
    folder = write_folder(tmp_path, ROWS, CURVES)
    path = folder / "curves.jsonl"
    path.write_text(path.read_text() + "{'study'\n")
    assert refusal(folder)[0] == f"curves.jsonl, row {len(CURVES) + 1}"
    for line in ("[" * 100_000, '{"seed": ' + "1" * 5_000 + "}", "[1, 2]", '{"note": "\\ud800"}'):
        path.write_text(line + "\n")
        assert refusal(folder)[0] == "curves.jsonl, row 1"


def test_missing_files_columns_and_cells_are_named(tmp_path):
    folder, header = (
        write_folder(tmp_path, ROWS, CURVES),
        "study,method,size,seed,retained,domain,elicited,loss\n",
    )
    (folder / "curves.jsonl").unlink()
    assert refusal(folder) == ("folder", str(folder))
    (folder / "curves.jsonl").write_text("")
    for text, field in (
        (header.replace(",seed", ""), "losses.csv, row 1"),
        (header, "losses.csv"),
        (header.replace(",", ";"), "losses.csv, row 1"),
        (header.replace("loss", "loss,loss"), "losses.csv, row 1"),
        ("", "losses.csv, row 1"),
        (header + "scaling,base,50M,1,core,core,0\n", "losses.csv, row 2"),
    ):
        (folder / "losses.csv").write_text(text)
        assert refusal(folder)[0] == field
    assert refusal(tmp_path / "nowhere")[0] == "folder"


@pytest.mark.parametrize(
    ("study", "field"),
    [
        ({"units": "a"}, "units"),
        ({"own_baseline": "yes"}, "own_baseline"),
        ({"varies": "method"}, "varies"),
        ({"profile": "core+x"}, "profile"),
        ({"unit": "64"}, "unit"),
        ({"baseline_from": "x"}, "baseline_from"),
        ({"compare_with": "x"}, "compare_with"),
    ],
)
def test_a_bad_declaration_is_named(tmp_path, study, field):
    found = refusal(write_folder(tmp_path, ROWS, CURVES, {"scaling": study}))
    assert found == (f"studies.json, scaling, {field}", study[field])


def test_declarations_of_no_study_and_of_another_type_are_named(tmp_path):
    assert refusal(write_folder(tmp_path / "a", ROWS, CURVES, {"scalng": {}})) == (
        "studies.json",
        "scalng",
    )
    assert refusal(write_folder(tmp_path / "b", ROWS, CURVES, {"scaling": 3})) == (
        "studies.json, scaling",
        3,
    )


def test_an_absent_or_ambiguous_baseline_names_study_and_size(tmp_path):
    own = view_rows("gram", "core", {"core": 0.9}, study="mine", size="100M")
    assert "mine" in (said := str(refusal(write_folder(tmp_path, [*ROWS, *own], CURVES))))
    assert "100M" in said
    lenders = [
        *baseline_rows(study="stories", size="100M"),
        *baseline_rows(study="scaling", size="100M"),
    ]
    curves = [*curve_lines(study="stories", size="100M"), *curve_lines(size="100M")]
    assert "mine" in str(refusal(write_folder(tmp_path, [*own, *lenders], curves)))
    prepare(
        read_external(
            write_folder(tmp_path, [*own, *lenders], curves, {"mine": {"baseline_from": "stories"}})
        )
    )


def test_a_variant_with_several_baselines_to_choose_from_is_named(tmp_path):
    rows = [row for v in ("a", "b") for row in baseline_rows(study="mine", variant=v)]
    rows += view_rows("gram", "core", {"core": 0.9}, study="mine", variant="c")
    curves = [line for v in ("a", "b") for line in curve_lines(study="mine", variant=v)]
    _, value = refusal(write_folder(tmp_path, rows, curves))
    assert {"mine,", "50M,", "c"} <= set(str(value).split())
    prepare(read_external(write_folder(tmp_path, rows, curves, {"mine": {"unit": "a"}})))


@pytest.mark.timeout(60)
def test_a_long_table_takes_a_time_in_line_with_its_length(tmp_path):
    rows = [row | {"seed": str(seed)} for seed in range(1500) for row in baseline_rows(seeds=["1"])]
    [study] = prepare(read_external(write_folder(tmp_path, rows, CURVES)))
    assert len(study.losses.evaluations) == 1500
