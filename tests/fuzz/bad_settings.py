"""Settings that are wrong, or just about right, drawn from the schema itself; and what may be accepted of them."""

import math
import os
import random
import re
import shlex
from dataclasses import dataclass
from typing import Any

from fuzz_world import SETTINGS, World, answered, wrong

from pilot_tal.config.defaults import defaults
from pilot_tal.config.grid import known_settings
from pilot_tal.config.parse import split_values
from pilot_tal.config.settings import QUICK_EPOCHS, Hardware
from pilot_tal.learners import LEARNERS
from pilot_tal.record.run_dir import Run, find_runs, load_run
from pilot_tal.schema import Option, settings_of

NASTY = (
    "", " ", "\t", "nan", "inf", "-inf", "-1", "-0.5", "0", "-0.0", "1e300", "-1e300", "1e-300", "1e20", "0x10",
    "1_000", "1" + "0" * 20, "9" * 400, "0.5", "1.5", "+1", " 1", "true", "false", "True", "null", "none", "None",
    "[]", "[", "]", "[[", "[1", "[1,[2,3]]", "[" * 1000, "[-1,99]", "[0,0]", "[1,1]", "[1e300]", "[nan]", "[1.5]",
    "[true]", "[a,b]", "[,]", "{a: 1}", '{"a": 1}', "1,2", ",", ",,", "1,", "1,2,3,4,5,6,7,8", "=", "--help", "'", '"',
    "a" * 300, "a" * 5000, "é", "٣", "３", "\u202eabc", "💥" * 50, "\x00", "\x1b[31m", "a\nb", "\udcff",
    "nowhere/x", "/dev/null", "~nobody/x", "%s", "{}", "$(x)", "a.safetensors", "x.pth", "hub", "random",
    "auto", "cuda", "cuda:0", "cuda:99999999999999999999", "cuda:٣", "mps", "cpu ", "resnet50",
    "vit_base_patch16_224.nope", "0.5/0", "0.5/0.5", "nan/nan", "1e9/1e9", "٣/٣", "[0.5,0.4]/[1,1]",
    "[0.5,0.4,0.4]/[0,1,1]", "9" * 60 + "/1",
)  # fmt: skip
NOT_PRINTED = ("plugins", "losses", "jobs", "gpus", "jobs_per_gpu")  # under their names in the command of one run
AT_HOME = ("weights", "order")  # files, whose ~ is the home directory
# What would take hours, gigabytes or hundreds of processes in a run, though it is in range.
COSTLY = ("img_size", "epochs", "tuned_epoch", "crct_epochs", "M", "workers", "threads", "size", "length", "top_k",
          "prompt_param", "g_prompt_length", "pet_length", "n_centroids", "ffn_num", "down_sample_dim", "lora_rank",
          "num_freeze_epochs")  # fmt: skip
MOST_IN_A_RUN = {"workers": 1, "threads": 4, "M": 200, "img_size": 32, "epochs": 3, "tuned_epoch": 3, "crct_epochs": 3}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class SettingsCase:
    """`method` with some settings."""

    method: str
    given: tuple[tuple[str, str], ...]

    def arguments(self, world: World) -> list[str]:
        """Method, dataset and settings: the tiny ones with these in their place."""
        losses = sorted({key.partition(".")[0] for key, _ in self.given if "." in key})
        own = {"seeds": "1", "losses": ",".join(losses) or "tal", **dict(self.given)}
        items = world.settings(self.method, **own)
        if own.keys() & {"init_cls", "increment"} and "tasks" not in own:
            items.remove(f"tasks={SETTINGS['tasks']}")
        return [self.method, "folder_lt", *items]

    def __str__(self) -> str:
        return f"{self.method} {' '.join(f'{key}={text[:80]!r}' for key, text in self.given)}"


def draw_settings(rng: random.Random) -> SettingsCase:
    """A method and one setting with a value that is mostly wrong, or two or three that are about right."""
    method = rng.choice(list(LEARNERS))
    known = known_settings(method)
    if rng.random() < 0.75:
        key = rng.choice(list(known))
        text = rng.choice(NASTY) if rng.random() < 0.7 else rng.choice(_near(known[key]))
        return SettingsCase(method, ((key, text),))
    keys = rng.sample(list(known), rng.choice((2, 3)))
    return SettingsCase(method, tuple((key, rng.choice(_near(known[key]))) for key in keys))


def every_setting(method: str) -> list[tuple[str, str]]:
    """Every setting of a method with every nasty value."""
    return [(key, text) for key in known_settings(method) for text in NASTY]


def check_plan(case: SettingsCase, world: World) -> tuple[str, bool]:
    """What is wrong with how the plan of these settings is answered, and whether they were accepted."""
    answer = answered("compare", *case.arguments(world), "--quick", "--commands")
    if answer.status:
        return wrong(answer), False
    known = known_settings(case.method)
    runs = [dict(item.split("=", 1) for item in shlex.split(line) if "=" in item) for line in answer.out.splitlines()]
    for key, text in case.given:
        parts = values_in(key, known[key], text)
        for part in parts:
            if not may_be(known[key], part):
                return f"accepted {key}={part!r}, which must be {known[key].allowed}", True
        if key in NOT_PRINTED or (case.method == "simplecil" and "." in key):
            continue
        usual = {**defaults(case.method, "folder_lt"), "tuned_epoch": QUICK_EPOCHS}.get(key, known[key].default)
        name = {"tuned_epoch": "epochs", "seeds": "seed"}.get(key, key)
        concerned = [run for run in runs if "." not in key or run["loss"] == key.partition(".")[0]]
        planned = [meant(known[key], run[name]) if name in run else usual for run in concerned]
        if {*planned} != {meant(known[key], os.path.expanduser(part) if key in AT_HOME else part) for part in parts}:
            return f"{key}={text!r} is planned as {planned}", True
    return "", True


def values_in(key: str, setting: Option, text: str) -> list[str]:
    """The texts of the values; a comma does not part two in a list, nor in what is said of the machine."""
    if setting.many or key in settings_of(Hardware):
        return [text if setting.kind is str else text.strip()]
    return split_values(text)


def meant(setting: Option, text: str) -> Any:
    """The value that a text stands for, read here anew."""
    if setting.optional and text.lower() in ("null", "none") and text not in setting.rule.choices:
        return None
    if setting.many:
        inner = text[1:-1] if text[:1] == "[" else text
        return tuple(setting.kind(part) for part in inner.split(",") if part.strip())
    if setting.kind is bool:
        return text.lower() == "true"
    return text if setting.kind is str or text in setting.rule.words else setting.kind(text)


def may_be(setting: Option, text: str) -> bool:
    """Whether a text can be a value of a setting, decided here anew from its rule."""
    rule = setting.rule
    if (setting.optional and text.lower() in ("null", "none")) or text in rule.words:
        return True
    if setting.many:
        inner = text[1:-1].strip() if text[:1] == "[" and text[-1:] == "]" else text
        parts = [part.strip() for part in inner.split(",")] if inner else []
        return all(_fits(setting, part) for part in parts) and not (rule.unique and len(set(parts)) < len(parts))
    return _fits(setting, text)


def _fits(setting: Option, text: str) -> bool:
    rule = setting.rule
    if setting.kind is bool:
        return text.lower() in ("true", "false")
    if setting.kind is str:
        return text.isprintable() and len(text) <= 4096 and (not rule.choices or text in rule.choices)
    if not _NUMBER.fullmatch(text) or (setting.kind is int and not text.lstrip("+-").isdigit()):
        return False
    value = float(text)
    bounds = [value >= rule.low] if rule.low is not None else []
    bounds += [value <= rule.high] if rule.high is not None else []
    bounds += [value > rule.above] if rule.above is not None else []
    bounds += [value < rule.below] if rule.below is not None else []
    return math.isfinite(value) and abs(value) <= 1e12 and all(bounds)


def affordable(case: SettingsCase) -> bool:
    """Whether a run with these settings is a matter of seconds."""
    for key, text in case.given:
        if key in COSTLY:
            numbers = [float(number[0]) for number in re.findall(r"(\d+(\.\d+)?)", text)]
            if any(number > MOST_IN_A_RUN.get(key, 50) for number in numbers):
                return False
        if key in ("jobs", "plugins") or (key == "threads" and text in ("null", "none", "None")):
            return False
    return True


def check_run(case: SettingsCase, world: World) -> str:
    """What is wrong with a run of accepted settings: it ends with finite metrics, or with a sentence."""
    answer = answered("run", *case.arguments(world), "--quick")
    if answer.status:
        return wrong(answer, at_once=False)
    path = re.search(r"^results: (.*)$", answer.out, re.MULTILINE)
    if path is None:
        return f"no results named: {answer.out[-200:]!r}"
    return not_right(case, load_run(find_runs([path[1]])[0]))


def not_right(case: SettingsCase, run: Run) -> str:
    """What is wrong with a finished run: it was another one, or its numbers do not follow from its predictions."""
    if not run.finished or run.tasks_done != run.record.num_tasks:
        return "not finished"
    known, settings = known_settings(case.method), run.record.method.settings
    told = settings | {f"{run.record.loss.name}.{key}": value for key, value in run.record.loss.options.items()}
    for key, text in case.given:
        if key in told and _plain(told[key]) != _plain(meant(known[key], *values_in(key, known[key], text))):
            return f"{key}={text!r} became {told[key]!r}"
    for task, (true, pred) in enumerate(run.labels):
        classes = sum(run.record.stream.task_sizes[: task + 1])
        if {*true.tolist()} != {*range(classes)} or not {*pred.tolist()} <= {*range(classes)}:
            return f"labels after task {task}: {true.tolist()}, {pred.tolist()}"
    right = [sum(map(int, true == pred)) / len(true) for true, pred in run.labels]
    if [round(share, 9) for share in run.metrics["accuracy_after_task"]] != [round(share, 9) for share in right]:
        return f"accuracies {run.metrics['accuracy_after_task']} instead of {right}"
    return "" if all(line["loss"] is not None for line in run.step_log()) else "a loss that is no number"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _near(setting: Option) -> list[str]:
    """Values at the edges of a setting's range, and a few inside."""
    rule = setting.rule
    if rule.choices:
        return [*rule.choices, rule.choices[0].upper(), rule.choices[0] + "x", rule.choices[-1] + " "]
    if setting.kind is bool:
        return ["true", "false", "TRUE", "1", "0", "yes"]
    if setting.kind is str:
        return [
            "auto",
            "none",
            "shuffled",
            "head_first",
            "tail_first",
            "random",
            "cpu",
            "ce",
            "focal,ce",
            "weights",
            "null",
        ]
    edges = [bound for bound in (rule.low, rule.high, rule.above, rule.below) if bound is not None] or [0, 1]
    numbers = [number for edge in edges for number in (edge, edge - 1, edge + 1, edge / 2, 2 * edge, edge + 1e-9)]
    numbers += [0, 1, 2, 3, 5, 0.1, 0.9]
    texts = [f"{int(number)}" if setting.kind is int and number == int(number) else repr(number) for number in numbers]
    texts += ["null"] if setting.optional else []
    return [f"[{text}]" for text in texts] + ["[0,1,2]", "[5,4]", "[]"] if setting.many else [*texts, *rule.words]
