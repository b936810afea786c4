"""Command lines of a shell, read for what they ask and whether they change something.

Reading a file by ``cat``, ``head``, ``sed -n`` or a pager is one action, and so is searching by any search program.
Options, ranges, and what only shapes the output behind a pipe do not make a line a new question. Nothing is run, and
no line is parsed exactly: what is not understood stands as it is.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from watchkeeper.observers.vocabulary import BEFORE, CHANGING, KNOWN, READING, SAYING, SEARCHING

LONGEST: Final = 4_100
"""The characters of a line that are read, a little more than are read of an argument."""

QUOTED: Final = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\[\s\S]?)*(?:\"|\Z)")
BETWEEN: Final = re.compile(r"(?:&&|\|\||;|\n|(?<!\|)\|(?!\|))")
REDIRECT: Final = re.compile(r"(?<![0-9&<>=-])1?>>?\s*(?!\s*(?:/dev/null|&))[\w./~$\"'-]")
NOISE: Final = re.compile(r" ?[0-9&]?>>? ?(?:/dev/null|&\d)| ?\d>&\d")
ASSIGNED: Final = re.compile(r"[A-Za-z_]\w*=\S*")
SCRIPT_RANGE: Final = re.compile(r"['\"]?\d+(?:,\+?\d+|,\$)?[pqd]?(?:;\d+q)?['\"]?|['\"]?NR[<>=&|\dNR ]+['\"]?")
LINE: Final = re.compile(r"\s*(?:\$ )?([a-z][\w.+-]*)\s+\S")
SETTING: Final = re.compile(r"--(?!.*(?:timeout|output|namespace|context|color|verbose|watch|tail|since|wait))[\w-]+=")
HUNK: Final = re.compile(r"^([+-])(?!\+\+|--)(.*)$", re.M)
SUBSTITUTE: Final = re.compile(r"^\d*(?:,\d*)?s(.)(.*?)(?<!\\)\1(.*?)(?<!\\)\1")
REPLACE: Final = re.compile(
    r"\.replace\(\W{0,8}(\w.{0,200}?)(?<![\"'\\])[\"'\\]{1,4},[\s\"'\\]{0,8}(\w?.{0,200}?)[\"'\\]{1,4}\)"
)
SCRIPT: Final = re.compile(r"^[\d,$]*[caid]\\?\s*")
PLACE: Final = re.compile(r"(?<![\w.~@-])[\w.~@-]*(?:/[\w.@-]+)+|\b(?<!\w)(?<!\w-)[\w-]+\.[a-z]{1,5}\b")

CHANGING_PAIRS: Final = re.compile(
    r"\b(?:git\s+(?:-\S+\s+)*(?:commit|push|checkout|reset|stash|apply|add|merge|rebase|restore|revert|cherry-pick"
    r"|switch|tag|pull|clean|rm|mv|am)"
    r"|(?:pip3?|uv|npm|pnpm|yarn|apt|apt-get|brew|cargo|gem|poetry|conda|go|dnf|yum)\s+(?:\w+\s+)?"
    r"(?:install|add|remove|uninstall|upgrade|update|get|ci)"
    r"|(?:systemctl|service|supervisorctl|pm2|rc-service)\s+(?:\S+\s+)?(?:start|restart|stop|reload|enable|disable)"
    r"|(?:docker|podman|docker-compose)\s+(?:compose\s+)?(?:run|restart|stop|start|rm|build|up|down|pull|push|prune)"
    r"|kubectl\s+(?:\S+\s+){0,6}?(?:apply|delete|patch|scale|edit|set|create|replace|annotate|label|drain|cordon)"
    r"|kubectl\s+(?:\S+\s+){0,6}?rollout\s+(?:restart|undo)|(?:terraform|tofu|pulumi|helm)\s+(?:apply|destroy|import|up|"
    r"install|upgrade|rollback|uninstall)|sed\s+(?:-\w+\s+)*-i|sed\s+-\w*i|perl\s+-\w*i|curl\s.{0,300}?(?:-X\s*(?:POST|PUT|PATCH"
    r"|DELETE)|\s-d\s|--data|\s-T\s)|\.write(?:_text|_bytes|lines)?\(|open\([^)]*['\"][wax]|(?i:insert\s+into|update\s+\w+\s+set|delete\s+from|alter\s+table|drop\s+\w+))"
)


class Line(NamedTuple):
    """What a command line asks and does.

    Attributes:
        asked: What it asks.
        changes: Whether it changes something.
        written: If it changes something: what it writes, as far as that can be told.
        before: What it replaces, if it says so.
        places: The paths that it names.
    """

    asked: str
    changes: bool
    written: str = ""
    before: str = ""
    places: tuple[str, ...] = ()


def is_line(text: str) -> bool:
    """Return whether a text without a telling name looks like a command line."""
    found = LINE.match(text)
    return found is not None and (
        (verb := found.group(1)) in KNOWN or verb in READING or verb in SEARCHING or verb in CHANGING or verb in SAYING
    )


def read_line(text: str) -> Line:
    """Return what a command line asks, without options, ranges and what only shapes its output."""
    line = NOISE.sub("", text[:LONGEST])
    bare = QUOTED.sub(lambda quoted: "_" * len(quoted.group()), line)
    changes = REDIRECT.search(bare) is not None or CHANGING_PAIRS.search(line) is not None
    asked: list[str] = []
    said: list[str] = []
    start = 0
    for end, after in [*((found.start(), found.end()) for found in BETWEEN.finditer(bare)), (len(bare), len(bare))]:
        part = _read_part(line[start:end])
        start = after
        if part is None:
            continue
        verb, rest = part
        changes = changes or verb in CHANGING
        if verb in SAYING or (asked and verb in ("read", "jq", "awk", "sed")):
            said.append(" ".join((verb, *rest)))
        else:
            asked.append(" ".join((verb, *rest)))
    question = " ; ".join(asked or said)
    if not changes:
        return Line(question, False)
    written, before = _written(line, question)
    outside = QUOTED.sub(" ", line.partition("<<")[0]) if "<<" not in line or HUNK.search(line) is None else line
    return Line(question, True, written, before, tuple(dict.fromkeys(PLACE.findall(outside)))[:8])


def _written(line: str, question: str) -> tuple[str, str]:
    """Return what a line writes and what it replaces: the lines of a patch, the script of an editor, or the line."""
    hunks = HUNK.findall(line)
    if hunks and "@@" in line:
        return tuple("\n".join(text for sign, text in hunks if sign == kind) for kind in "+-")  # type: ignore[return-value]
    replaced = REPLACE.search(line)
    if replaced is not None:
        return replaced.group(2), replaced.group(1)
    for quoted in QUOTED.findall(line):
        script = quoted[1:-1]
        found = SUBSTITUTE.match(script)
        if found is not None:
            return found.group(3), found.group(2)
        if SCRIPT.match(script) is not None:
            return SCRIPT.sub("", script), ""
    return " ".join(line.split()) if "<<" in line else question, ""


def _read_part(part: str) -> tuple[str, list[str]] | None:
    words = part.split()
    while words and (words[0] in BEFORE or ASSIGNED.fullmatch(words[0])):
        words.pop(0)
    if words and words[0] == "timeout":
        words = words[2:]
    if not words:
        return None
    verb = words[0].rpartition("/")[2]
    if verb in READING or (verb in ("sed", "awk") and "-i" not in words and SCRIPT_RANGE.search(part)):
        given = [word for word in words[1:] if not word.startswith("-") and not SCRIPT_RANGE.fullmatch(word)]
        return ("read", [_plain(word) for word in given if not word.isdigit()])
    if verb in SEARCHING:
        verb = "search"
    return verb, [_plain(word) for word in words[1:] if not word.startswith("-") or SETTING.match(word)]


def _plain(word: str) -> str:
    """Return a word without quotes and without the beginning that a path may have or not."""
    return word.strip("'\"").removeprefix("./").rstrip("/")
