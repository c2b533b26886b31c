"""Runs the `gram` command: runs and lists studies, prepares corpora, scores, exports, imports and serves."""

import os
import sys

import tyro

from gram_platform.cli.check import check_command
from gram_platform.cli.corpus import prepare_command
from gram_platform.cli.evaluate import eval_command
from gram_platform.cli.listing import list_command, show_command
from gram_platform.cli.release import export_command, import_command, serve_command, token_command
from gram_platform.cli.run import run_command, run_named
from gram_platform.cli.storage import compare_command, gc_command, status_command
from gram_platform.cli.studies import replicate_command, report_command, search_command, sync_command
from gram_platform.config.identity import printable
from gram_platform.tracking import TrackingUnavailable

COMMANDS = {
    "run": run_command,
    "list": list_command,
    "show": show_command,
    "prepare": prepare_command,
    "status": status_command,
    "compare": compare_command,
    "sync": sync_command,
    "report": report_command,
    "search": search_command,
    "replicate": replicate_command,
    "gc": gc_command,
    "check": check_command,
    "eval": eval_command,
    "export": export_command,
    "import": import_command,
    "serve": serve_command,
    "token": token_command,
}


def main(arguments: list[str] | None = None) -> None:
    """Runs one command. Exit code 0: done; 1: a check failed; 2: bad input, or MLflow is unreachable."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments[:1] == ["run"] and not "".join(arguments[1:2]).startswith("-") and arguments[1:]:
            run_named(arguments[1], arguments[2:])  # each study has flags of its own
        tyro.extras.subcommand_cli_from_dict(COMMANDS, args=arguments, prog="gram", description=__doc__)
    except (ValueError, TrackingUnavailable) as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        raise SystemExit(2) from error
    except BrokenPipeError as error:  # as in `gram status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at its end
        raise SystemExit(0) from error
