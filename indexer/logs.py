"""A shell: one JSON object per log line on stdout, for every process of ours."""

from typing import Any

import msgspec
import structlog


def log_to_stdout() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_encode),
        ],
        logger_factory=structlog.BytesLoggerFactory(),
        cache_logger_on_first_use=True,
    )


def _encode(fields: Any, **_: Any) -> bytes:
    """A value that JSON does not know is written as its text: a log line is never lost."""
    return msgspec.json.encode(fields, enc_hook=str)
