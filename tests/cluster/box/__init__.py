"""A cluster in a box: several Linux hosts on one machine, which a test may break.

A host has its own address, name, processes, `/proc`, `/tmp`, `/dev/shm`, home and disk. Hosts share
the processor, the memory and, read-only, the programs of this machine with the virtual environment
(their image); nothing else.

    from tests.cluster.box import Box, Machine

    machines = Machine("laptop", sees=(ROOT,)), Machine("head"), Machine("worker", disk_mb=512)
    with Box(*machines) as box:
        head, worker = box["head"], box["worker"]
        # Its output, or an error.
        head.run("ray", "start", "--head", f"--node-ip-address={head.address}", timeout_s=60)
        # A Popen.
        server = worker.start("python", "-m", "http.server", log=tmp_path / "server.log")
        worker.cut(); worker.mend()  # pulls the cable, and plugs it in again
        worker.impair(delay_ms=20, loss=0.005)  # each way, until mend()
        worker.suspend(); worker.resume()  # every process is stopped, and the host answers nobody
        worker.fill_disk(); worker.free_disk()  # no space left on device
        worker.kill_processes()  # the host lives on, without processes
        worker.power_off(); worker.boot()  # untold; a new host with an empty disk

On hosts `python`, `ray` and the like are those of this environment, whether or not the host sees a
checkout. Names of hosts resolve on all hosts. There is a default route, as Ray expects, but it
leads nowhere. A machine that a test has killed costs nothing: every namespace ends with the process
that made the box, even by SIGKILL, because a host's first process ends when its standard input
closes, and nothing lies outside of the namespaces. Leaving the box asserts that.

Give Ray `--num-cpus`, `--memory` and `--object-store-memory`, because a host sees the whole
machine's, and `RAY_memory_monitor_refresh_ms=0`. Two cores carry four Ray nodes. `why_not()` says
why this machine cannot have a box.
"""

from tests.cluster.box.hosts import Box, Host, Machine, why_not

__all__ = ["Box", "Host", "Machine", "why_not"]
