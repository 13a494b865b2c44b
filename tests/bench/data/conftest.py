"""What tests of several data sets share."""

from .wheels import index

__all__ = ["index"]
