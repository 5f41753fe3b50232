"""The page itself: one document with style and scripts inside, and the rule that nothing else may run in it."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

SCRIPTS = ("drawing.js", "panels.js", "following.js", "page.js")  # one after the other, in one scope


@dataclass(frozen=True)
class Document:
    """HTML, and the content security policy that goes with it."""

    html: bytes
    policy: str


def document() -> Document:
    """The live page; it holds no word of any run, these come as JSON and are shown as text."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ImportError("the page needs plotly, which is not installed: pip install 'spherometer[report]'") from None

    report, live = files("spherometer.report"), files("spherometer.report.live")
    own = "\n".join((live / name).read_text(encoding="utf-8") for name in SCRIPTS)
    scripts = {"plotly": get_plotlyjs(), "script": f'"use strict";\n(() => {{\n{own}\n}})();\n'}
    styles = (report / "page.css", live / "live.css")
    parts = scripts | {"style": "\n".join(path.read_text(encoding="utf-8") for path in styles)}
    template = (live / "live.html").read_text(encoding="utf-8")
    html = re.sub(r"/\* (style|plotly|script) \*/", lambda found: parts[found[1]], template)
    allowed = " ".join(f"'sha256-{_digest(content)}'" for content in scripts.values())
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Document(html.encode(), policy)


def _digest(content: str) -> str:
    return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
