"""The raw formats, one file each, and the registry that names them."""

from offrec.data.formats import decisions, events, open_bandit, retailrocket, served, yoochoose
from offrec.data.formats.record import FORMATS, Columns, FormatRecord, ProtocolDefaults, Say, register_format

for _module in (retailrocket, yoochoose, events, decisions, served, open_bandit):
    register_format(_module.RECORD)

__all__ = ["FORMATS", "Columns", "FormatRecord", "ProtocolDefaults", "Say", "register_format"]
