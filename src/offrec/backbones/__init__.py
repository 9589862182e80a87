"""Backbones, which map a history to a state, and their registry. Backbones do not depend on learners."""

from offrec.backbones import caser, cfn, gru, nextitnet, sasrec
from offrec.backbones.record import BACKBONES, BackboneRecord, Sizes, register_backbone

for _module in (gru, cfn, caser, nextitnet, sasrec):
    register_backbone(_module.RECORD)

__all__ = ["BACKBONES", "BackboneRecord", "Sizes", "register_backbone"]
