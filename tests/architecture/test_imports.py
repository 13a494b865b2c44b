"""Who may import whom, read from the source, and what `import vcmm` really brings in."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vcmm

ROOT = Path(vcmm.__file__).parent
FILES = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py"))}
# The ground floor. Integrations and the benchmark stand on it, and name what they build upon.
LIBRARY = [name for name in FILES if not name.startswith(("bench/", "integrations/"))]
PURE = ("probe.py", "dynamics.py", "gain.py", "number.py")


def imports(source: str, package: str) -> Iterator[str]:
    """The dotted name of everything that a source imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parts, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def of(name: str) -> set[str]:
    package = ".".join(("vcmm", *Path(name).parent.parts))
    return set(imports(FILES[name].read_text(encoding="utf-8"), package))


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def test_the_reader_sees_every_kind_of_import() -> None:
    source = """
import torch.nn as nn, json
from torch import Tensor
from . import probe
from .probe import Probe as P
from .. import other
def f():
    import vcmm.bench.run
    if True:
        from vcmm.bench import spec
"""
    assert set(imports(source, "vcmm.inner")) == {
        "torch.nn",
        "json",
        "torch.Tensor",
        "vcmm.inner.probe",
        "vcmm.inner.probe.Probe",
        "vcmm.other",
        "vcmm.bench.run",
        "vcmm.bench.spec",
    }


def test_the_files_of_the_library_are_found() -> None:
    assert {"__init__.py", "controller.py", "policy.py", "reference.py", *PURE} <= set(LIBRARY)


@pytest.mark.parametrize("name", LIBRARY)
def test_the_library_imports_torch_numpy_and_the_standard_library_alone(name: str) -> None:
    allowed = {"torch", "numpy", "vcmm", *sys.stdlib_module_names}
    assert {found.split(".")[0] for found in of(name)} <= allowed


@pytest.mark.parametrize("name", PURE)
def test_probe_dynamics_and_gain_are_pure_functions_of_tensors(name: str) -> None:
    allowed = {"torch", "vcmm", *sys.stdlib_module_names}
    found = of(name)
    assert {one.split(".")[0] for one in found} <= allowed
    for barred in ("torch.nn", "torch.optim", "torch.distributed"):
        assert not [one for one in found if within(one, barred)]
    # By attribute neither: torch.nn.functional needs no import of its own.
    for node in ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in {("torch", "nn"), ("torch", "optim")}


@pytest.mark.parametrize("name", PURE)
def test_what_the_pure_files_import_of_vcmm_is_pure(name: str) -> None:
    siblings = {f"vcmm.{Path(pure).stem}" for pure in PURE}
    ours = [found for found in of(name) if within(found, "vcmm")]
    assert all(any(within(found, sibling) for sibling in siblings) for found in ours)


@pytest.mark.parametrize("name", [n for n in FILES if not n.startswith("bench/")])
def test_nothing_of_the_library_imports_the_benchmark(name: str) -> None:
    assert not [found for found in of(name) if within(found, "vcmm.bench")]


@pytest.mark.parametrize("name", [n for n in FILES if n != "reference.py"])
def test_the_reference_is_imported_by_tests_alone(name: str) -> None:
    """A yardstick that what it measures is made from would measure nothing."""
    assert not [found for found in of(name) if within(found, "vcmm.reference")]


def test_the_reference_shares_no_code_with_the_library() -> None:
    assert not [found for found in of("reference.py") if within(found, "vcmm")]


def loaded_by(statement: str) -> set[str]:
    """Every module that is there after a statement, in a fresh interpreter."""
    script = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_vcmm_imports_nothing_beyond_torch_and_numpy() -> None:
    use = "from vcmm import VCMM, Frozen, ProbeHeads, modal_groups, register"
    base, ours = loaded_by("import numpy, torch"), loaded_by(f"import numpy, torch\n{use}")
    mine = {name for name in ours if within(name, "vcmm")}
    assert {"vcmm", "vcmm.controller"} <= mine
    assert not {name for name in mine if within(name, "vcmm.bench")}
    assert "vcmm.reference" not in mine
    # Nor a part of torch that is slow to load, such as torch._dynamo.
    assert {name.split(".")[0] for name in ours - base} <= {"vcmm"}


def test_torch_is_not_loaded_before_a_name_is_asked_for() -> None:
    assert "torch" not in loaded_by("import vcmm")
    assert "torch" in loaded_by("import vcmm; vcmm.Kalman")
