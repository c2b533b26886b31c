"""Makes `python -m gram_platform` the `gram` command."""

from gram_platform.cli import main

main()
