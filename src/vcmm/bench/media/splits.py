"""Which samples the lists of a data set name: in numbers, and as a hash that tells two sets apart.

Two people have the same split if the hashes are equal: of each list, its ids and their labels.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .collection import Item


def counted(items: Sequence[Item], labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For every list its samples, how many of each class, and the hash."""
    found: dict[str, dict[str, Any]] = {}
    for name in sorted({name for item in items for name in item.lists}):
        here = [item for item in items if name in item.lists]
        counts = Counter(item.label for item in here)
        found[name] = {
            "samples": len(here),
            "classes": {label: counts[label] for label in labels},
            "hash": split_hash(here),
        }
    return found


def split_hash(items: Sequence[Item]) -> str:
    """Of the ids of some samples, their labels and the lists that name them, in no order."""
    told = sorted([item.id, item.label, sorted(item.lists)] for item in items)
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
