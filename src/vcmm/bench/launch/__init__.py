"""Who executes a list of specs. So far: the cores of this machine."""

from .local import cores, launch

__all__ = ["cores", "launch"]
