"""Real media: from the files of a benchmark, as they lie on disk, to rows of a batch.

A `Collection` says which samples a folder holds and how one is decoded. `prepare` decodes them into
a `Store`, memory-mapped arrays with a manifest, and views make batches of what is stored.
"""
