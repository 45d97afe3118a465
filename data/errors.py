"""The one error type that is meant for people: a sentence, where it happened, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class CloudChamberError(Exception):
    """Something a person can mend.

    `kind` is a stable, machine-readable word ("store_corrupt"); `message` says what is wrong in one
    sentence; `remedy` says what to do about it; `where` names the file, column, tensor or option.
    """

    kind: str
    message: str
    remedy: str
    where: str = ""

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.message}{place} {self.remedy}"

    def __reduce__(self) -> tuple[type[CloudChamberError], tuple[str, str, str, str]]:
        # Exceptions cross process boundaries by pickling their args, which a dataclass leaves empty.
        return type(self), (self.kind, self.message, self.remedy, self.where)
