"""The one error of this package: something brought that is not taken, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "brought_empty",  # no bytes, or no file at all
    "brought_unknown",  # no known format
    "brought_pointer",  # a Git LFS pointer or an error page in place of the weights
    "brought_truncated",  # the file ends before its header says
    "brought_damaged",  # the bytes contradict each other
    "brought_unsafe",  # could run code, escape its folder, or is built to exhaust the machine
    "brought_pickle",  # a pickle, which is opened only with consent, or never
    "brought_too_large",  # more than is allowed here
    "brought_incomplete",  # a part is missing: config, shard, tensor
    "brought_unsupported",  # understood, but nothing here can analyse it
    "brought_mismatch",  # the parts do not belong together: weights and config, tokenizer and embedding
    "brought_not_finite",  # NaN or infinite weights make every number void
    "brought_input",  # the text, ids or image do not fit the model
]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass
class Refused(Exception):
    """Something that is not taken.

    `message` says in one sentence what it is and why not, `where` names the file, tensor, key or node
    (the visitor's own name for it, shortened), `remedy` says what to do: a command, a setting, an
    export recipe.
    """

    kind: Kind
    message: str
    remedy: str
    where: str = ""

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.message}{place} {self.remedy}"


MAX_NAME = 80  # characters of a stranger's name in a message


def shown(name: object) -> str:
    """A name that a stranger chose, fit for a sentence: printable, one line, at most 80 characters."""
    text = "".join(c if c.isprintable() else "\ufffd" for c in str(name))
    return text if len(text) <= MAX_NAME else text[: MAX_NAME // 2] + "…" + text[-MAX_NAME // 2 + 1 :]
