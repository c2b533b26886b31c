"""The first process of a host: builds the host's root, then reaps orphans until its standard input
closes.

It runs in new namespaces with the standard library alone: `python -I init.py SPEC`, SPEC a JSON of
`name`, `hosts` (the text of /etc/hosts), `image` (paths to show read-only), `disk_mb` and `shm_mb`.
It prints its process id as its maker sees it once the root is there. When a first process ends, the
kernel kills all others of its namespace.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys

NEW = "/mnt"  # covered in this host's namespace only
OLD = "/old"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "net/tun")
FOLDERS = {
    "/root": 0o700,
    "/home": 0o755,
    "/tmp": 0o1777,
    "/var/tmp": 0o1777,
    "/run": 0o755,
    "/var/log": 0o755,
}


def call(*command: str) -> None:
    subprocess.run(command, check=True)


def show(path: str) -> None:
    """Makes a path of this machine visible in the new root at the same place, read-only; a link
    stays a link.
    """
    target = NEW + path
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
    elif not (os.path.exists(target) and os.path.samefile(path, target)):
        os.makedirs(target, exist_ok=True)
        call("mount", "--bind", path, target)
        call("mount", "-o", "remount,bind,ro", target)


def make_devices(shm_mb: int) -> None:
    call("mount", "-t", "tmpfs", "-o", "mode=755", "dev", f"{NEW}/dev")
    for name in DEVICES:
        if os.path.exists(f"/dev/{name}"):
            os.makedirs(os.path.dirname(f"{NEW}/dev/{name}"), exist_ok=True)
            open(f"{NEW}/dev/{name}", "w").close()
            call("mount", "--bind", f"/dev/{name}", f"{NEW}/dev/{name}")
    for folder in ("pts", "shm"):
        os.mkdir(f"{NEW}/dev/{folder}")
    call(
        "mount",
        "-t",
        "devpts",
        "-o",
        "newinstance,ptmxmode=0666,mode=620",
        "devpts",
        f"{NEW}/dev/pts",
    )
    call("mount", "-t", "tmpfs", "-o", f"size={shm_mb}m,mode=1777", "shm", f"{NEW}/dev/shm")
    for name, target in (
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
    ):
        os.symlink(target, f"{NEW}/dev/{name}")
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{NEW}/dev/{name}")


def write_names(name: str, hosts: str) -> None:
    """A copy of /etc that the host may change, with the names of the box and no name server."""
    shutil.copytree("/etc", f"{NEW}/etc", symlinks=True, ignore_dangling_symlinks=True)
    for file, text in (("hosts", hosts), ("hostname", name + "\n"), ("resolv.conf", "")):
        path = f"{NEW}/etc/{file}"
        if os.path.lexists(path):
            os.remove(path)
        with open(path, "w") as stream:
            stream.write(text)
    socket.sethostname(name)


def build_root(spec: dict) -> None:
    call("mount", "-t", "tmpfs", "-o", f"size={spec['disk_mb']}m,mode=755", "disk", NEW)
    for folder in ("/proc", "/sys", "/dev", OLD):
        os.mkdir(NEW + folder)
    for folder, mode in FOLDERS.items():
        os.makedirs(NEW + folder)
        os.chmod(NEW + folder, mode)
    os.symlink("/run", f"{NEW}/var/run")
    for path in (*SYSTEM, *spec["image"]):
        if os.path.lexists(path):
            show(path)
    write_names(spec["name"], spec["hosts"])
    make_devices(spec["shm_mb"])
    call("mount", "-t", "proc", "proc", f"{NEW}/proc")
    call("mount", "-t", "sysfs", "-o", "ro", "sysfs", f"{NEW}/sys")
    call("pivot_root", NEW, NEW + OLD)
    os.chdir("/")
    call("umount", "--lazy", OLD)
    os.rmdir(OLD)


def reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    outside = os.readlink("/proc/self")  # the old /proc still counts as the maker does
    build_root(json.loads(sys.argv[1]))
    call("ip", "link", "set", "lo", "up")
    signal.signal(signal.SIGCHLD, reap)
    print(outside, flush=True)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
