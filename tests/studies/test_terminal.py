"""What a person reads in a terminal of 80 columns while a study runs and when it ends; and in a log."""

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
import os, sys, time
from gram_platform.engine.life import Progress
from gram_platform.pages.results.results import brief_results, summary_text
from gram_platform.studies.build import build_graph
from gram_platform.studies.flags import parse
from gram_platform.studies.library.scaling import STUDY
from gram_platform.studies.live import LiveView
from tests.pages.test_unit import rows, study

nodes = build_graph(STUDY, parse(STUDY, ["--preset", "demo", "--storage", sys.argv[1]])).nodes
first, second, *others = [node for node in nodes if node.is_run]

class Planted:
    "A storage in which every run is at its tenth step or later."
    def run(self, run_id):
        self.place = [node.id for node in (first, second, *others)].index(run_id)
        return self
    def progress(self):
        step = 10 + self.place % 50
        return {"step": step, "num_steps": 100, "tokens_per_second": 1234567.0, "time": time.time() + 1}
    def result(self):
        return None
    def timing(self):
        return {"elapsed_s": 12.0, "tokens_per_second": 19638.0}

def show(num_running):
    view = LiveView(nodes, Planted(), "scaling")
    view.in_process = True  # no gauges, which need Ray
    progress = Progress(nodes, {first.id}, {node.id: 0.0 for node in others[:num_running]})
    progress.failed[second.id] = "the loss became NaN"
    with view:
        view.started -= 3600.0
        view.base_flops = 0.0
        progress.warn(second, ["died; starts again"])
        view.update(progress, first)
        view.update(progress, second)
        view.begin_trials(4)
        view.trial_started("a trial", [first])
        view.trial_started("tiny lr 0.004 batch 8 s0", [second])
        view.trial_ended("a trial", "a trial: loss 3.2 (5 s)")
        view._show_trials()
    found = study(*rows("tiny", 0.07, 0.11))
    text = summary_text(found.record, found)
    view.show(text, lambda is_wide: brief_results(found.record, found, is_wide))

for number, environment in ((3, {}), (60, {}), (3, {"NO_COLOR": "1"})):
    os.environ.update(environment)
    print("scene", flush=True)
    show(number)
"""


def lines_of(printed: str) -> list[str]:
    return [line.rstrip() for line in re.split(r"[\r\n]", pseudo_terminal.plain(printed))]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> list[str]:
    """What a study of planted runs prints: with three runs, with sixty, and with three where no colour is wanted."""
    place = str(tmp_path_factory.mktemp("storage"))
    code, printed = pseudo_terminal.run(place, program=PROGRAM, columns=COLUMNS, rows=30)
    assert code == 0, printed
    return printed.split("scene\n")[1:]


def test_nothing_is_wider_than_80_columns_and_the_time_left_is_whole(scenes):
    for printed, num_running in zip(scenes, (3, 60, 3), strict=True):
        lines = lines_of(printed)
        assert max(map(len, lines)) <= COLUMNS
        assert "\u2026" not in printed
        total = next(line for line in lines if line.startswith("all runs"))
        assert re.search(r"\d+% [\d,]+ tokens/s about \d+:\d\d:\d\d left$", total)
        first = printed.index("all runs")
        frame = lines_of(printed[first : printed.find("runs 1/", first)])
        running = [line for line in frame if re.search(r"\d+% 1,234,567 tokens/s +\d+:\d\d$", line)]
        assert len(running) == min(num_running, 13)
        assert any(line.startswith("warning: ") and line.endswith("died; starts again") for line in lines)
        # What the terminal has no lines for is counted.
        assert ("and 47 more" in lines) == (num_running == 60)


def test_the_trials_of_a_search_have_bars(scenes):
    lines = lines_of(scenes[0])
    assert any(re.match(r"\[  1/4\] .*: loss 3\.2 \(5 s\)", line) for line in lines)
    assert any(re.match("1 of 4 .*, 1 running", line) for line in lines)
    assert any(re.fullmatch(r"all trials +\u2501\S+ +25% +about 0:0\d left", line) for line in lines)
    assert any(re.fullmatch(r"tiny lr 0\.004 batch 8 s0 +\u2501\S+ +11%", line) for line in lines)


def test_results_are_in_short_and_the_report_has_the_rest(scenes):
    lines = lines_of(scenes[0])
    table = lines[lines.index("profile mean") :]
    assert table[1].split() == ["method", "core", "retain", "forget"]
    rows = {line.split()[0]: line for line in table[2:5]}
    assert set(rows) == {"baseline", "GRAM", "filtering"}
    assert re.search(r"^GRAM +(0\.94\d \u00b1\.00\d +){2}0\.75\d \u00b1\.00\d$", rows["GRAM"])
    counted = next(line for line in lines if line.startswith("claims: "))
    assert re.fullmatch(r"claims: (\d+ (agree|disagree|cannot tell)(, )?)+; .*", counted)
    assert re.search("core by \u00b10.07", " ".join(lines))  # the warning of a poor unit


def test_colour_is_for_terminals_that_want_it(scenes):
    colour = re.compile(r"\x1b\[[0-9;]*(3[0-9]|38;5;\d+)m")
    assert "\x1b[31m" in scenes[0]  # the failure
    assert not colour.search(scenes[2])


def test_a_log_has_plain_lines_with_everything(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "\x1b" not in done.stdout
    assert re.search(
        r"^runs 1/81 \| evaluations 0/72 \| 3 training, 148 waiting \| 3,703,701 tokens/s \| about \d+:\d\d:\d\d left"
        r" \| 1 failed, 0 blocked \| filtering 0\.1M core\+airport s100, attacked for attic 12%, ",
        done.stdout,
        re.MULTILINE,
    )
    trials = r"^1 of 4 trials ended, 1 running, about 0:0\d left \| tiny lr 0\.004 batch 8 s0 11%$"
    assert re.search(trials, done.stdout, re.MULTILINE)
    assert re.search(r"^GRAM +tiny +mean +0\.9\d\d \[0\.\d+, 0\.\d+\]", done.stdout, re.MULTILINE)


def test_a_narrow_terminal_leaves_out_the_last_columns():
    number, words = "0.123 [0.101, 0.145]", "a text of several words that is wrapped"
    frame = pd.DataFrame({"name": [words], **{name: [number] for name in ("first", "second", "third", "fourth")}})
    brief = Brief({"results": frame}, text=words)
    lines = pseudo_terminal.in_short(brief)
    assert lines[2].split() == ["name", "first", "second", "third"]
    assert "report" in lines[-2]
    assert "fourth" in " ".join(pseudo_terminal.in_short(brief, columns=120))
