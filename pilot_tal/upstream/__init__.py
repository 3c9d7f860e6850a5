"""TAL, the long-tailed sets and the run directory inside an unmodified checkout of LAMDA-PILOT or PyCIL.

    sites        which cross-entropy of which learner is swapped, and which stays (toolboxes.json)
    seams        checks, before anything is imported, that a checkout still has what the driver relies on
    swap         calls a loss in the place of those cross-entropies, with its task and the right columns
    source       a long-tailed set as a data source of the checkout; ViT weights from a file
    workarounds  what the originals cannot do on a CPU, offline, or with small classes
    writer       writes the run directory
    driver       runs one job; started by `pilot-tal upstream` in the checkout's own environment

Only torch, NumPy and the light modules of this package are imported here: the environment is the checkout's.
"""
