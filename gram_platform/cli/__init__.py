"""Runs the commands of `gram`.

A command's module is imported only to run it, because importing torch, Ray or MLflow takes seconds.
"""

import ast
import atexit
import gc
import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path

import tyro

from gram_platform import __version__
from gram_platform.analysis.columns import align_columns
from gram_platform.config.endings import escape_output, exit_codes
from gram_platform.config.identity import require_choice
from gram_platform.config.terminal import say

# By group, the module in this folder that defines `NAME_command`.
GROUPS = {
    "Run studies": {"list": "run", "prepare": "corpus", "run": "run", "replicate": "studies"},
    "Look at results": {
        "status": "storage",
        "show": "storage",
        "compare": "storage",
        "report": "studies",
        "search": "studies",
        "ui": "ui",
        "sync": "studies",
    },
    "Keep a storage": {"check": "check", "gc": "storage"},
    "Ship models": {
        "eval": "release",
        "export": "release",
        "import": "release",
        "serve": "release",
        "token": "release",
    },
}
COMMANDS = {name: module for group in GROUPS.values() for name, module in group.items()}


def main(arguments: list[str] | None = None) -> None:
    """Runs one command. The exit codes are listed in `config/endings.py`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Nothing is collected while the process ends, as in `exit_with`.
    atexit.register(gc.freeze)
    escape_output()
    with exit_codes("Type the same command again to go on"):
        try:
            _run(arguments)
        except BrokenPipeError as error:
            # The reader has exited, as in `gram status | head`; Python flushes stdout once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(0) from error
        except RuntimeError as error:
            # Imports MLflow.
            from gram_platform.tracking import TrackingUnavailable

            if not isinstance(error, TrackingUnavailable):
                raise
            raise ValueError(str(error)) from error


def _run(arguments: list[str]) -> None:
    name, rest = (arguments or [""])[0], arguments[1:]
    if name == "run" and rest and rest[0] not in ("-h", "--help"):
        import_module(f"{__name__}.run").run_named(rest[0], rest[1:])
    elif name in COMMANDS:
        from gram_platform.studies.flags import parse

        parse(find_command(name), rest, prog=f"gram {name}", config=(tyro.conf.FlagCreatePairsOff,))
    elif arguments in ([], ["-h"], ["--help"]):
        say(overview(), file=sys.stdout if arguments else sys.stderr)
        raise SystemExit(0 if arguments else 2)
    elif arguments in (["--version"], ["-V"], ["-v"], ["version"]):
        say(f"gram-platform {__version__}")
    elif not name.startswith("--tyro-"):
        require_choice("command", name, COMMANDS)
    else:
        # The shell asks for its completion.
        from gram_platform.cli.run import list_with_kinds, run_with_studies
        from gram_platform.studies.flags import FLAG_STYLE

        commands = {name: find_command(name) for name in COMMANDS}
        commands |= {"run": run_with_studies(), "list": list_with_kinds()}
        config = (*FLAG_STYLE, tyro.conf.OmitSubcommandPrefixes)
        tyro.extras.subcommand_cli_from_dict(commands, args=arguments, prog="gram", config=config)


def overview() -> str:
    """Lists all commands by group, each with the first line of its docstring."""
    lines, longest = ["usage: gram COMMAND ..."], max(map(len, COMMANDS))
    columns = min(shutil.get_terminal_size().columns, 100)
    for group, commands in GROUPS.items():
        rows = [("", name.ljust(longest), _about(name)) for name in commands]
        lines += ["", group, align_columns(rows, width=columns)]
    end = "gram COMMAND --help lists the flags of a command, gram --version prints the version."
    # A wheel is built with the address of the documents, if they have one.
    for package in distributions(name="gram-platform"):
        urls = package.metadata.get_all("Project-URL", [])
        end += "".join(f" {url}." for url in urls if url.startswith("Documentation"))
    return "\n".join([*lines, "", *textwrap.wrap(end, columns)])


def _about(name: str) -> str:
    tree = ast.parse(Path(__file__).with_name(f"{COMMANDS[name]}.py").read_text(encoding="utf-8"))
    [function] = [node for node in tree.body if getattr(node, "name", "") == f"{name}_command"]
    return ast.get_docstring(function).split("\n")[0]


def find_command(name: str) -> Callable[..., None]:
    return getattr(import_module(f"{__name__}.{COMMANDS[name]}"), f"{name}_command")
