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


# The benchmark

BENCH = [name for name in FILES if name.startswith("bench/")]
METHODS = [n for n in BENCH if n.startswith("bench/methods/") and not n.endswith("__init__.py")]
# What a method is written in. Nobody who runs, judges or describes one, and no other method.
VOCABULARY = ("method", "model", "types", "fusions", "by_modality", "holdout", "lists")
# What reads records, checks specs or talks to a terminal must answer before torch has loaded.
WITHOUT_TORCH = [
    name
    for name in BENCH
    if name.startswith(
        tuple(f"bench/{room}/" for room in ("report", "cli", "suites", "launch", "statistics"))
    )
    or Path(name).stem
    in {
        "analysis",
        "arms",
        "events",
        "folder",
        "recommend",
        "records",
        "registry",
        "roles",
        "selection",
        "signature",
        "spec",
        "studies",
        "wording",
    }
]


def at_import(source: str, package: str) -> set[str]:
    """What importing a file imports: not what its functions do, nor what only a checker sees."""

    class Outside(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None: ...

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None: ...

        def visit_If(self, node: ast.If) -> ast.AST | None:
            if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                return None
            return self.generic_visit(node)

    return set(imports(ast.unparse(Outside().visit(ast.parse(source))), package))


def outside_functions(name: str) -> set[str]:
    package = ".".join(("vcmm", *Path(name).parent.parts))
    return at_import(FILES[name].read_text(encoding="utf-8"), package)


def module(name: str) -> str:
    """The dotted name of a file."""
    parts = ("vcmm", *Path(name).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_the_reader_tells_what_is_imported_at_once_from_what_waits() -> None:
    source = """
from typing import TYPE_CHECKING
import numpy
if TYPE_CHECKING:
    import scipy
try:
    import rich
except ImportError:
    pass
class A:
    import duckdb
    def f(self):
        import torch
def g():
    from . import other
"""
    found = at_import(source, "vcmm.bench")
    assert found == {"typing.TYPE_CHECKING", "numpy", "rich", "duckdb"}


def test_the_files_of_the_benchmark_are_found() -> None:
    assert {"bench/methods/joint.py", "bench/methods/unimodal.py"} <= set(METHODS)
    assert {"bench/spec.py", "bench/records.py", "bench/cli/__init__.py"} <= set(WITHOUT_TORCH)
    assert "bench/train.py" in set(BENCH) - set(WITHOUT_TORCH)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_written_in_its_vocabulary_and_torch(name: str) -> None:
    allowed = {"torch", "vcmm", *sys.stdlib_module_names}
    assert {found.split(".")[0] for found in of(name)} <= allowed
    ours = [found for found in of(name) if within(found, "vcmm")]
    assert not [
        found
        for found in ours
        if not any(within(found, f"vcmm.bench.{word}") for word in VOCABULARY)
    ]


@pytest.mark.parametrize("word", VOCABULARY)
def test_the_vocabulary_knows_nothing_of_methods_and_of_who_runs_them(word: str) -> None:
    barred = ("methods", "data", "train", "run", "judge", "build", "spec", "registry", "launch")
    for name in BENCH:
        if name == f"bench/{word}.py" or name.startswith(f"bench/{word}/"):
            for other in barred:
                assert not [found for found in of(name) if within(found, f"vcmm.bench.{other}")]


@pytest.mark.parametrize("name", [name for name in BENCH if name not in METHODS])
def test_no_method_is_special_to_anybody(name: str) -> None:
    """All are known by the dict of them; an `if` about one of them would need its class."""
    if name != "bench/methods/__init__.py":
        found = {found for found in of(name) if within(found, "vcmm.bench.methods")}
        assert found <= {"vcmm.bench.methods.METHODS"}


@pytest.mark.parametrize("name", BENCH)
def test_heavy_libraries_wait_for_the_function_that_needs_them(name: str) -> None:
    light = {"vcmm", "torch", "numpy", *sys.stdlib_module_names}
    if name.startswith("bench/cli/"):
        light |= {"typer"}  # which is what a command line is made of
    assert {found.split(".")[0] for found in outside_functions(name)} <= light


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_who_reads_and_describes_names_no_torch_outside_of_functions(name: str) -> None:
    assert not [found for found in outside_functions(name) if within(found, "torch")]


@pytest.mark.parametrize("name", [n for n in WITHOUT_TORCH if "/report/" in n or "records" in n])
def test_records_and_reports_need_no_torch_at_all(name: str) -> None:
    assert not [found for found in of(name) if within(found, "torch")]


def test_who_reads_and_describes_loads_neither_torch_nor_what_is_heavy() -> None:
    """The whole closure, as an interpreter has it: whom a file imports imports others."""
    script = f"""
import importlib, json, sys
heavy = {{"torch", "duckdb", "plotly", "scipy", "matplotlib", "jinja2", "torchmetrics", "sklearn"}}
for name in {[module(name) for name in WITHOUT_TORCH]!r}:
    importlib.import_module(name)
    if found := heavy & sys.modules.keys():
        sys.exit(f"{{name}} loads {{', '.join(sorted(found))}}")
print(json.dumps(sorted(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_the_command_line_starts_without_what_only_its_commands_need() -> None:
    loaded = loaded_by("import vcmm.bench.cli")
    assert "typer" in loaded
    for barred in ("torch", "numpy", "duckdb", "plotly", "scipy", "rich.table", "rich.live"):
        assert barred not in loaded
