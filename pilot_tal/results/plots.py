"""All plots of the report."""

from pilot_tal.results.ablation import featured_arms
from pilot_tal.results.plots_ablation import ablation_plots
from pilot_tal.results.plots_classes import (
    accuracy_by_class,
    class_distribution,
    difference_by_class,
    precision_recall,
    precision_recall_by_task,
)
from pilot_tal.results.plots_confusion import confusion
from pilot_tal.results.plots_overview import differences, levels
from pilot_tal.results.plots_tal import tal_over_steps
from pilot_tal.results.plots_tasks import accuracy_after_task, parts_after_task, task_matrices
from pilot_tal.results.study import Setting, Study
from pilot_tal.results.svg import Plot, style


def level_plots(study: Study) -> list[Plot]:
    """All settings over all classes and over the tail, where there are several."""
    with style():
        return [levels(study, metric) for metric in ("a_mean", "a_tail")] if len(study.finished) > 1 else []


def difference_plots(study: Study) -> list[Plot]:
    """Differences to CE in all settings, on the tail and over all classes."""
    with style():
        return [plot for metric in ("a_tail", "a_mean") if (plot := differences(study, metric))]


def setting_plots(setting: Setting) -> list[Plot]:
    """All plots of a setting's finished runs."""
    arms = featured_arms(setting)
    with style():
        plots = [*ablation_plots(setting), class_distribution(setting), accuracy_by_class(setting, arms)]
        plots += [difference_by_class(setting, arm) for arm in setting.compared_arms() if arm in arms]
        if len(setting.task_sizes) > 1:
            plots += [accuracy_after_task(setting, arms), parts_after_task(arms), *task_matrices(setting, arms)]
            plots.append(precision_recall_by_task(setting, arms))
        plots.append(precision_recall(setting, arms))
        plots += [confusion(setting, arm) for arm in arms]
        plots += tal_over_steps(arms)
    return plots
