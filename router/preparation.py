"""What is made of a parsed request before it is routed, by its pool's practices and the policy.

Decides which named transformations apply, and what the request is counted under: its fingerprint,
its tenant's kind, its group. Rules it keeps:

* All changes are made at once, and only where something changes.
* The prompt that is rendered and hashed is that of the body that goes on.
* The fingerprint comes first and the salt after it, because a rule may ask whether a prompt is one
  of the shared ones.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from multidict import MultiMapping

from router.fingerprint import Front, KnownSystems
from router.known_tools import KnownTools
from router.openai import CHAT_PATH, ParsedRequest
from router.prompts import ChatPrompt
from router.salting import NoSalt, PromptSalt, Tenancy, Verdict
from router.tool_steps import ToolSteps, conversation_of
from router.transformations import CACHE_SALT, CANONICAL_TOOLS, Change, changed


@dataclass(frozen=True, slots=True)
class PoolPractices:
    """``excludes_unused_tools``: its engines leave tools out where ``tool_choice`` is "none"."""

    canonical_tools: bool = False
    excludes_unused_tools: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """``request`` is what is routed and sent. ``pool`` None: there is none for its model.

    ``verdict`` None: there is no policy. ``tools_alternated``: the step before had tools and this
    one has none, or the reverse. ``unused_tools``: it has tools and ``tool_choice`` "none".
    """

    request: ParsedRequest
    pool: str | None = None
    practices: PoolPractices = PoolPractices()
    fingerprint: str | None = None
    verdict: Verdict | None = None
    tools_alternated: bool = False
    unused_tools: bool = False

    @property
    def tenant_kind(self) -> str | None:
        return None if self.verdict is None else self.verdict.tenant.kind


class Preparation:
    """``known_tools`` is for ``parse_request``. ``pools``: the practices of each."""

    def __init__(
        self, pools: Mapping[str, PoolPractices] | None = None, tenancy: Tenancy | None = None
    ) -> None:
        self.known_tools = KnownTools()
        self._pools, self._tenancy = pools or {}, tenancy
        self._systems, self._steps = KnownSystems(), ToolSteps()

    def prepare(
        self, request: ParsedRequest, pool: str | None, headers: MultiMapping[str]
    ) -> Prepared:
        """Raises BadRequest where the policy refuses the request."""
        practices = self._pools.get(pool or "", PoolPractices())
        prepared = Prepared(request, pool, practices)
        if request.path == CHAT_PATH:
            prepared = self._with_front(prepared)
        if self._tenancy is not None:
            salt = request.fields.get("cache_salt")
            verdict = self._tenancy.judge(headers, request.model, prepared.fingerprint, salt)
            prepared = replace(prepared, verdict=verdict)
        return replace(prepared, request=_transformed(prepared))

    def _with_front(self, prepared: Prepared) -> Prepared:
        """What stands at the front of a chat's prompt."""
        request, practices = prepared.request, prepared.practices
        system = self._systems.digest(request.fields)
        given = request.tools is not None
        unused = given and request.fields.get("tool_choice") == "none"
        in_prompt = given and not (unused and practices.excludes_unused_tools)
        conversation = conversation_of(request.fields, request.session, system)
        return replace(
            prepared,
            fingerprint=_fingerprint(request, system, in_prompt),
            unused_tools=unused,
            tools_alternated=conversation is not None
            and self._steps.alternates(conversation, in_prompt),
        )


def _fingerprint(request: ParsedRequest, system: bytes | None, in_prompt: bool) -> str | None:
    if request.tools is None or not in_prompt:
        return Front(system, None).fingerprint
    if not request.tools.digest:
        # The engine refuses such tools.
        return None
    return Front(system, request.tools.digest).fingerprint


def _transformed(prepared: Prepared) -> ParsedRequest:
    """The request with all changes in one."""
    request = prepared.request
    tools, salt = _canonical_tools_change(prepared), _salt_change(prepared)
    changes = [change for change in (tools, salt) if change is not None]
    if not changes:
        return request
    body = changed(
        request.body, request.fields, changes, strict=request.strict, spans=request.spans
    )
    fields, prompts = request.fields, request.prompts
    if tools is not None:
        assert request.tools is not None
        fields = fields | {tools.key: request.tools.canonical}
        prompts = tuple(ChatPrompt(fields) if isinstance(p, ChatPrompt) else p for p in prompts)
    cache_salt = request.cache_salt
    if salt is not None:
        cache_salt = None if salt.value is None else json.loads(salt.value)
    return replace(
        request,
        body=body,
        fields=fields,
        spans=None,
        prompts=prompts,
        cache_salt=cache_salt,
        transformed=(*request.transformed, *(change.name for change in changes)),
    )


def _canonical_tools_change(prepared: Prepared) -> Change | None:
    """None too where they are in order already, and where the body is no strict JSON."""
    tools, request = prepared.request.tools, prepared.request
    if not prepared.practices.canonical_tools or not request.strict:
        return None
    if tools is None or tools.text is None or tools.is_canonical:
        return None
    return Change(CANONICAL_TOOLS, "tools", tools.text)


def _salt_change(prepared: Prepared) -> Change | None:
    """None where what the client sent, or nothing, is what the policy wants."""
    if prepared.verdict is None:
        return None
    match prepared.verdict.salting:
        case PromptSalt(group="client"):
            return None
        case PromptSalt(salt=salt):
            return Change(CACHE_SALT, "cache_salt", json.dumps(salt).encode())
        case NoSalt(removes_client_salt=removes):
            given = prepared.request.fields.get("cache_salt") is not None
            return Change(CACHE_SALT, "cache_salt", None) if removes and given else None
