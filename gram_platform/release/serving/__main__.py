"""Runs the process that `gram serve` starts, with its exit codes."""

import json
import sys

from gram_platform.config.endings import exit_codes, outlive_output
from gram_platform.config.plain import from_plain
from gram_platform.config.terminal import say
from gram_platform.release.serving.command import Service, serve_until_stopped

if __name__ == "__main__":
    outlive_output()
    with exit_codes():
        serve_until_stopped(from_plain(Service, json.loads(sys.argv[1])), say)
