"""The shell's completion of `gram` knows the commands, and of `gram run` the studies with their
flags."""

import subprocess

import pytest

from gram_platform.cli import COMMANDS, main
from gram_platform.cli.run import OURS

ASK = """
source "$1"
COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2)) COMP_LINE="${*:2}" COMP_POINT=${#COMP_LINE}
complete=($(complete -p gram))
for place in "${!complete[@]}"; do [ "${complete[place]}" = -F ] && "${complete[place + 1]}"; done
echo "${COMPREPLY[*]}"
"""
ANSWERS = {
    ("run", "sca"): {"scaling"},
    ("run", "scaling", "--me"): {"--methods"},
    ("run", "scaling", "--device", ""): {"cpu", "cuda"},
    ("run", "scaling", "--methods", "gram_"): {"gram_subsets", "gram_lora"},
    ("run", "scaling", "--preset", "smo"): {"smoke"},
    ("run", "scaling", "--sizes", "small"): {"small"},
    ("list", "me"): {"methods"},
    ("run", "scaling", "--not"): {"--notify"},
    ("run", "lr_bs_grid", "--max-e"): {"--max-extensions"},
    ("run", "maxent_search", "--tri"): {"--trials"},
    ("status", "--ma"): {"--machine"},
}


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("completion") / "gram.bash")
    with pytest.raises(SystemExit) as ended:
        main(["--tyro-write-completion", "bash", path])
    assert not ended.value.code
    return path


def offered(script: str, *words: str) -> set[str]:
    """Returns what bash offers for the last word of `gram WORDS`."""
    command = ["bash", "-c", ASK, "bash", script, "gram", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_shell_knows_commands_studies_and_flags(script):
    assert offered(script, "") >= set(COMMANDS)
    assert offered(script, "run", "") >= set(OURS)
    assert {words: offered(script, *words) for words in ANSWERS} == ANSWERS
