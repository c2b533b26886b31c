"""Reads and validates a folder of losses and learning curves that were measured elsewhere.

`docs/replicate.md` defines the format. Error messages name the file, row and field. Row 1 is the
header.
"""

import csv
import io
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pandas as pd

from gram_platform.analysis.compute_ratio import MIN_POINTS
from gram_platform.analysis.ratios import ELICITED
from gram_platform.config import CORE
from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import (
    InvalidField,
    invalid,
    local_path,
    require_name,
    suggest,
)
from gram_platform.config.ladder import (
    DEMO_SIZES,
    GRID_DEMO_SIZES,
    PAPER_SIZES,
    SMOKE_SIZES,
    STORIES_SIZES,
)
from gram_platform.config.plain import parse_json
from gram_platform.config.written import MAX_RECORD_BYTES, read_text, target_kind
from gram_platform.methods import METHODS, size_key
from gram_platform.methods.nodes import BASELINE, VARIANT
from gram_platform.store.files import safe_name

LOSSES_FILE, CURVES_FILE, STUDIES_FILE = "losses.csv", "curves.jsonl", "studies.json"
REQUIRED_COLUMNS = ("study", "method", "size", "seed", "retained", "domain", ELICITED, "loss")
CURVE_KEYS = ("study", "size", "seed", "domain", "steps", "losses")
VIEW_AND_DOMAIN = ["study", VARIANT, "method", "size", "seed", "retained", "domain", ELICITED]
LOSS_COLUMNS = ["row", *VIEW_AND_DOMAIN, "loss"]
CURVE_OF = ["study", VARIANT, "size", "seed", "domain"]
OUTSIDE_CURVE_COLUMNS = ["row", *CURVE_OF, "step", "loss"]
FLAGS = {"0": False, "1": True, "False": False, "True": True}
# Other texts and larger numbers are names. Some programs write 1 as 1.0 in columns with gaps.
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
SEED = re.compile(r"-?(0|[1-9]\d{0,39})(\.0*)?", re.ASCII)
MOST_NUMBER = 10**40
# Texts that programs write for a missing value.
NO_NUMBERS = ("nan", "inf", "infinity", "null", "none", "na", "n/a", "<na>")
KNOWN_SIZES = {**SMOKE_SIZES, **GRID_DEMO_SIZES, **DEMO_SIZES, **STORIES_SIZES, **PAPER_SIZES}
# The authors' names (agencyenterprise/modular-pretraining), and ours.
METHOD_NAMES = {
    "base": BASELINE,
    "grmoe": "gram",
    "grlora": "gram_lora",
    "grmoe_lora": "gram_lora",
    "gr_lora": "gram_lora",
    "coreftaux": "ft_full",
    "lora": "ft_lora",
    "ftlora": "ft_lora",
    "mlp": "ft_mlp",
    "ftmlp": "ft_mlp",
    "ftmoe": "ft_mlp",
}
STUDY_NAMES = {
    "partial": "partial_labels",
    "arch": "architecture",
    "auxnum": "aux_scaling",
    "arbsub": "composability",
    "hetacc": "accumulation",
    "realistic": "dual_use",
    "synthetic": "stories",
}


@dataclass(frozen=True)
class External:
    """The content of a folder of losses, with method and study names mapped to the platform's."""

    folder: Path
    # LOSS_COLUMNS, a row for each view, domain and attack. `retained` has commas and no core.
    losses: pd.DataFrame
    # OUTSIDE_CURVE_COLUMNS, a row for each point of the baselines' validation curves.
    curves: pd.DataFrame
    # studies.json, {} without the file.
    declared: Mapping[str, Mapping]


def read_external(folder: str | Path) -> External:
    """Reads a folder of losses. Raises ValueError if a file is missing or invalid.

    `replication.py` later checks that the baselines have losses for all domains.
    """
    path = Path(os.path.realpath(local_path("folder", folder)))
    for name in (LOSSES_FILE, CURVES_FILE):
        if not (path / name).is_file():
            allowed = f"a folder with {LOSSES_FILE} and {CURVES_FILE}: there is no {name}"
            raise invalid("folder", str(path), allowed)
    losses = pd.DataFrame(_losses(path / LOSSES_FILE), columns=LOSS_COLUMNS)
    if losses.empty:
        raise invalid(LOSSES_FILE, "no rows", "a row for each view and domain")
    studies = set(losses["study"])
    curves = pd.DataFrame(_curves(path / CURVES_FILE, studies), columns=OUTSIDE_CURVE_COLUMNS)
    # The first spelling of a size is shown.
    spelt = {size_key(size): size for size in KNOWN_SIZES}
    for frame in (losses, curves):
        frame["size"] = [spelt.setdefault(size_key(size), size) for size in frame["size"]]
    _require_once(LOSSES_FILE, losses, VIEW_AND_DOMAIN)
    _require_once(CURVES_FILE, curves.drop_duplicates("row"), CURVE_OF)
    return External(path, losses, curves, _read_declared(path / STUDIES_FILE, studies))


def parameters_of(size: str) -> float:
    """Returns the parameter count of a known size, or reads any other name as a number.

    For example, 7B gives 7e9. Returns NaN for names that are not numbers.
    """
    if size in KNOWN_SIZES:
        return total_parameters(KNOWN_SIZES[size].dense())
    is_other, number, _ = size_key(size)
    return math.nan if is_other else number


@contextmanager
def add_place(place: str) -> Iterator[None]:
    """Prefixes the field of a raised InvalidField with `place`, such as a file and row."""
    try:
        yield
    except InvalidField as error:
        field = ", ".join(filter(None, (place, error.field)))
        raise invalid(field, error.value, error.expected) from error


def _losses(path: Path) -> Iterable[tuple]:
    text = read_text("folder", path, MAX_RECORD_BYTES)
    # A cell of another column may be a whole document.
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
        with add_place(f"{path.name}, row 1"):
            _require_columns(reader.fieldnames)
        for cells in reader:
            with add_place(f"{path.name}, row {reader.line_num}"):
                loss = _loss(cells)
            yield reader.line_num, *loss
    except csv.Error as error:
        place = f"{path.name}, row {reader.line_num}"
        raise invalid(place, str(error), "comma-separated values") from error


def _require_columns(header: Sequence[str]) -> None:
    absent = [name for name in REQUIRED_COLUMNS if name not in header]
    twice = sorted({name for name in (*REQUIRED_COLUMNS, VARIANT) if header.count(name) > 1})
    if absent or twice:
        wrong = f"is no {', '.join(absent)}" if absent else f"are several {', '.join(twice)}"
        allowed = (
            f"the columns {','.join(REQUIRED_COLUMNS)}, with commas between them: there {wrong}"
        )
        raise invalid("", ",".join(header), allowed)


def _loss(cells: dict) -> tuple:
    # An index and the comma at the end of a row have no name.
    beyond = cells.pop(None, [])
    if any(beyond) or any(name and cell is None for name, cell in cells.items()):
        row = ",".join(filter(None, (*cells.values(), *beyond)))
        raise invalid("", row, "a cell for each column")
    cell = {name: (cells.get(name) or "").strip() for name in (*REQUIRED_COLUMNS, VARIANT)}
    method, is_attack = _method(cell["method"]), cell[ELICITED]
    for name in REQUIRED_COLUMNS:
        if not cell[name] and not (name == "retained" and method == BASELINE):
            raise invalid(name, "", "a value: the cell is empty")
    if is_attack not in FLAGS:
        raise invalid(ELICITED, is_attack, "1 for the best loss of an attack, otherwise 0")
    study, variant, size, seed, domain = _read_names(cell)
    retained, loss = _read_profile(cell["retained"]), _number("loss", cell["loss"])
    return study, variant, method, size, seed, retained, domain, FLAGS[is_attack], loss


def _method(name: str) -> str:
    known = name.lower().replace("-", "_")
    method = METHOD_NAMES.get(known, known)
    if method not in METHODS:
        allowed = f"one of {', '.join(METHODS)}; or the authors' {', '.join(METHOD_NAMES)}"
        raise invalid("method", name, allowed + suggest(known, METHODS))
    return method


def _read_profile(text: str) -> str:
    names = [name.strip() for name in text.split("+")] if text else []
    if len(set(names)) < len(names) or "" in names:
        allowed = "domains joined by +, each once, such as core+virology; core for core alone"
        raise invalid("retained", text, allowed)
    for name in names:
        require_name("retained", name)
    return ",".join(sorted(set(names) - {CORE}))


def _curves(path: Path, studies: set[str]) -> Iterable[tuple]:
    # `splitlines` would end lines within texts.
    lines = read_text("folder", path, MAX_RECORD_BYTES).split("\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            with add_place(f"{path.name}, row {number}"):
                head, points = _curve(_read_object(line))
                if head[0] not in studies:
                    allowed = f"a study of {LOSSES_FILE}: {', '.join(sorted(studies))}"
                    raise invalid("study", head[0], allowed)
            yield from ((number, *head, step, loss) for step, loss in points)


def _curve(curve: Mapping) -> tuple[tuple, list]:
    for name in CURVE_KEYS:
        if (value := curve.get(name)) in (None, ""):
            raise invalid(name, value, f"a value: a curve has {', '.join(CURVE_KEYS)}")
    cell = {name: _read_cell(name, curve.get(name, "")) for name in CURVE_OF}
    steps, losses = (curve[name] for name in ("steps", "losses"))
    for name, values in (("steps", steps), ("losses", losses)):
        if not isinstance(values, list) or len(values) < MIN_POINTS:
            given = f"{len(values)} points" if isinstance(values, list) else type(values).__name__
            raise invalid(name, given, f"a list of at least {MIN_POINTS} points")
    if len(steps) != len(losses):
        allowed = f"as many as there are steps: {len(steps)}"
        raise invalid("losses", f"{len(losses)} points", allowed)
    losses = [_number("losses", loss) for loss in losses]
    steps = [_number("steps", step, "a number of steps from 0 on", 0.0) for step in steps]
    if any(later <= before for before, later in itertools.pairwise(steps)):
        raise invalid("steps", "steps out of order", "each larger than the one before")
    return _read_names(cell), list(zip(steps, losses, strict=True))


def _read_cell(field: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise invalid(field, value, "a text or a number")
    return "" if value is None else str(value).strip()


def _read_object(line: str) -> dict:
    try:
        fields = parse_json(line, dict)
        # A page cannot hold half a surrogate pair.
        json.dumps(fields, ensure_ascii=False).encode()
        return fields
    except ValueError as error:
        raise invalid("", line[:40], f"a JSON object ({error})") from error


def _read_names(cell: Mapping[str, str]) -> tuple[str, str, str, str, str]:
    study, seed = STUDY_NAMES.get(cell["study"], cell["study"]), cell["seed"]
    if SEED.fullmatch(seed):
        seed = str(int(seed.partition(".")[0]))
    for name, value in (("study", study), ("seed", seed), ("domain", cell["domain"])):
        require_name(name, value)
    # A folder has this name.
    safe_name("study", study)
    if seed.lower().lstrip("+-") in NO_NUMBERS:
        raise invalid("seed", cell["seed"], "a number or a name: this is a gap")
    size = _spell_number(cell["size"])
    if size.isdecimal() and len(size) < 40:
        size = f"{int(size) / 1e6:.12g}M"
    if not 0.0 < parameters_of(size) < math.inf:
        raise invalid("size", cell["size"], "a number of parameters such as 0.3M, 800M or 2B")
    return study, _spell_number(cell[VARIANT]), size, seed, cell["domain"]


def _spell_number(name: str) -> str:
    number = Decimal(name) if NUMBER.fullmatch(name) else None
    if number is None or abs(number) >= MOST_NUMBER:
        return name
    return str(int(number)) if number == int(number) else f"{float(number):g}"


def _number(
    field: str,
    value: object,
    allowed: str = "a positive finite number",
    low: float = math.ulp(0.0),
) -> float:
    try:
        # Python reads 1_0 as 10.
        is_other = isinstance(value, bool) or "_" in str(value)
        number = math.nan if is_other else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number >= low):
        raise invalid(field, value, allowed)
    return number


def _require_once(file: str, frame: pd.DataFrame, names: list[str]) -> None:
    for _, second in frame[frame.duplicated(names)].iterrows():
        first = frame[(frame[names] == second[names]).all(axis="columns")].iloc[0]
        what = ", ".join(f"{name} {second[name]}" for name in names if second[name] != "")
        allowed = f"each once: row {first['row']} has it too"
        raise invalid(f"{file}, row {second['row']}", what, allowed)


def _read_declared(path: Path, studies: set[str]) -> dict[str, dict]:
    if not target_kind("folder", path):
        return {}
    with add_place(path.name):
        fields = _read_object(read_text("folder", path))
        declared = {STUDY_NAMES.get(name, name): given for name, given in fields.items()}
        for name, given in declared.items():
            if name not in studies:
                allowed = f"studies of {LOSSES_FILE}: {', '.join(sorted(studies))}"
                raise invalid("", name, allowed)
            if not isinstance(given, dict):
                allowed = "an object such as {} or {'unit': 'heterogeneous'}"
                raise invalid(name, given, allowed)
    return declared
