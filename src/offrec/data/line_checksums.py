"""Checksums of the lines of a decision log.

Every line is a JSON object whose last field is the CRC-32 of the bytes before that field:

    {"kind":"event","time":12,"item":5,"behaviour":"click","crc":"0f3a99c1"}

A changed byte anywhere in the line is therefore detected, and the line stays valid JSON.
"""

import json
import re
import zlib
from typing import Any

FIELD = re.compile(rb',"crc":"([0-9a-f]{8})"\}')
FIELD_BYTES = len(b',"crc":"00000000"}')


def seal_record(record: dict[str, Any]) -> bytes:
    """Return a record as a line of JSON that ends with its checksum and a line end.

    Args:
        record: JSON values by name; at least one, and none of them NaN or infinite.
    """
    body = json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()[:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def seal_end(records: int) -> bytes:
    """Return the end record, the last line of a file. Without it, a file could be cut between two lines unnoticed.

    Args:
        records: The number of records before it.
    """
    return seal_record({"kind": "end", "count": records})


def is_sealed(line: bytes) -> bool:
    """Return whether a line, without its line end, ends with the right checksum."""
    match = FIELD.fullmatch(line, max(0, len(line) - FIELD_BYTES))
    return match is not None and int(match[1], 16) == zlib.crc32(line[:-FIELD_BYTES])
