"""The samples page: one file without foreign parts, and the permission for its own script and style alone."""

import base64
import functools
import hashlib
import re
from importlib import resources


@functools.cache
def page_and_policy() -> tuple[str, str]:
    """(the HTML, its Content-Security-Policy)."""
    html = resources.files("gram_platform.release.serving").joinpath("page.html").read_text(encoding="utf-8")
    script, style = (_hash_of(html, tag) for tag in ("script", "style"))
    parts = ["default-src 'none'", f"script-src {script}", f"style-src {style}", "connect-src 'self'"]
    return html, "; ".join([*parts, "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"])


def _hash_of(html: str, tag: str) -> str:
    content = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL).group(1)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
