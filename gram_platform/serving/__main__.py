"""`python -m gram_platform.serving JSON`: what `gram serve` becomes."""

import sys

from gram_platform.serving.command import Service, serve_until_stopped

if __name__ == "__main__":
    serve_until_stopped(Service.from_json(sys.argv[1]), lambda text: print(text, flush=True))
