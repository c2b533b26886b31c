"""The `gram` command on a real finished cell."""

import contextlib
import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from benchmarks.many_runs import write_study
from gram_platform.cli import main
from gram_platform.config.terminal import say
from gram_platform.engine.evaluation import execute_evaluation
from gram_platform.engine.node import execute_run
from gram_platform.methods.nodes import method_nodes
from gram_platform.methods.setting import Elicitation, Options
from gram_platform.planner import MACHINES, needs
from gram_platform.store import Store
from gram_platform.store.leases import GONE_AFTER_S
from tests.engine import conftest as cells
from tests.store.training import run_config, train
from tests.tiny import weights_of

packed_root, execution, setting = cells.packed_root, cells.execution, cells.setting


def gram(*arguments):
    main([str(argument) for argument in arguments])


@pytest.fixture
def finished(setting, execution):
    """A filtering run, its evaluation and its attacks."""
    options = Options(elicitation=Elicitation(num_sequences=8, num_steps=2, batch_size=8))
    nodes = method_nodes("filtering", dataclasses.replace(setting, options=options))
    for node in nodes:
        run = execute_run if node.kind == "run" else execute_evaluation
        run(node.config, node.names, execution)
    return execution.storage, nodes


def status(storage, capsys, *arguments) -> dict:
    """What `gram status --json` prints."""
    capsys.readouterr()
    gram("status", "--storage", storage, "--json", *arguments)
    return json.loads(capsys.readouterr().out)


def test_status_compare_and_sync(finished, capsys):
    storage, nodes = finished
    found = status(storage, capsys)
    assert {run["id"]: run["state"] for run in found["runs"]} == {
        n.id: "complete" for n in nodes if n.is_run
    }
    assert len({run["name"] for run in found["runs"]}) == 4, "an attack looks like what it attacks"
    assert found["evaluations"] == {"complete": 1, "total": 1}
    gram("compare", nodes[0].id, nodes[2].id[:8], "--storage", storage)
    compared = capsys.readouterr().out
    gram("compare", nodes[0].id, nodes[2].id[:8], "--storage", storage, "--json")
    plain = json.loads(capsys.readouterr().out)
    assert plain["runs"] == [nodes[0].id, nodes[2].id]
    rates = [node.config.optimizer.peak_lr for node in (nodes[0], nodes[2])]
    assert plain["fields"]["optimizer.peak_lr"] == rates
    rows = [re.split(" {2,}", line) for line in compared.splitlines()]
    assert ["optimizer.peak_lr", str(rates[0]), "->", str(rates[1])] in rows
    named = {run["id"]: run["name"] for run in found["runs"]}
    gram("compare", named[nodes[0].id], named[nodes[2].id], "--storage", storage)
    assert capsys.readouterr().out == compared
    with pytest.raises(SystemExit):
        gram("compare", "filtering", nodes[0].id, "--storage", storage)
    refused = capsys.readouterr().err
    assert all(f"{name} ({run})" in refused for run, name in named.items())
    for num_sent in (5, 0):
        gram("sync", "--storage", storage)
        assert f"{num_sent} sent, {5 - num_sent} unchanged" in capsys.readouterr().out


def test_columns_of_a_pipe_are_two_blanks_apart_and_whole(finished, capsys):
    """Names contain single blanks."""
    runs = {run["id"]: run for run in status(finished[0], capsys)["runs"]}
    gram("status", "--storage", finished[0])
    rows = [re.split(" {2,}", line) for line in capsys.readouterr().out.splitlines()[:-1]]
    expected = [[run[key] for key in ("id", "state", "name", "about")] for run in runs.values()]
    assert rows == expected


def test_a_folder_without_a_study_gets_no_site(tmp_path, capsys):
    for arguments in ([], ["scaling"], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            gram("report", *arguments, "--storage", tmp_path)
        assert ended.value.code == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_status_counts_many_runs_and_names_those_that_have_stopped(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("gram_platform.cli.storage.MOST_LISTED", 9)
    run_ids, _ = write_study(str(tmp_path), 10, 2)
    capsys.readouterr()
    gram("status", "--storage", tmp_path)
    short = capsys.readouterr().out
    assert {run for run in run_ids if run in short} == set(run_ids[7:])
    counts = [line.split()[-2:] for line in short.splitlines() if line.startswith("no study ")]
    assert sorted(counts) == [["complete", "7"], ["failed", "1"], ["interrupted", "2"]]
    gram("status", "--storage", tmp_path, "--full")
    full = capsys.readouterr().out
    assert all(run in full for run in run_ids)
    assert len(status(tmp_path, capsys)["runs"]) == 10


def test_status_says_what_is_left(finished, capsys):
    """Of a run that was cut off half-way, and of one that has not begun."""
    storage, nodes = finished
    store, run = Store(storage).open_for_writing(), nodes[0].config
    cut_off, absent = (dataclasses.replace(run, seed=seed) for seed in (7, 8))
    for config in (cut_off, absent):
        store.run(config.run_id).ensure_config(config)
    with store.run(cut_off.run_id).start_attempt("a test") as attempt:
        attempt.commit(run.num_steps // 2, {}, {})
    share_left = 1 - (run.num_steps // 2) / run.num_steps
    hours = needs(run, 1, MACHINES["h100"]).gpu_hours
    left = status(storage, capsys, "--machine", "h100")["left"]
    assert left == {"machine": "h100", "hours": pytest.approx((1 + share_left) * hours)}


def test_gc_drops_the_weights_of_attacks_and_keeps_their_losses(finished, execution):
    storage, nodes = finished
    attacks = [node for node in nodes if node.is_attack]
    gram("gc", "--storage", storage, "--dry-run")
    assert all(weights_of(Store(storage).run(node.id)) for node in attacks)
    results = {node.id: Store(storage).run(node.id).result() for node in attacks}
    gram("gc", "--storage", storage)
    store = Store(storage)
    for node in attacks:
        assert store.run(node.id).result() == results[node.id]
        with pytest.raises(ValueError):
            weights_of(store.run(node.id))
        # And it is not trained again.
        assert execute_run(node.config, {}, execution) == results[node.id]
    assert weights_of(store.run(nodes[0].id))


def test_folders_without_a_config_are_left_out(finished, capsys):
    """What a kill leaves while the first file of a run or evaluation is made, and what is not
    ours."""
    storage, _ = finished
    for folder in ("runs/abcdefabcdef", "runs/somebody's", "evaluations/abcdefabcdef"):
        Path(storage, folder).mkdir()
    assert [run["state"] for run in status(storage, capsys)["runs"]] == ["complete"] * 4
    gram("gc", "--storage", storage)


def test_gc_removes_what_kills_have_left(finished):
    """The checkpoint of a complete run, and half of a file."""
    storage, nodes = finished
    run = Store(storage).run(nodes[0].id)
    attempt = Path(run.folder.path, "attempts", run.attempts.list()[-1])
    left = attempt / "checkpoints/000000002"
    left.mkdir(parents=True)
    (left / "manifest.json").write_text("{}")
    half = attempt / ".weights.safetensors.1-ab.tmp"
    half.write_text("half")
    gram("gc", "--storage", storage, "--dry-run")
    assert left.exists()
    gram("gc", "--storage", storage)
    assert not left.exists()
    assert not half.exists()
    assert run.result() is not None


def test_gc_removes_half_written_files_wherever_they_are(finished):
    """Of an import's weights half is as much as a model; what is young may still be written."""
    storage, _ = finished
    places = ("imports/imported-0123456789ab", "studies/scaling", "searches/0123456789ab")
    halves = [Path(storage, place, ".weights.safetensors.1-ab.tmp") for place in places]
    for half in halves:
        half.parent.mkdir(parents=True)
        half.write_text("half")
    gram("gc", "--storage", storage)
    assert all(half.exists() for half in halves)
    for half in halves:
        os.utime(half, (time.time() - GONE_AFTER_S - 60,) * 2)
    gram("gc", "--storage", storage)
    assert not any(half.exists() for half in halves)


@pytest.mark.parametrize("text", ["{", '{"data": 1}'])
def test_configs_that_cannot_be_read(finished, text, capsys):
    """`status` shows the run; `gc` removes nothing, since it cannot know what the run needs."""
    storage, nodes = finished
    folder = Path(storage, "runs", "abcdefabcdef")
    folder.mkdir()
    (folder / "config.json").write_text(text)
    assert "abcdefabcdef" in {run["id"] for run in status(storage, capsys)["runs"]}
    with pytest.raises(SystemExit) as ended:
        gram("gc", "--storage", storage)
    assert ended.value.code == 2
    assert f"config='{folder}/config.json'" in capsys.readouterr().err
    assert all(weights_of(Store(storage).run(node.id)) for node in nodes if node.kind == "run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status", "--storage", "/nowhere/at/all"], "--storage"),
        (["status", "--storage", __file__], "--storage"),
        (["status", "--storage", "~nobody-of-this-name/x"], "--storage"),
        (["status", "--machine", "abacus"], "'abacus'"),
        (["compare", "a", "b"], "run_id='a'"),
        (["report", "nothing"], "study='nothing'"),
        (["report", "--out", "/dev/null/site"], "--out"),
        (["report", "--tracking-uri", "foo://x"], "--tracking-uri"),
        (["eval", "a", "--tasks", "b", "--out", "/nowhere/a.csv"], "--out"),
        (["sync", "--tracking-uri", "http://host:abc"], "--tracking-uri"),
        (["prepare", "stories-smoke"], "--out"),
        (["prepare", "nowhere", "--check"], "corpus="),
        (["prepare", __file__], "corpus="),
        (["prepare"], "CORPUS"),
        (["run", "--preset", "smoke", "scaling"], "the study comes first"),
        (["run", "scaling", "--core-label", "two", "words"], "'two words'"),
        (["run", "scaling", "--seeds", "three"], "'three': expected an integer"),
        (["run", "lr_bs_grid", "--trials", "3"], "--lrs"),
        (["token", "alice", "--profiles", "core", "--policy", "nowhere"], "[profiles.core]"),
        (["prepare", "stories-smoke", "--out", "/dev/null/packed"], "--out"),
        (["export", "a", "--out", "~nobody-of-this-name"], "--out"),
        (["import", "~nobody-of-this-name"], "checkpoint="),
        (["token", "alice", "--profiles", "core", "--policy", "/nowhere/a.toml"], "--policy"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_bad_input_is_refused_by_name(arguments, message, storage, capsys):
    with pytest.raises(SystemExit) as ended:
        gram(*arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_prepare_packs_and_checks(tmp_path, capsys):
    gram("prepare", "stories-smoke", "--check")
    gram("prepare", "stories-smoke", "--out", tmp_path, "--seq-len", 64, "--vocab-size", 512)
    assert "core" in capsys.readouterr().out


def test_a_terminal_gets_no_command_from_a_text_or_a_name(tmp_path, capsys):
    corpus = tmp_path / "a\x1b[2J.jsonl"
    corpus.write_text(json.dumps({"text": "t\x1b]0;x\x07\u202e", "label": "core"}) + "\n")
    main(["prepare", str(corpus), "--check"])
    with pytest.raises(SystemExit):
        main(["prepare", str(corpus), "--core-label", "x", "--out", str(tmp_path / "out")])
    say("t\x1b[1m")
    shown = "".join(capsys.readouterr())
    assert not re.search("[\x1b\x07\u202e]", shown)
    assert all(part in shown for part in (r"t\x1b]0;x\x07\u202e", r"a\x1b[2J.jsonl", r"t\x1b[1m"))


ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b8m\u202e\r"


def test_a_terminal_gets_no_command_from_a_storage(tmp_path, capsys):
    """Tags, failures, searches, records and owners of leases are the words of whoever wrote the
    storage."""
    done, failed = run_config(8), run_config(8, seed=1)
    storage = str(tmp_path / "storage")
    train(storage, done), train(storage, failed, last=4)
    store = Store(storage).open_for_writing(min_free_bytes=0)
    store.run(done.run_id).add_tags(
        {"method": f"M{ESCAPES}", "size": "x" * 9_000, f"K{ESCAPES}": "lines\nof it"}
    )
    run = store.run(failed.run_id)
    run.record_failure(run.attempt_ids()[-1], f"F{ESCAPES}\nerror: no line of ours")
    store.search_dir("abc").write_json("search.json", {"name": f"N{ESCAPES}", "preset": [ESCAPES]})
    store.search_dir("def").write("search.json", b"[")
    store.study_dir("bad").write_json("study.json", {f"S{ESCAPES}": 1})
    commands = [
        ["status"],
        ["status", "--json"],
        ["show", done.run_id],
        ["show", failed.run_id],
        ["search"],
        ["gc"],
    ]
    commands += [
        ["show", done.run_id, "--json"],
        ["check"],
        ["report"],
        ["compare", done.run_id, failed.run_id],
    ]
    texts = []
    for command in commands:
        with contextlib.suppress(SystemExit), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gram(*command, "--storage", storage)
        texts.append("".join([*capsys.readouterr(), *(str(warning.message) for warning in caught)]))
    assert not [text for text in texts if re.search("[\x1b\x07\x9b\u202e\r]", text)]
    status = texts[0].splitlines()
    assert len(status) == 4, status  # a line for each run, one of counts, one of what is left
    assert max(map(len, status)) < 800
    shown = (r"M\x1b]0;title\x07\x1b[2J", r"F\x1b]0;", r"N\x1b]0;")
    assert all(part in "".join(texts) for part in shown)


def test_a_terminal_gets_no_command_from_losses_measured_elsewhere(tmp_path, capsys):
    head = "study,variant,method,size,seed,retained,domain,elicited,loss\n"
    (tmp_path / "losses.csv").write_text(
        f"{head}scaling,\x1b[31mv,baseline,0.3M,1,core,core,0,2.0\n"
    )
    curve = {
        "study": "scaling",
        "variant": "\x1b[31mv",
        "size": "0.3M",
        "seed": "1",
        "domain": "core",
    }
    curve |= {"steps": [1, 2, 3, 4], "losses": [4, 3, 2.5, 2]}
    (tmp_path / "curves.jsonl").write_text(json.dumps(curve) + "\n")
    gram("replicate", tmp_path, "--out", tmp_path / "out")
    shown = "".join(capsys.readouterr())
    assert "\x1b" not in shown
    assert r"\x1b[31mv" in shown


def test_a_reader_that_stops_early_is_no_error():
    program = "from gram_platform.cli import main; main(['list', 'presets'])"
    # `true` ends before the first line.
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["search", "--optuna-uri", "postgresql://me:word@host/db"],
        ["run", "scaling", "--trackinguri", "https://host/?token=word"],
        ["ui", "--port", "https://me:word@host"],
        ["import", "https://me:word@host/x"],
        ["export", "abc", "--out", "https://me:word@host/x", "--modules", ""],
        ["status", "--storage", "ftp://me:word@127.0.0.1:1/x"],
    ],
)
def test_an_address_in_a_wrong_place_is_told_without_its_secret(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    shown = "".join(capsys.readouterr())
    assert "***" in shown
    assert "word" not in shown


def test_a_command_that_is_none():
    for arguments, code in ([], 2), (["stauts"], 2):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == code


def test_an_interrupt_ends_a_command_with_130(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("gram_platform.corpora.resolution.resolve", interrupt)
    with pytest.raises(SystemExit) as ended:
        main(["prepare", "stories-smoke", "--out", "/tmp"])
    assert ended.value.code == 130
