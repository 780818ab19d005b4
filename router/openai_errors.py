"""Refusals in the shape that OpenAI's clients understand."""

from typing import Any

import msgspec


class BadRequest(Exception):
    """A body that is not passed on; ``status`` and ``body`` are what the client is told."""

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        return _error(self.message, "invalid_request_error", self.param, self.code)


def error_body(message: str, type: str, param: str | None = None, code: str | None = None) -> bytes:
    """The JSON that OpenAI's clients understand as an error."""
    return msgspec.json.encode(_error(message, type, param, code))


def _error(message: str, type: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": type, "param": param, "code": code}}
