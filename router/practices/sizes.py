"""Sizes and times as people write them.

GB and GiB are both read as 2**30 bytes: the memory of GPUs is sold in such gigabytes.
"""

import re

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes. Raises ValueError, which says what is wrong."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size with its unit, such as 80GB")
    return round(float(match[1]) * _UNITS[match[2].upper()])


def shown_size(size_bytes: int) -> str:
    """With the unit that leaves one to four digits before the point."""
    for unit in "TGMK":
        if size_bytes >= _UNITS[unit]:
            return f"{size_bytes / _UNITS[unit]:.2f}".rstrip("0").rstrip(".") + f" {unit}iB"
    return f"{size_bytes} B"


def shown_time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 120:
        return f"{minutes:.1f} min" if minutes < 10 else f"{minutes:.0f} min"
    return f"{minutes / 60:.1f} h"
