"""A storage of an earlier commit is opened, checked, reported, continued and served; nothing is trained again."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gram_platform.cli import main
from gram_platform.config import run_from_plain
from gram_platform.config.flops import total_parameters
from gram_platform.release.serving.command import Endpoint, Service, prepare
from gram_platform.release.serving.engine import EngineLimits
from gram_platform.release.serving.model_server import load_granted
from gram_platform.release.serving.policy import token_digest
from gram_platform.store import Store
from tests.record.earlier import (
    BASELINE_OF_SEED_1,
    GRAM_RUN,
    KILLED_RUN,
    NUM_EVALUATIONS,
    NUM_RUNS,
    SAVED_STEP,
    flags_of,
    unpack,
)
from tests.release.serving.http import Served
from tests.release.serving.planted import Planted
from tests.release.serving.running import GRAM, environment, stop, wait_for_port
from tests.studies.processes import attempts, segments_written, submit, written

SEARCH = (sys.executable, "experiments/hyperparams.py")
MODULES = {"core": (), "core+lisp": ("lisp",)}  # of the profiles that are served


@pytest.fixture
def earlier(tmp_path) -> Path:
    return unpack(tmp_path)


def printed(capsys, *words: str) -> str:
    main(list(words))
    return capsys.readouterr().out


def losses(storage: Path, eval_id: str) -> dict[str, float]:
    return json.loads((storage / "evaluations" / eval_id / "result.json").read_text())["losses"]


def test_it_is_opened_and_whole(earlier, capsys):
    place = ("--storage", str(earlier / "storage"))
    assert "places read, 0 problems" in printed(capsys, "check", *place)
    status = json.loads(printed(capsys, "status", *place, "--json"))
    states = {run["id"]: run["state"] for run in status["runs"]}
    assert len(states) == NUM_RUNS
    assert {run_id for run_id, state in states.items() if state != "complete"} == {KILLED_RUN}
    assert status["evaluations"] == {"complete": NUM_EVALUATIONS, "total": NUM_EVALUATIONS}
    shown = json.loads(printed(capsys, "show", KILLED_RUN, *place, "--json"))
    assert (shown["state"], shown["tags"]["method"], shown["tags"]["seed"]) == ("interrupted", "gram", "1")


@pytest.mark.slow
def test_its_study_is_reported_with_the_same_table(earlier, capsys):
    """Without what the second submission had trained, the table is that of the first, byte for byte."""
    storage = earlier / "storage"
    table = storage / "studies/scaling/table.csv"
    before = table.read_bytes()
    (evaluated,) = [p.parent for p in storage.glob("evaluations/*/config.json") if BASELINE_OF_SEED_1 in p.read_text()]
    for folder in (evaluated, storage / "runs" / BASELINE_OF_SEED_1):
        shutil.rmtree(folder)
    table.unlink()
    printed(capsys, "report", "scaling", "--storage", str(storage))
    assert table.read_bytes() == before


def test_its_run_loads_with_the_granted_module_alone(earlier):
    policy = earlier / "policy.toml"
    entry = f'[[tokens]]\nname = "a"\nsha256 = "{token_digest("t")}"\nprofiles = ["some"]\ndefault = "some"\n'
    policy.write_text('[profiles.some]\nmodules = ["lisp"]\n' + entry)
    service = Service(str(earlier / "storage"), GRAM_RUN, str(policy), Endpoint(port=0), EngineLimits())
    prepared = prepare(service)
    model = load_granted(prepared.source)
    assert prepared.lines()[0].startswith(f"run {GRAM_RUN}: core, lisp ")
    assert 0 < sum(weight.numel() for weight in model.parameters()) < total_parameters(prepared.run.model)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_its_study_is_continued(earlier):
    """From the last checkpoint of the run that was killed; a lost evaluation is made again, with the same losses."""
    storage = earlier / "storage"
    before, files = attempts(storage), written(storage)
    lost = next(path.parent.name for path in storage.glob("evaluations/*/config.json") if GRAM_RUN in path.read_text())
    expected = losses(storage, lost)
    shutil.rmtree(storage / "evaluations" / lost)
    del files[f"evaluations/{lost}/result.json"]
    flags = (*flags_of(earlier, "preset.toml"), "--seeds", "2", "--methods", "baseline", "gram", "--in-process")
    assert re.search(r"16 of 16 .*: 7 now", submit(storage, flags))
    after = attempts(storage)
    assert {run_id for run_id in before if after[run_id] != before[run_id]} == {KILLED_RUN}
    assert sorted(segments_written(storage, KILLED_RUN))[-1][0] == SAVED_STEP + 1
    assert Store(storage).run(KILLED_RUN).result()["num_steps"] == 30
    assert losses(storage, lost) == pytest.approx(expected, rel=1e-5)  # other processors round differently
    assert {name: written(storage)[name] for name in files} == files
    assert re.search(r"16 of 16 .*: 0 now", submit(storage, flags))


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_its_search_is_done(earlier):
    storage = earlier / "storage"
    files, folder = written(storage), storage / "studies/hyperparams"
    tables = {name: (folder / name).read_bytes() for name in ("table.csv", "trials.csv")}
    flags = (*flags_of(earlier, "search.toml"), "--seeds", "1", "--knobs", "p_cr=0.25:0.5")
    assert re.search(r"2 trials, 2 of .*before", submit(storage, flags, SEARCH))
    assert written(storage) == files
    assert {name: (folder / name).read_bytes() for name in tables} == tables


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_profile_of_its_run_is_served(earlier, capsys):
    """By `gram serve` on a Ray of its own: each caller's profile answers."""
    storage, policy, log = earlier / "storage", earlier / "policy.toml", earlier / "serve.log"
    policy.write_text("".join(f'[profiles."{name}"]\nmodules = {list(on)}\n' for name, on in MODULES.items()))
    tokens = {
        name: printed(capsys, "token", f"caller-{number}", "--policy", str(policy), "--profiles", name).split()[-1]
        for number, name in enumerate(MODULES)
    }
    plan = Planted(run_from_plain(Store(storage).run(GRAM_RUN).config()).model, policy.read_text(), tokens)
    command = [*GRAM, "serve", GRAM_RUN, "--storage", str(storage), "--policy", str(policy), "--port", "0"]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        served = Served(wait_for_port(process, log), plan)
        for name in MODULES:
            answer = served.complete(name, prompt="Once", temperature=0, max_tokens=8).json
            assert (answer["model"], answer["usage"]["completion_tokens"]) == (name, 8)
    finally:
        stop(process, log)
