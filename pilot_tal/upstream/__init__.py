"""Losses and long-tailed sets of ours inside an unmodified checkout of LAMDA-PILOT, for learners without replay.

    plan         from a command line to jobs, in our own environment
    driver       runs a job and writes the run directory, in the checkout's environment
    checkout     the learners, and which cross-entropy of which is swapped (learners.json)
    swap         calls a loss in the place of those cross-entropies, with its task and the columns of the task
    workarounds  data, weights and ViTs from outside, and what the originals cannot do with small tasks or on a CPU

But for `plan`, only torch, NumPy and the light modules of this package are imported: the environment is the checkout's.
"""
