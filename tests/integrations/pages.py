"""Runs the code of a page of the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs" / "integrations"


def run(page: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """From top to bottom; errors and tracebacks show the page's own line numbers."""
    path = DOCS / page
    inside, code = False, []
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("```"):
            inside = line == "```python"
        code.append(line if inside and not line.startswith("```") else "")
    exec(compile("\n".join(code), str(path), "exec"), namespace)
    return namespace
