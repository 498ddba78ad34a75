"""Last import of the process that ranks are forked from.

It imports the trainer, and takes everything imported so far out of Python's garbage collection. A rank's collector then
skips these objects, which saves half a second before its first step and keeps their memory shared between the ranks.
"""

import gc

import trainworks.worker.train

__all__ = ["trainworks"]

gc.freeze()
