"""The accuracy on the classes of the first session after each session, for several model folders of `pilot-tal learn`.

python scripts/plot_learn.py OUTPUT.svg FOLDER...
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt

from pilot_tal.record.run_dir import load_run


def main(output: str, *folders: str) -> None:
    """Draws one line per model, named after its method."""
    plt.rcParams["svg.hashsalt"] = "learn"
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    for folder in folders:
        run = load_run(Path(folder))
        values = [100 * row[0] for row in run.metrics["task_matrix"]]
        axes.plot(range(1, len(values) + 1), values, marker="o", markersize=4, label=run.record.method.title)
    axes.set(xlabel="sessions", ylabel="accuracy on first classes (%)", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(output, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
