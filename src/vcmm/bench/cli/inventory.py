"""What a folder of media holds, and what a store made of it, in a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..signature import Value, written
from .tables import console, printable

if TYPE_CHECKING:
    from ..media.check import Inspection
    from ..media.store import Store

Json = Mapping[str, Any]
SHOWN = 10  # samples that are named; --json has all
ROOM = 12  # classes that get a column each


def show_inspection(found: Inspection, root: Path, options: Mapping[str, Value]) -> None:
    """What there is, what lacks, and what to do next."""
    tried = "can be used" if found.decoded else "have all their files; whether they decode is open"
    head(found.name, f"{found.samples} samples {tried}")
    show_lists(found.lists, found.labels, found.split_hash)
    show_reasons("cannot be decoded", found.unreadable)
    show_reasons("lacking", found.missing)
    show_remarks(found.remarks)
    if found.damage is not None:
        head("\nThe store that was prepared is damaged")
        say(f" {found.damage}")
    if found.missing:
        head("\nWhat is expected, and how to obtain it\n")
        say(found.layout)
    if found.samples:
        line = ["vcmm", "data", "prepare", found.name, "--root", str(root)]
        say(f"\nNext   {shlex.join([*line, *flags(options, '--')])}")


def show_store(store: Store, options: Mapping[str, Value]) -> None:
    """What was prepared, what was left out, and what to do next."""
    manifest = store.manifest
    name, failed = manifest["name"], manifest["failed"]
    size = sum(file["bytes"] for file in manifest["files"].values())
    head(name, f"{len(store)} of {len(store) + len(failed)} samples are prepared")
    show_lists(manifest["lists"], store.labels, manifest["split_hash"])
    show_reasons("left out", failed)
    show_reasons("lacking", manifest["missing"])
    show_remarks(manifest["remarks"])
    say(f"\nStore  {store.path}  ({amount(size)})")
    say(f"Next   {shlex.join(['vcmm', 'compare', '--data', name, *trained(store, options)])}")


def trained(store: Store, options: Mapping[str, Value]) -> list[str]:
    """The flags that train on a store: a protocol's, and those in which the store differs."""
    from ..protocols import PROTOCOLS, fitting

    decoded: Json = store.manifest["parameters"]
    protocol = fitting(store.manifest["name"], decoded)
    if protocol is None:
        return flags(options, "--data.")
    usual = PROTOCOLS[protocol](store.manifest["name"]).data.options
    other = {name: value for name, value in decoded.items() if value != usual[name]}
    split = usual.get("split", "")
    if split and "split" not in decoded and f"{split}/train" not in store.manifest["lists"]:
        other["split"] = "stratified"  # the lists that the protocol asks for are not there
    return ["--protocol", protocol, *flags(other, "--data.")]


def show_lists(lists: Mapping[str, Json], labels: Sequence[str], split_hash: str) -> None:
    """Samples of every list and class; many classes have a table of their own."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("list", no_wrap=True)
    table.add_column("samples", justify="right")
    across = labels if len(labels) <= ROOM else ()
    for label in across:
        table.add_column(Text(printable(label)), justify="right")
    table.add_column("hash", no_wrap=True)
    for name, one in sorted(lists.items()):
        cells = [str(one["classes"][label]) for label in across]
        cells = [name, str(one["samples"]), *cells, one["hash"]]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    screen = console()
    screen.print()
    screen.print(table)
    if not across:
        show_classes(lists, labels)
    say(f"\nSplit  {split_hash}, the same for whoever has the same samples in the same lists")


def show_classes(lists: Mapping[str, Json], labels: Sequence[str]) -> None:
    """Samples of every class, a line each, in every list."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("class")
    for name in sorted(lists):
        table.add_column(Text(printable(name)), justify="right")
    for label in labels:
        counts = [str(of["classes"][label]) for _, of in sorted(lists.items())]
        table.add_row(Text(printable(label)), *counts)
    screen = console()
    screen.print()
    screen.print(table)


def show_reasons(what: str, reasons: Mapping[str, str]) -> None:
    """Which samples, and why."""
    from rich.table import Table
    from rich.text import Text

    if not reasons:
        return
    head(f"\n{len(reasons)} {what}")
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, why in list(reasons.items())[:SHOWN]:
        table.add_row(Text(f" {printable(name)}", style="red"), Text(printable(why)))
    console().print(table)
    if len(reasons) > SHOWN:
        say(f" and {len(reasons) - SHOWN} more; --json has all")


def show_remarks(remarks: Sequence[str]) -> None:
    """What a person should know."""
    from rich.table import Table
    from rich.text import Text

    if not remarks:
        return
    head("\nRemarks")
    lines = Table.grid(padding=(0, 1))
    for remark in remarks:
        lines.add_row(" •", Text(printable(remark)))
    console().print(lines)


def flags(options: Mapping[str, Value], prefix: str) -> list[str]:
    """Options as one would type them."""
    return [
        part
        for option, value in options.items()
        for part in (prefix + option.replace("_", "-"), written(value))
    ]


def amount(size: float) -> str:
    """14.2 GB"""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def head(bold: str, rest: str = "") -> None:
    """A line that begins a part of the report."""
    from rich.text import Text

    text = Text.assemble((bold, "bold"), f"  {rest}" if rest else "")
    console().print(text, soft_wrap=True)


def say(text: str) -> None:
    """Lines that may be copied, and are therefore never broken."""
    console().print(text, markup=False, soft_wrap=True)
