"""What to do about each cause, in words for whoever writes the client."""

from collections.abc import Mapping

_END = "to the end of the prompt: into the last message, behind what stays the same"

REMEDIES: Mapping[str, str] = {
    # Nothing to mend.
    "equal": "",
    "continues": "",
    "last_message": "",
    "branch": "",
    # Beside the tokens.
    "salt": "Give requests that may share a prompt the same cache_salt, or none; salt by tenant,"
    " not by request.",
    "model": "Names of one base model share blocks; a LoRA adapter shares none with its base model"
    " or with another adapter. Ask for the base model where the adapter is not needed.",
    # Tools.
    "tools_missing": 'Send the same tools with every step, and "tool_choice": "none" where none may'
    " be called (unless the engines run with --exclude-tools-when-tool-choice-none).",
    "tools_changed": "Send one set of tools with every request; say in the last message which of"
    " them are of use.",
    "tool_changed": "Write the tool's description and schema once; what changes belongs into the"
    " last message.",
    "tool_order": "List tools in one order, for example sorted by name; or let the router do it:"
    " canonical_tools = true for the pool.",
    "key_order": "Write tools from one source, or with sorted keys; or let the router do it:"
    " canonical_tools = true for the pool.",
    # The template.
    "settings": "Use one setting for all requests that share a prompt.",
    "settings_of_the_answer": "It stands behind the last message: only the next turn of the same"
    " conversation is concerned, where all before it is shared.",
    "template_rewrites": "The template writes a turn in another way once it is no longer the last"
    " one (thoughts are dropped, for example), so that the turn is computed anew. Take a template"
    " or a setting of it that keeps turns as they were, or live with it.",
    # Values that change.
    "time": f"Leave the clock out, round it to the day, or move it {_END}.",
    "date": f"Once a day everything behind it is computed anew: move the date {_END}.",
    "id": f"Leave the id out of the prompt, or move it {_END}.",
    "trace": "A trace tag is for logs: send it as a header or in the body's metadata, not in the"
    " prompt.",
    "counter": f"Move the counter {_END}.",
    "email": f"Move what is known of the user {_END}.",
    "name": f"Move what is known of the user {_END}.",
    "tier": f"Move what is known of the user {_END}; or keep one system prompt for each tier, if"
    " they are few.",
    # Texts.
    "whitespace": "Take the text from one source and trim it the same way everywhere: line ends,"
    " trailing blanks and no-break spaces count.",
    "unicode": "Bring texts to one form before they are sent: NFC, one kind of quotes and dashes,"
    " no invisible characters. They look the same; their tokens do not.",
    "fixed_after_variable": "Put the fixed instructions first and what differs behind them: in the"
    " system message the rules, in the last message the task and the passages.",
    "history_rewritten": "Append to a conversation, never change what was sent: what changes (a"
    " file's text, a state) belongs into a new message at the end.",
    "history_shortened": "Each cut of the history costs the whole prompt behind it. Cut seldom and"
    " by much, and keep what stands before the cut byte for byte.",
    "history_inserted": "Put new messages at the end, not between those that were already sent.",
    "other_prompts": "Nothing, where these are two applications. Where one prompt was meant: send"
    " the same text first.",
    "system_missing": "Send the same system message with every request.",
    "unknown": "Compare the two texts around the difference.",
}
