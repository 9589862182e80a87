"""Store the labels and families of policies in a study, so that reports do not need the plug-ins that define them."""

from dataclasses import replace

from offrec.algorithms import LEARNERS
from offrec.backbones import BACKBONES
from offrec.runs.options import build_options
from offrec.studies.study import RunGroup
from offrec.studies.yardsticks import twin_label


def add_labels(group: RunGroup) -> RunGroup:
    """Return the group with the labels and families of its records."""
    if group.kind == "baseline":
        from offrec.baselines import BASELINES  # imported here: a sweep needs no scipy

        baseline = BASELINES[group.policy]
        return replace(group, policy_label=baseline.label, short_label=baseline.short_label or baseline.label)
    if group.kind != "learner" or group.backbone is None:
        return group
    learner, backbone = LEARNERS[group.policy], BACKBONES[group.backbone]
    needs = build_options(group.options).learner.needs
    return replace(
        group,
        policy_label=twin_label(learner.label, group.policy) if group.is_twin else learner.label,
        ranks_by_critic=needs.ranks == "critic",
        family=learner.family,
        backbone_label=backbone.label,
        backbone_family=backbone.family,
    )
