"""Runs a learner over a stream of tasks: progress, checkpoints, resume, results."""
