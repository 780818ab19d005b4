"""What every practice is to the replay and to the report."""

from typing import Protocol

from router.practices.bodies import Body


class Practice(Protocol):
    """``index`` is the request's place in the traffic; ``body`` may have other fixes in it."""

    @property
    def kind(self) -> str: ...

    @property
    def remedy(self) -> str: ...

    def fix(self, index: int, body: Body) -> Body | None: ...

    def example(self) -> str:
        """What was seen, redacted; of use only where something was seen."""
        ...
