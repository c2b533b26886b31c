"""A misspelt value is answered with the one that was probably meant."""

import re

import pytest

from gram_platform.cli import main
from gram_platform.config.identity import InvalidField
from gram_platform.studies.library.scaling import STUDY
from tests.submitted import study_plan

MISSPELT = {
    ("--preset", "smok"): "smoke",
    ("--preset", "smoke", "--methods", "filterin"): "filtering",
    ("--preset", "paper", "--sizes", "50m"): "50M",
    ("--preset", "smoke", "--sizes", "800M"): "--preset paper",
    ("--preset", "smoke", "--set", "routng.p_aux_spread=0.1"): "routing",
    ("--preset", "smoke", "--law", "dem"): "demo",
    ("--preset", "smoke", "--corpus", "storis"): "stories",
}


@pytest.mark.parametrize("arguments", MISSPELT, ids=" ".join)
def test_a_misspelt_value_gets_a_suggestion(arguments, storage):
    with pytest.raises(InvalidField) as refused:
        study_plan(STUDY, list(arguments))
    assert MISSPELT[arguments] in re.split("[:.] ", refused.value.expected)[-1]


def test_a_misspelt_choice_gets_a_suggestion(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["list", "metods"])
    assert ended.value.code == 2
    assert "methods" in capsys.readouterr().err
