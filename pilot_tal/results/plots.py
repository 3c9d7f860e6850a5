"""All plots of the report."""

from pilot_tal.results.ablation import featured_variants
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
from pilot_tal.results.study import Group, Study
from pilot_tal.results.svg import Plot, style


def level_plots(study: Study) -> list[Plot]:
    """All groups over all classes and over the tail, where there are several."""
    with style():
        return [levels(study, metric) for metric in ("a_mean", "a_tail")] if len(study.finished) > 1 else []


def difference_plots(study: Study) -> list[Plot]:
    """Differences to CE in all groups, on the tail and over all classes."""
    with style():
        return [plot for metric in ("a_tail", "a_mean") if (plot := differences(study, metric))]


def group_plots(group: Group) -> list[Plot]:
    """All plots of a group's finished runs."""
    variants = featured_variants(group)
    with style():
        plots = [*ablation_plots(group), class_distribution(group), accuracy_by_class(group, variants)]
        plots += [difference_by_class(group, variant) for variant in group.compared_variants() if variant in variants]
        if len(group.task_sizes) > 1:
            plots += [accuracy_after_task(group, variants), parts_after_task(variants), *task_matrices(group, variants)]
            plots.append(precision_recall_by_task(group, variants))
        plots.append(precision_recall(group, variants))
        plots += [confusion(group, variant) for variant in variants]
        plots += tal_over_steps(variants)
    return plots
