"""A slow and lossy link: forwards frames between two TAP devices, each way after a delay, and drops
some.

Kernels without netem need it, and it works in all of them: `python -I impaired.py TAP TAP DELAY_S
LOSS`. It makes the devices, prints `ready`, and ends when its standard input closes, which removes
the devices.
"""

import collections
import fcntl
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000  # linux/if_tun.h
FRAME_BYTES = 65536
WAITING_FRAMES = 10_000  # a longer queue drops frames, as a router does


def tap(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


def forward(devices: tuple[int, int], delay_s: float, loss: float, chance: random.Random) -> None:
    """Until standard input closes.

    One delay for all frames keeps their order, so that a queue suffices.
    """
    other = dict(zip(devices, reversed(devices), strict=True))
    waiting: collections.deque[tuple[float, int, bytes]] = collections.deque()
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select([*devices, sys.stdin.fileno()], [], [], timeout)
        if sys.stdin.fileno() in readable:
            return
        now = time.monotonic()
        for device in readable:
            frame = os.read(device, FRAME_BYTES)
            if chance.random() >= loss and len(waiting) < WAITING_FRAMES:
                waiting.append((now + delay_s, other[device], frame))
        while waiting and waiting[0][0] <= now:
            _, device, frame = waiting.popleft()
            try:
                os.write(device, frame)
            except OSError:
                continue  # the device is down or full: the frame is lost


def main() -> None:
    first, second, delay_s, loss = sys.argv[1:]
    devices = (tap(first), tap(second))
    print("ready", flush=True)
    forward(devices, float(delay_s), float(loss), random.Random(0))


if __name__ == "__main__":
    main()
