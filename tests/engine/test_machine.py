"""What a process may use of its machine, which is what a Ray of its own and a study in one process
take.
"""

import subprocess
import sys

import pytest

from gram_platform.engine.machine import _quotas

ON_ONE_CPU = """
import os
from gram_platform.engine.machine import num_cpus
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(num_cpus())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds processes to CPUs")
def test_a_process_that_is_bound_to_one_cpu_counts_one():
    """As by taskset, or by Slurm's --cpus-per-task."""
    done = subprocess.run(
        [sys.executable, "-c", ON_ONE_CPU], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"


def test_quotas_of_all_control_groups_count(tmp_path):
    """Of version 2, where `max` is no quota, and of version 1."""
    own, above, old = tmp_path / "job/step", tmp_path / "job", tmp_path / "cpu/job"
    for folder in (own, old):
        folder.mkdir(parents=True)
    (own / "cpu.max").write_text("max 100000\n")
    (above / "cpu.max").write_text("150000 100000\n")
    (old / "cpu.cfs_quota_us").write_text("400000\n")
    (old / "cpu.cfs_period_us").write_text("100000\n")
    groups = tmp_path / "groups"
    groups.write_text("0::/job/step\n")
    assert list(_quotas(groups, tmp_path)) == [1.5]
    groups.write_text("4:memory:/job\n3:cpu,cpuacct:/job\n")
    assert list(_quotas(groups, tmp_path)) == [4.0]
