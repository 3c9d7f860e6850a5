"""Runs a learner over a stream of tasks: progress, checkpoints, resume, results."""

from pilot_tal.engine.run import execute, run_path

__all__ = ["execute", "run_path"]
