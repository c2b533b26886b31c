"""What Ray's own autoscaler does for a driver that avoids a machine whose device does not work."""

import pytest

from tests.cluster.test_autoscaling import pretended_cluster, seen_by  # noqa: F401

ONE_GPU = {
    "gpu-1": {
        "resources": {"CPU": 2, "GPU": 1},
        "min_workers": 0,
        "max_workers": 9,
        "node_config": {},
    }
}
JOB = """
import json, sys
from gram_platform.engine.cluster import ClusterLost
from gram_platform.store.root import read_cordoned
from gram_platform.store import Store
from gram_platform.studies.library.scaling import STUDY
from tests.submitted import execute

arguments = ["--preset", "smoke", "--sizes", "tiny", "--seeds", "2", "--methods", "baseline"]
arguments += ["--storage", sys.argv[1], "--device", "cuda", "--max-gpus", "1"]
text = ""
try:
    execute(STUDY, arguments)
except ClusterLost as error:
    text = str(error)
found = [machine["machine"] for machine in read_cordoned(Store(sys.argv[1]), "scaling")]
print("SEEN", json.dumps({"text": text, "cordoned": found, "runs": Store(sys.argv[1]).list_runs()}))
"""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("pretended_cluster", [ONE_GPU], indirect=True)
def test_a_growing_cluster_is_asked_for_three_replacements(pretended_cluster, tmp_path):  # noqa: F811
    """Ray counts a GPU of each machine, torch sees none: as with a broken driver in the image."""
    seen, said = seen_by(JOB, pretended_cluster, tmp_path)
    assert seen["text"], said[-6000:]
    assert len(set(seen["cordoned"])) == 4
    assert seen["runs"] == []
