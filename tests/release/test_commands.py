"""`gram export` and `gram import` from the command line, on runs that were really trained."""

import contextlib
import json
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from transformers import AutoModelForCausalLM, AutoTokenizer

from gram_platform.cli import main
from gram_platform.config import hash_run
from gram_platform.engine.evaluation import execute_evaluation
from gram_platform.engine.node import execute_run
from gram_platform.methods.nodes import method_nodes
from gram_platform.pages.results.record import StudyRecord
from gram_platform.store import Store
from tests.engine import conftest as cells
from tests.release.planted import complete
from tests.release.serving.planted import planted
from tests.tracking.servers import running_mlflow

packed_root, execution, setting = cells.packed_root, cells.execution, cells.setting


def gram(*arguments):
    main([str(argument) for argument in arguments])


@pytest.fixture
def study(setting, execution):
    """(storage, id of the GRAM run): baseline and GRAM trained and evaluated, as a study's record
    names them."""
    nodes = [*method_nodes("baseline", setting), *method_nodes("gram", setting)]
    for node in nodes:
        (execute_run if node.kind == "run" else execute_evaluation)(
            node.config, node.names, execution
        )
    entries = tuple({"id": node.id, "kind": node.kind, "tags": node.names} for node in nodes)
    size = setting.size.name
    record = StudyRecord(
        "scaling", "Scaling", "?", ("A fact.",), {}, (size,), {size: 1}, "mean", entries
    )
    execution.store().study_dir("scaling").write("study.json", record.to_json())
    gram_run = next(n.id for n in nodes if n.kind == "run" and n.method == "gram")
    return execution.storage, gram_run


def test_export_and_import(study, setting, tmp_path, capsys):
    storage, run_id = study
    domain = setting.auxiliary[0]
    arguments = (
        "export",
        run_id[:7],
        "--modules",
        domain,
        "--storage",
        storage,
        "--out",
        tmp_path / "out",
    )
    gram(*arguments, "--check", "transformers")
    out = capsys.readouterr().out
    assert out.count("Largest difference") == 2
    text = (tmp_path / "out" / "README.md").read_text()
    assert f"| retain | {domain} |" in text
    assert f"| forget | {setting.auxiliary[1]} |" in text
    assert "one seed" in text
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    prompt = tokenizer("The old", return_tensors="pt")
    drawn = model.generate(**prompt, max_new_tokens=5)
    assert tokenizer.decode(drawn[0]).startswith("The old")
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "out" / "README.md").unlink()
    (tmp_path / "out" / "README.md").symlink_to(tmp_path / "mine")
    gram(*arguments)
    assert "already exported" in capsys.readouterr().out
    assert (tmp_path / "mine").read_text() == "mine"  # the card takes the link's place
    assert f"| retain | {domain} |" in (tmp_path / "out" / "README.md").read_text()
    gram("import", tmp_path / "out", "--storage", storage)
    out = capsys.readouterr().out
    import_id = next(word.rstrip(":") for word in out.split() if word.startswith("imported-"))
    assert Store(storage).import_dir(import_id).config()["model"]["seq_len"] == setting.size.seq_len
    gram(
        "export",
        import_id,
        "--storage",
        storage,
        "--out",
        tmp_path / "again",
        "--dtype",
        "bfloat16",
    )
    plain = json.loads((tmp_path / "again" / "config.json").read_text())
    assert plain["torch_dtype"] == "bfloat16"
    assert "imported model" in (tmp_path / "again" / "README.md").read_text()
    gram("status", "--storage", storage)  # imports are no runs
    assert "2 complete" in capsys.readouterr().out


def test_every_module_at_once(study, tmp_path):
    storage, run_id = study
    gram(
        "export",
        run_id,
        "--all-modules",
        "--storage",
        storage,
        "--out",
        tmp_path / "out",
        "--max-file-gb",
        1e-4,
    )
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 1
    assert "absent from" not in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("through", ["database", pytest.param("server", marks=pytest.mark.slow)])
def test_an_export_becomes_a_version_in_mlflow(study, tmp_path, capsys, through):
    """Its files are artifacts of the run; an equal export keeps its version, another is the next
    one."""
    storage, run_id = study
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with (
        running_mlflow(uri, tmp_path) if through == "server" else contextlib.nullcontext()
    ) as server:
        uri = server.uri if server else uri
        common = ("--storage", storage, "--register", "stories-view", "--tracking-uri", uri)
        for out, modules, version in (
            ("a", "", 1),
            ("a", "", 1),
            ("b", "airport", 2),
            ("a", "", 1),
        ):
            gram("export", run_id, "--modules", modules, "--out", tmp_path / out, *common)
            assert f"stories-view: version {version} in MLflow" in capsys.readouterr().out
        client = MlflowClient(uri)
        found = {int(v.version): v for v in client.search_model_versions("name = 'stories-view'")}
        assert [(v, found[v].tags["gram.modules"]) for v in sorted(found)] == [
            (1, "none"),
            (2, "airport=1"),
        ]
        assert {v.tags["gram.run_id"] for v in found.values()} == {run_id}
        assert client.get_run(found[1].run_id).data.tags["gram.run_id"] == run_id
        got = Path(
            download_artifacts(
                client.get_model_version_download_uri("stories-view", "1"), tracking_uri=uri
            )
        )
        assert (got / "config.json").read_bytes() == (tmp_path / "a" / "config.json").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["export", "RUN", "--out", "OUT", "--modules", "", "--register", "a/b"], "register"),
        (
            ["export", "RUN", "--out", "OUT", "--modules", "", "--tracking-uri", "http://x"],
            "tracking_uri",
        ),
        (["export", "RUN"], "out"),
        (["export", "nothing", "--out", "OUT"], "run_id"),
        (["export", "RUN", "--out", "OUT"], "modules"),
        (["export", "RUN", "--out", "OUT", "--modules", "", "--all-modules"], "modules"),
        (["export", "RUN", "--out", "OUT", "--modules", "", "--max-file-gb", "0"], "max_file_gb"),
        (["export", "RUN", "--out", "OUT", "--modules", ""], "run_id"),  # which is not complete
    ],
)
def test_bad_input(arguments, field, setting, execution, tmp_path, capsys):
    node = method_nodes("gram", setting)[0]
    execution.store().run(node.id).ensure_config(node.config)
    words = {"RUN": node.id, "OUT": tmp_path / "out"}
    with pytest.raises(SystemExit) as ended:
        gram(*(words.get(word, word) for word in arguments), "--storage", execution.storage)
    assert ended.value.code == 2
    text = capsys.readouterr().err
    assert f"error: {field}" in text or f"error: --{field.replace('_', '-')}" in text
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "RUN", "--out", "OUT", "--modules", ""],
        ["eval", "RUN", "--tasks", "x", "--out", "OUT"],
        ["serve", "RUN", "--policy", "POLICY"],
        ["compare", "RUN", "RUN"],
        ["show", "RUN"],
    ],
)
def test_a_config_of_another_id_is_refused_before_anything_is_built(
    arguments, setting, execution, tmp_path, capsys
):
    node = method_nodes("gram", setting)[0]
    complete(execution.store(), node.config, {})
    path = Path(execution.store().run(node.id).folder.file("config.json"))
    path.write_bytes(path.read_bytes().replace(b'"rope_theta":1', b'"rope_theta":3'))
    (tmp_path / "policy.toml").write_text(planted().policy_text)
    words = {"RUN": node.id, "OUT": tmp_path / "out", "POLICY": tmp_path / "policy.toml"}
    with pytest.raises(SystemExit) as ended:
        gram(*(words.get(word, word) for word in arguments), "--storage", execution.storage)
    assert ended.value.code == 2
    text = capsys.readouterr().err
    other = hash_run(json.loads(path.read_bytes()))
    assert all(part in text for part in (f"error: {path}: run_id", other, node.id))
    assert not (tmp_path / "out").exists()
