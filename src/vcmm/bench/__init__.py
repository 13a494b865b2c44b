"""The benchmark: every method trained on equal terms, and a report that one wants to read.

Nothing here is imported by the library itself.
"""
