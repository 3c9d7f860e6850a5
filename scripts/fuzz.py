"""Wrong settings and damaged files by the thousand: each must be answered by one sentence, or by a right result.

    .venv/bin/python scripts/fuzz.py --cases 5000 --seed 0
    .venv/bin/python scripts/fuzz.py --seed 0 --only 17       # one case again, as a failure names it

The suite runs a few hundred of them (`tests/fuzz/`).
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "fuzz")]

import torch  # noqa: E402
from bad_options import check_option, draw_option  # noqa: E402
from bad_settings import affordable, check_plan, check_run, draw_settings  # noqa: E402
from damage import check_damage, draw_damage  # noqa: E402
from fuzz_world import World, make_world  # noqa: E402

DAMAGE_SHARE, OPTION_SHARE = 0.3, 0.1
RUN_SHARE = 0.5  # of the accepted settings that a run can afford


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="this case alone")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    first, stop = wanted.first, wanted.first + wanted.cases
    numbers = range(first, stop) if wanted.only is None else [wanted.only]
    counts: Counter[str] = Counter()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        world = make_world(Path(folder) / "world")
        os.chdir(folder)
        for number in numbers:
            try:
                case, kind, problem = one_case(random.Random(f"{wanted.seed} {number}"), world)
            except Exception as error:  # of a check, which must not end the search
                case, kind, problem = "?", "unchecked", repr(error)
            counts[kind] += 1
            if problem:
                counts["FAILED"] += 1
                again = f"{sys.argv[0]} --seed {wanted.seed} --only {number}"
                print(f"case {number}: {case}\n    {problem}\n    again: {again}", flush=True)
            if number % 100 == 99:
                print(f"{number + 1}: {dict(counts)}, {time.perf_counter() - began:.0f} s", flush=True)
        os.chdir(ROOT)
    print(f"{sum(counts.values()) - counts['FAILED']} cases, {counts['FAILED']} failed: {dict(counts)}")
    sys.exit(1 if counts["FAILED"] else 0)


def one_case(rng: random.Random, world: World) -> tuple[object, str, str]:
    """Draws a case and checks it: what it is, what became of it, and what is wrong with that."""
    kind = rng.random()
    if kind < OPTION_SHARE:
        option = draw_option(rng)
        return option, "options", check_option(option, world)
    if kind < OPTION_SHARE + DAMAGE_SHARE:
        damaged = draw_damage(rng, world)
        return damaged, f"damaged {damaged.what}", check_damage(damaged, world, world.root / "case")
    case = draw_settings(rng)
    problem, accepted = check_plan(case, world)
    if not accepted or problem:
        return case, "settings refused", problem
    if affordable(case) and rng.random() < RUN_SHARE:
        return case, "settings run", check_run(case, world)
    return case, "settings accepted", ""


if __name__ == "__main__":
    main()
