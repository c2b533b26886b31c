"""Values that people write in TOML: types, defaults, and errors that name file, line and field."""

import tomllib
from dataclasses import dataclass, field

import pytest

from gram_platform.config.identity import InvalidField, invalid
from gram_platform.config.written import Written, assignments, read_assignment, read_toml, together
from tests.refused import refused


@dataclass(frozen=True)
class Wheel:
    radius: float
    spokes: int = 20

    def __post_init__(self) -> None:
        if self.radius <= 0:
            raise invalid("wheel.radius", self.radius, "a number above 0")


@dataclass(frozen=True)
class Bike:
    name: str
    front: Wheel
    spare: Wheel | None = None
    gears: tuple[int, ...] = ()
    factors: tuple[tuple[str, float], ...] = ()
    span: tuple[float, float] = (0.0, 1.0)
    wheels: dict[str, Wheel] = field(default_factory=dict)
    rows: tuple[Wheel, ...] = ()
    has_bell: bool = True


def document(tmp_path, text: str) -> Written:
    path = tmp_path / "bike.toml"
    path.write_text(text)
    return read_toml("bike", path)


def test_tables_arrays_and_pairs_become_dataclasses(tmp_path):
    text = """
name = "red"
gears = [1, 2]
span = [0, 2]
has_bell = false
factors = {lisp = 4, "a.b" = 0.5}
front = {radius = 3}
[[rows]]
radius = 1
[[rows]]
radius = 2.5
spokes = 4
[wheels."0.6M"]
radius = 7
"""
    bike = document(tmp_path, text).build(Bike)
    assert bike == Bike(
        "red",
        Wheel(3.0),
        None,
        (1, 2),
        (("lisp", 4.0), ("a.b", 0.5)),
        (0.0, 2.0),
        {"0.6M": Wheel(7.0)},
        (Wheel(1.0), Wheel(2.5, 4)),
        False,
    )
    assert isinstance(bike.front.radius, float)


def test_a_table_changes_what_it_names_and_false_is_none(tmp_path):
    start = Bike("red", Wheel(3.0, 5), spare=Wheel(1.0))
    changed = document(tmp_path, "spare = false\n[front]\nradius = 4\n").build(Bike, start)
    assert changed == Bike("red", Wheel(4.0, 5))
    assert document(tmp_path, "[spare]\nspokes = 7\n").build(Bike, start).spare == Wheel(1.0, 7)
    assert document(tmp_path, "").build(Bike, start) == start


WRONG = {
    "name = 1\n\n[front]\nradius = 1": (1, "name", 1),
    "name = 'a'\n\n[front]\n# a note\nradius = -1": (5, "wheel.radius", -1.0),
    "name = 'a'\n[front]\nradius = true": (3, "front.radius", True),
    "name = 'a'\n[front]\nradius = 1\nspoke = 3": (4, "front.spoke", 3),
    "name = 'a'\n[front]\nspokes = 3": (2, "front", {"spokes": 3}),
    "name = 'a'\nfront = {radius = 0}": (2, "wheel.radius", 0.0),
    "name = 'a'\ngears = [1, 2.5]\nfront.radius = 2": (2, "gears[1]", 2.5),
    "name = 'a'\nfront.radius = 2\nspan = [1]": (3, "span", [1]),
    "name = 'a'\nfront.radius = 2\n[[rows]]\nradius = 1\n[[rows]]\nradius = -3": (
        6,
        "wheel.radius",
        -3.0,
    ),
    "name = 'a'\nfront.radius = 2\n[wheels.\"0.6M\"]\nradius = ''": (4, "wheels[0.6M].radius", ""),
}


@pytest.mark.parametrize("text", WRONG)
def test_an_error_names_file_line_and_field(text, tmp_path):
    line, field_name, value = WRONG[text]
    with pytest.raises(InvalidField) as caught:
        document(tmp_path, text).build(Bike)
    error = caught.value
    assert (error.place, error.field, error.value) == (
        f"{tmp_path}/bike.toml, line {line}",
        field_name,
        value,
    )


def test_a_file_that_is_not_toml(tmp_path):
    with pytest.raises(ValueError, match=r"bike\.toml.*line 2"):
        document(tmp_path, "name = 'a'\nfront =\n")
    with refused("bike", str(tmp_path / "nothing.toml")):
        read_toml("bike", tmp_path / "nothing.toml")


def test_assignments_say_the_same_as_the_document(tmp_path):
    text = "name = 'a \"b\"'\nfactors = [['x', 1e-5]]\nhas_bell = false\n"
    text += '[wheels."0.6M"]\nradius = 7\n[front]\nradius = 2\n'
    written = document(tmp_path, text)
    built = Bike("b", Wheel(1.0))
    for one in assignments(written.plain):
        found = read_assignment(one)
        assert found.place == f"--set {one}"
        built = found.build(Bike, built)
    assert built == written.build(Bike, Bike("b", Wheel(1.0)))
    assert "wheels[0.6M].radius=7" in assignments(tomllib.loads(text))


@pytest.mark.parametrize(
    "text", ["\n### Response:\n", "a\tb\r\x00", 'say "b"', "a\\nb\\", "\\\x7f", "\u2028 é 😀"]
)
def test_a_text_of_an_assignment_is_the_same_after_a_round_trip(text):
    (one,) = assignments({"name": text})
    assert read_assignment(one).plain == {"name": text}


@pytest.mark.parametrize(
    "value", [("2e-3", 2e-3), (".5", 0.5), ("7", 7), ("word", "word"), ("[1, 2]", [1, 2])]
)
def test_values_of_an_assignment(value):
    text, found = value
    assert read_assignment(f"sizes[0.6M].peak_lr={text}").plain == {
        "sizes": {"0.6M": {"peak_lr": found}}
    }


@pytest.mark.parametrize("text", ["peak_lr", "=3", "a..b=3", "a b=3", "sizes[x=1"])
def test_a_text_that_assigns_nothing(text):
    with refused("set", text):
        read_assignment(text)


def test_of_several_places_the_last_one_counts_and_is_named(tmp_path):
    first = document(tmp_path, "name = 'a'\n[front]\nradius = 1\nspokes = 5\n")
    parts = [first, read_assignment("front.radius=2"), read_assignment("wheels.x.radius=3")]
    assert together(parts).build(Bike) == Bike("a", Wheel(2.0, 5), wheels={"x": Wheel(3.0)})
    with pytest.raises(InvalidField) as caught:
        together([*parts, read_assignment("front.radius=-2")]).build(Bike)
    assert (caught.value.place, caught.value.value) == ("--set front.radius=-2", -2.0)
    with pytest.raises(InvalidField) as caught:
        together(
            [document(tmp_path, "name = 'a'\n[front]\nradius = 1\nspokes = 'no'"), *parts[1:]]
        ).build(Bike)
    assert (caught.value.place, caught.value.value) == (f"{tmp_path}/bike.toml, line 4", "no")
