"""Reads mail as it comes: whatever a mail's headers, charset and parts are, what can be read of it is returned.

Damaged headers make the standard library raise errors of several kinds, so it is asked through `asked` only. Nothing
is decoded twice, attachments are named and not opened, and the text is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from email import message_from_bytes
from email.errors import MessageError
from email.header import decode_header, make_header
from email.message import Message
from email.utils import parsedate_to_datetime
from html.parser import HTMLParser
from typing import Final, TypeVar

T = TypeVar("T")

LONGEST_BODY: Final = 20_000
"""Most characters of a mail's text that are read."""


@dataclass(frozen=True)
class Mail:
    """What can be read of a mail.

    Attributes:
        sender: The From header, decoded.
        subject: The Subject header, decoded.
        sent: When it was sent; None if that is not known.
        body: Its text.
        attached: The names of its attachments.
    """

    sender: str
    subject: str
    sent: datetime | None
    body: str
    attached: list[str]


def read_mail(raw: bytes) -> Mail:
    """Return what can be read of a mail, by RFC 5322 and MIME."""
    mail = message_from_bytes(raw)
    return Mail(header(mail, "From"), header(mail, "Subject"), sent_at(mail), body_of(mail), attachments_of(mail))


def asked(question: Callable[[], T], otherwise: T) -> T:
    """Return what the standard library says of a mail, or a default: damaged headers raise errors of several kinds."""
    try:
        return question()
    except (MessageError, LookupError, ValueError, TypeError, AttributeError):
        return otherwise


def header(mail: Message, name: str) -> str:
    """Return a header on one line, decoded; one that cannot be decoded is returned as it stands."""
    raw = next((str(value) for key, value in mail.raw_items() if key.lower() == name.lower()), "")
    text = raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    text = asked(lambda: str(make_header(decode_header(text))), text)
    return " ".join(text.encode("utf-8", "replace").decode().split())


def sent_at(mail: Message) -> datetime | None:
    """Return when a mail was sent, by RFC 5322 or ISO 8601; None if its date is missing or neither."""
    date = header(mail, "Date")
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            return read(date)
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
    return None


def body_of(mail: Message) -> str:
    """Return the text of a mail: its first part in plain text, else its first part in HTML without the tags."""
    parts = [part for part in mail.walk() if not part.is_multipart() and not is_attached(part)]
    plain = (text_of(part) for part in parts if part.get_content_type() != "text/html" and is_text(part))
    rich = (plain_text(text_of(part)) for part in parts if part.get_content_type() == "text/html")
    return next((text for texts in (plain, rich) for text in map(str.strip, texts) if text), "")[:LONGEST_BODY]


def attachments_of(mail: Message) -> list[str]:
    """Return the names of a mail's attachments; what is in them is not read."""
    parts = [part for part in mail.walk() if not part.is_multipart() and not is_text(part)]
    parts += [part for part in mail.walk() if is_text(part) and is_attached(part)]
    return [" ".join((asked(part.get_filename, None) or "without a name").split()) for part in parts]


def is_attached(part: Message) -> bool:
    """Whether a part of a mail says that it is an attachment."""
    return asked(part.get_content_disposition, None) == "attachment"


def is_text(part: Message) -> bool:
    """Whether a part of a mail holds text; a part that claims to have parts and has none counts as text."""
    return part.get_content_maintype() in ("text", "multipart") and not part.is_multipart()


def text_of(part: Message) -> str:
    """Return the text of a part in the charset it names, else in UTF-8, else in Windows-1252."""
    data: object = asked(lambda: part.get_payload(decode=True), None)
    raw = data if isinstance(data, bytes) and data else str(part.get_payload()).encode("utf-8", "surrogateescape")
    for charset in (asked(part.get_content_charset, None) or "utf-8", "utf-8"):
        try:
            return raw.decode(charset).encode("utf-8", "replace").decode()  # some charsets yield lone surrogates
        except (LookupError, ValueError):  # a charset that nobody knows, or the wrong one
            continue
    return raw.decode("cp1252", "replace")


class _Words(HTMLParser):
    """Collects the text of a page, with a line for every block."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.hidden += tag in ("script", "style", "title")
        self.words.append("\n" if tag in ("br", "p", "div", "li", "tr", "h1", "h2", "h3") else "")

    def handle_endtag(self, tag: str) -> None:
        self.hidden = max(0, self.hidden - (tag in ("script", "style", "title")))
        self.words.append("\n" if tag in ("p", "div", "table") else "")

    def handle_data(self, data: str) -> None:
        self.words.append("" if self.hidden else data)


def plain_text(page: str) -> str:
    """Return the text of an HTML page; a page that cannot be parsed is returned as it stands."""
    words = _Words()
    try:
        words.feed(page[: 10 * LONGEST_BODY])
        words.close()
    except AssertionError:  # how the parser refuses some declarations
        return page
    return re.sub(r"\n{3,}", "\n\n", "".join(words.words))
