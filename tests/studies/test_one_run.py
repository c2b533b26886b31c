"""`experiments/one_run.py`: its ids are the study's, and it needs neither Ray nor MLflow."""

import re
import subprocess
import sys
from pathlib import Path

from gram_platform.studies.library.scaling import STUDY
from tests.submitted import parse, study_plan

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = """
import runpy, sys
sys.modules |= dict.fromkeys(("ray", "mlflow", "plotly", "optuna"))  # an import of these fails
sys.argv = ["one_run.py", "smoke"]
runpy.run_path("experiments/one_run.py", run_name="__main__")
"""


def test_one_run_prints_the_ids_of_the_study(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    flags = parse(STUDY, ["--preset", "smoke", "--methods", "gram", "--storage", str(tmp_path)])
    graph = study_plan(STUDY, flags)
    first = graph.settings[0]
    wanted = [
        n for n in graph.nodes if (n.size, n.names["seed"]) == (first.size.name, str(first.seed))
    ]
    wanted = {f"{node.kind} {node.id}" for node in wanted if not node.is_attack}
    assert (
        set(re.findall(r": ((?:run|evaluation) [0-9a-f]{12})$", done.stdout, re.MULTILINE))
        == wanted
    )
    assert graph.data_id in done.stdout
