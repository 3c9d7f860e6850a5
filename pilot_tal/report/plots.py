"""All plots of the report."""

from pilot_tal.report.plots_classes import (
    accuracy_by_class,
    class_distribution,
    difference_by_class,
    precision_recall,
    precision_recall_by_task,
)
from pilot_tal.report.plots_tal import tal_over_steps
from pilot_tal.report.plots_tasks import accuracy_after_task, differences, task_matrices
from pilot_tal.report.study import Setting, Study
from pilot_tal.report.svg import Plot, style


def overview_plots(study: Study) -> list[Plot]:
    """Differences to CE in all settings, on the tail and over all classes."""
    with style():
        plots = [differences(study, "a_tail", "A_Tail"), differences(study, "a_mean", "A_Mean")]
    return [plot for plot in plots if plot is not None]


def setting_plots(setting: Setting) -> list[Plot]:
    """All plots of a setting's finished runs."""
    with style():
        plots = [class_distribution(setting), accuracy_by_class(setting)]
        plots += [difference_by_class(setting, arm) for arm in setting.compared_arms()]
        plots.append(accuracy_after_task(setting))
        plots += task_matrices(setting)
        plots += [precision_recall(setting), precision_recall_by_task(setting)]
        plots += tal_over_steps(setting)
    return plots
