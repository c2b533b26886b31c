"""What a person reads in a terminal of 80 columns while a study runs and when it ends; and in a
log."""

import re
import subprocess
import sys

import pandas as pd
import pytest

from gram_platform.pages.results.results import Brief
from tests import pseudo_terminal
from tests.conftest import ROOT

COLUMNS = 80
PROGRAM = """
import sys, time
from functools import partial
from gram_platform.engine.executor import ENDED, WARNED, Event
from gram_platform.engine.life import Progress
from gram_platform.pages.results.results import brief_results, summary_text
from gram_platform.studies.library.scaling import STUDY
from gram_platform.studies.live import LiveView, show_results
from tests.pages.test_unit import rows, study
from tests.submitted import study_plan

nodes = study_plan(STUDY, ["--preset", "demo", "--storage", sys.argv[1]]).nodes
first, second, *others = [node for node in nodes if node.is_run]

class Planted:
    "A storage in which every run was trained."
    def run(self, run_id):
        return self
    def node(self, kind, node_id):
        return self
    def timing(self):
        return {"elapsed_s": 12.0, "tokens_per_second": 19638.0}

view = LiveView(nodes, Planted(), "scaling")
view.in_process = True  # no gauges, which need Ray
progress = Progress({first.id}, {node.id: 0.0 for node in others[:3]})
beat = {"num_steps": 100, "time": time.time() + 1, "tokens_per_second": 1234567.0}
progress.heartbeats = {node.id: beat | {"step": 12 + k} for k, node in enumerate(others[:3])}
progress.failed[second.id] = failure = "the loss became NaN"
view.start(nodes, progress)
view.see(Event(WARNED, second, "died; starts again"))
for node, text in ((first, ""), (second, failure)):
    view.next_s = 0.0  # as after some seconds
    view.see(Event(ENDED, node, text))
    view.look()
    view.bars.refresh()
view.begin_trials(4)
view.say_trial("a trial: loss 3.2 (5 s)")
view.show_trials(["tiny lr 0.004 batch 8 s0"])
view.bars.refresh()
view.stop()
found = study(*rows("tiny", 0.07, 0.11))
text, brief = summary_text(found.record, found), partial(brief_results, found.record, found)
show_results(view.console, text, brief)
"""
COUNTS = (
    "1 of 204 nodes done",
    "3 training, 199 waiting",
    "1 failed, 0 blocked",
    "3,703,701 tokens/s",
)
TRIALS = ("1 of 4 trials ended", "1 running", "tiny lr 0.004 batch 8 s0")


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> str:
    """What a terminal of 80 columns gets."""
    place = str(tmp_path_factory.mktemp("storage"))
    code, text = pseudo_terminal.run(place, program=PROGRAM, columns=COLUMNS, rows=30)
    assert code == 0, text
    return text


def test_a_terminal_shows_counts_running_and_the_time_left_and_cuts_nothing(printed):
    lines = [line.rstrip() for line in re.split(r"[\r\n]", pseudo_terminal.plain(printed))]
    assert max(map(len, lines)) <= COLUMNS
    text = " ".join(lines)
    assert "\u2026" not in text
    # The cells of a bar are wrapped beside it.
    words = re.sub(r"[\u2501\u2578\u257a]+|about \d:\d\d:\d\d left", "", text).split()
    for part in (*COUNTS, *TRIALS):
        assert set(part.split()) <= set(words), part
    assert re.search(r"\u2501+ +about \d:\d\d:\d\d left", text)
    assert any("died; starts again" in line for line in lines)
    assert "\x1b[31m" in printed  # the failure is red


def test_results_are_in_short_and_the_report_has_the_rest(printed):
    lines = [
        line.rstrip()
        for line in re.split(r"[\r\n]", pseudo_terminal.plain(printed))
        if line.strip()
    ]
    table = lines[lines.index("profile mean") :]
    assert table[1].split() == ["method", "core", "retain", "forget"]
    assert {line.split()[0] for line in table[2:5]} == {"baseline", "GRAM", "filtering"}
    assert any(line.startswith("claims: ") for line in lines)
    assert "see the report" in " ".join(lines)


def test_a_log_has_plain_lines_with_everything(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "\x1b" not in done.stdout
    nodes, *_ = (line.split(" | ") for line in done.stdout.splitlines() if COUNTS[0] in line)
    assert tuple(nodes[:4]) == COUNTS
    assert [part.rpartition(" ")[2] for part in nodes[4].split(", ")[1::2]] == ["12%", "13%", "14%"]
    assert nodes[-1].endswith(" left")
    assert "[  1/4] a trial: loss 3.2 (5 s)" in done.stdout
    assert re.search(r"^GRAM +tiny +mean +0\.9\d\d \[0\.\d+, 0\.\d+\]", done.stdout, re.MULTILINE)


def test_a_narrow_terminal_leaves_out_the_last_columns():
    number = "0.123 [0.101, 0.145]"
    frame = pd.DataFrame({name: [number] for name in ("first", "second", "third", "fourth")})
    for columns, names in ((80, ["first", "second", "third"]), (120, list(frame))):
        lines = pseudo_terminal.in_short(Brief({"results": frame}), columns)
        assert lines[lines.index("results") + 1].split() == names
