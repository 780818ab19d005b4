"""A model's tokenizer and chat templates, as its engines have them.

Loaded once, before anything serves, from a local folder; never from a network, and never running
code that lies in the folder. What the engine renders with code of its own is not rendered here.
"""

import json
from array import array
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from router.chat_template import ChatTemplate, ChatTemplates
from router.encoders import Encoder, Pieces, choose_encoder
from router.prompts import ChatPrompt, TextPrompt, truncated
from router.render import NotRendered, render_chat
from router.template_render import template_render

# Model types whose chats the engine renders with code of its own, not with a template.
_CODED_CHATS = frozenset({"gpt_oss", "deepseek_v32", "deepseek_v4", "kimi_k3", "inkling"})


class TokenizerError(Exception):
    """A tokenizer cannot be loaded; the text says what to do."""


class PoolTokenizer:
    """One model's tokenizer and chat templates. ``templates`` None: chats are not tokenized.

    ``encoder.name`` and ``encoder.reason`` say which library encodes, and why. ``marks``: special
    tokens at which a long text may be cut to give way. ``reference``: the transformers tokenizer
    that the encoder was proven against, where there is one.
    """

    def __init__(
        self,
        encoder: Encoder,
        templates: ChatTemplates | None,
        marks: Sequence[str] = (),
        reference: Any = None,
    ) -> None:
        self.encoder, self.templates, self.reference = encoder, templates, reference
        self._pieces = Pieces(marks)
        self._adds_specials = len(encoder.encode("", True)) > 0

    def __repr__(self) -> str:
        chats = "chats and texts" if self.templates else "texts only"
        return f"PoolTokenizer({self.encoder.name}: {self.encoder.reason}; {chats})"

    @classmethod
    def load(
        cls,
        path: str,
        chat_template: str | None = None,
        *,
        default_kwargs: Mapping[str, Any] = MappingProxyType({}),
        exclude_unused_tools: bool = False,
    ) -> "PoolTokenizer":
        """From a folder; ``chat_template`` is a file. Takes seconds. Raises TokenizerError.

        An empty file as ``chat_template``: the model has none. The others are what the engines are
        started with: --default-chat-template-kwargs, --exclude-tools-when-tool-choice-none.
        """
        folder = Path(path)
        if not (folder / "tokenizer_config.json").is_file():
            raise TokenizerError(
                f"{path} holds no tokenizer_config.json: copy tokenizer.json, tokenizer_config.json"
                " and chat_template.jinja of the model there, or name the folder that has them"
            )
        given = _read(chat_template) if chat_template is not None else None
        tokenizer, why_not = _load_transformers(folder), ""
        try:
            fast = _load_fast(tokenizer)
        # It is an optimisation of a foreign library; its errors are a reason, not a failure.
        except Exception as error:
            fast, why_not = None, f"no fastokens: {error!r}"[:200]
        encoder = choose_encoder(tokenizer, fast, why_not)
        templates = None if given == "" else _templates(tokenizer, given, folder)
        if templates is not None:
            templates = replace(
                templates,
                default_kwargs=dict(default_kwargs),
                exclude_unused_tools=exclude_unused_tools,
            )
        return cls(encoder, templates, _marks(tokenizer, templates), tokenizer)

    def render(self, prompt: ChatPrompt) -> TextPrompt:
        """Raises NotRendered."""
        if self.templates is None:
            raise NotRendered("no chat template")
        return render_chat(prompt.body, self.templates)

    def encode_steps(self, prompt: TextPrompt) -> "Generator[None, None, array[int]]":
        """Returns the token ids as the engine has them, at the end of the steps.

        Raises NotRendered where only the engine can truncate: to its own context, or around special
        tokens, of which its versions keep different ones.
        """
        cut = prompt.truncation
        if cut is not None and (cut.keep_tokens < 1 or self._specials_of(prompt)):
            raise NotRendered("truncation that only the engine can do")
        if self.encoder.remembers:
            for piece in self._pieces.of(prompt.text):
                self.encoder.encode(piece, False)
                yield
        token_ids = self.encoder.encode(prompt.text, prompt.add_special_tokens)
        return token_ids if cut is None else truncated(token_ids, cut)

    def _specials_of(self, prompt: TextPrompt) -> bool:
        return prompt.add_special_tokens and self._adds_specials


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"chat_template {file} cannot be read: {error}") from None


def _load_transformers(folder: Path) -> Any:
    """Imported here, because it takes two seconds that other commands need not spend."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        raise TokenizerError(
            f"the tokenizer in {folder} cannot be loaded: {error}. Code of its own is never run."
        ) from error


def _load_fast(tokenizer: Any) -> Any:
    """From what transformers made of the files, which is not always what tokenizer.json says."""
    import fastokens  # type: ignore[import-untyped]  # it ships stubs without the marker

    return fastokens.Tokenizer.from_json_str(tokenizer.backend_tokenizer.to_str())


def _templates(tokenizer: Any, given: str | None, folder: Path) -> ChatTemplates | None:
    """The engine takes a given template, else the model's, which may have one for tools."""
    if _model_type(folder) in _CODED_CHATS:
        return None
    if given is not None:
        one = _template(tokenizer, given)
        return ChatTemplates(one, one)
    try:
        plain = _template(tokenizer, tokenizer.get_chat_template())
        return ChatTemplates(plain, _template(tokenizer, tokenizer.get_chat_template(tools=[{}])))
    except ValueError:
        raise TokenizerError(
            f"{folder} has no chat template: copy the model's chat_template.jinja there, or set"
            " chat_template to a file (to an empty one for a model that has none)"
        ) from None


def _marks(tokenizer: Any, templates: ChatTemplates | None) -> list[str]:
    """The special tokens that begin or end a turn; looking for others would cost time."""
    if templates is None:
        return []
    turn = [{"role": "user", "content": "x"}]
    try:
        text = templates.plain.render(turn, None, {"add_generation_prompt": True})
    # A template that refuses a plain question will refuse others; nothing depends on it.
    except Exception:
        return []
    return [token for token in tokenizer.all_special_tokens if token in text]


def _template(tokenizer: Any, source: str) -> ChatTemplate:
    return ChatTemplate.of(source, template_render(tokenizer, source))


def _model_type(folder: Path) -> str | None:
    """From config.json, which need not be there."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    model_type = config.get("model_type") if isinstance(config, dict) else None
    return model_type if isinstance(model_type, str) else None
