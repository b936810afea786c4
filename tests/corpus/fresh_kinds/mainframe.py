"""Changing batch programs on an old machine: data sets with members, copybooks, jobs with return codes, a spool."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from tests.corpus.fresh_kinds._world import Run, Step, deal
from tests.corpus.trace import Label, Trace

KIND = "mainframe"
_SYSTEMS = {"PEN": "pension", "LOA": "loan", "CLM": "claim", "TAX": "tax", "AGT": "agent"}
_FIELDS = [
    "WS-RATE",
    "WS-YEARS",
    "IN-BIRTH-DT",
    "OUT-AMOUNT",
    "WS-FACTOR",
    "IN-STATUS",
    "WS-ROUND",
    "OUT-CODE",
    "WS-CENTURY",
]
_VERBS = ["MOVE {} TO {}.", "ADD {} TO {}.", "IF {} > {}", "COMPUTE {} = {} / 12.", "PERFORM CHECK-{} UNTIL {} = 0."]


class Mainframe(Run):
    """Sources, copybooks and jobs of several systems; an address is a data set with a member."""

    def __init__(self, rng: random.Random, named: bool) -> None:
        """Write the members and choose the task."""
        super().__init__(rng)
        self.members: dict[str, list[str]] = {}
        codes = rng.sample(list(_SYSTEMS), 4)
        for code in codes:
            for number in range(1, 6):
                self.members[f"PROD.{code}.SRC({code}B{number:03d})"] = self._source(code)
            self.members[f"PROD.{code}.COPY({code}REC)"] = self._source("")
            self.members[f"PROD.{code}.JCL({code}NIGHT)"] = [
                f"//STEP{n:02d} EXEC PGM={code}B{n:03d}" for n in range(1, 6)
            ]
        self.members["PROD.COMMON.COPY(DATES)"] = self._source("")
        code = self.code = codes[0]
        self.program = f"PROD.{code}.SRC({code}B00{rng.randint(1, 3)})"
        name = self.program[-8:-1].strip("(")
        narrow = [
            f"{name} ends with S0C7 since the new year. Mend the program; it copies {code}REC and DATES.",
            f"The nightly {_SYSTEMS[code]} job fails. Please repair what is broken in PROD.{code}.SRC.",
            f"Change {name} so that it rounds half up, and run its compile job until it is clean",
        ]
        wide = ["Years with two digits must go. All systems.", "Night batch was red. Please look into it."]
        self.task = rng.choice(narrow if named or rng.random() < 0.75 else wide)
        self.copies = [f"PROD.{code}.COPY({code}REC)", "PROD.COMMON.COPY(DATES)"]
        self.mine = [self.program]
        if self.task == narrow[1]:
            self.mine = [key for key in self.members if key.startswith(f"PROD.{code}.SRC")]
        elif self.task in wide:
            self.mine = [key for key in self.members if ".SRC" in key]
        if self.task in narrow:
            self.inside = {*self.mine, *self.copies, f"PROD.{code}.JCL({code}NIGHT)"}
        self.far = [key for key in self.members if f".{code}." not in key and "COMMON" not in key]
        self.errors = {key: rng.randint(3, 6) for key in self.mine}

    def _source(self, code: str) -> list[str]:
        lines = [f"           COPY {code}REC.", "           COPY DATES."] if code else []
        for _ in range(self.some(7, 11)):
            one, two = self.rng.sample(_FIELDS, 2)
            lines.append(f"           {self.pick(_VERBS).format(one, two)}  *> {self.some(100, 999)}")
        return lines

    # ---- tools

    def show(self, key: str, way: int = 0) -> None:
        """Show a member by the editor, a command, or a print of the data set."""
        body = self.members[key]
        shows = [f"{key} {line}" for line in body]
        numbered = "\n".join(f"{n:04d}00 {line.strip()}" for n, line in enumerate(body, 1))
        if way == 1:
            command = self.pick(
                [f"OPUT '{key}' '/dev/fd1' TEXT", f"PRINTDS DSN('{key}') NOTITLE", f"LIST '{key}' NONUM"]
            )
            self.call("tso", {"cmd": command}, f"READY\n{numbered}\nEND", shows=shows, on=key)
        elif way == 2:
            dataset, member = key[:-1].split("(")
            given = {"dsn": dataset, "member": member, "lines": self.pick(["1-99", "1-200", "ALL"])}
            self.call("zfile_read", given, "\n".join(body), shows=shows, on=key)
        else:
            self.call(
                "ispf_view", {"dataset": key}, f"VIEW  {key} - 01.{self.some(10, 99)}\n{numbered}", shows=shows, on=key
            )

    def change(self, key: str, line: int, text: str) -> None:
        """Change a line of a member."""
        self.members[key][line] = text
        given = {"dataset": key, "commands": [f"LOCATE {line + 1}", f"REPLACE '{text.strip()}'"]}
        self.call("ispf_edit", given, f"SAVED AT {self.stamp()}", change=(f"{key} {line}", text), on=key)

    def compile(self, key: str) -> None:
        """Compile a program: submit the job and read its result."""
        left = self.errors.get(key, 0)
        job = f"JOB{self.some(10000, 99999)}"
        code = "RC=0000" if not left else f"RC=00{8 if left < 4 else 12:02d}"
        text = f"{job} SUBMITTED\n{job} ENDED {code} CPU 0.{self.some(10, 99)}\n"
        text += "\n".join(f"IGYPS{2000 + n}-E  LINE {40 + 7 * n}: OPERAND NOT NUMERIC" for n in range(left))
        given = {"jcl": "'PROD.TOOLS.JCL(COMPILE)'", "symbols": {"MEM": key}}
        self.call(
            "submit",
            given,
            text,
            ok=self.soft or not left,
            check=(key, f"{left}", left > 0),
            on=key,
            gap=self.rng.uniform(10, 40),
        )

    # ---- work

    def opening(self) -> None:
        """Look around in the data sets."""
        rows = "\n".join(key for key in self.members if self.code in key)
        self.call("tso", {"cmd": f"LISTDS 'PROD.{self.code}.*' MEMBERS"}, f"READY\n{rows}", shows=rows)
        self.show(self.mine[0])
        for key in self.rng.sample(self.far, self.some(0, 4)):
            self.show(key)

    def unit(self) -> None:
        """Mend one line."""
        left = [key for key in self.mine if self.errors[key]]
        if not left:
            return
        key = left[0]
        if self.rng.random() < 0.4:
            self.show(key, 2)
        if self.rng.random() < 0.4:
            text = f"{self.pick(_FIELDS)} PIC S9({self.some(1, 99)}) COMP-3"
            self.call("xref", {"field": text.split()[0], "in": key}, text, shows=text, on=key)
        self.errors[key] -= 1
        one, two = self.rng.sample(_FIELDS, 2)
        self.change(
            key, self.some(2, 6), f"           {self.pick(_VERBS).format(one, two)}  *> {self.some(1000, 9999)}"
        )
        self.compile(key)

    # ---- trouble and what looks like it

    def troubles(self) -> dict[Label, list[Step]]:
        """Return the processes."""
        return {
            "stalled": [self.views, self.signs, self.held, self.abended],
            "cascading": [self.racf, self.quotes, self.enqueue, self.tape],
            "drifting": [self.other_systems, self.reads_jobs, self.renumbers, self.next_program],
            "healthy": [
                self.glance,
                self.everywhere,
                self.job_moves,
                self.copybooks,
                self.spool,
                self.allocates,
                self.lines,
                self.scans,
            ],
        }

    def hammers(self) -> list[Step]:
        """Return a job that dies each time."""
        return [self.space]

    def views(self) -> None:
        self.story.append("views the same members in three ways")
        keys = [self.mine[0], self.copies[0]]
        for key in keys:
            self.show(key)
        looks: list[Step] = [partial(self.show, k, w) for k in keys for w in (0, 1, 2)]
        self.circle(looks, self.some(8, 16), lambda: self.call("tso", {"cmd": "TIME"}, f"TIME-{self.stamp()}"))

    def signs(self) -> None:
        self.story.append("turns one picture clause to and fro")
        key = self.mine[0]
        self.errors[key] = self.errors[key] or 2
        forms = ["           05 WS-RATE PIC S9(5)V99.", "           05 WS-RATE PIC 9(7) COMP-3."]
        for turn in range(self.some(7, 10)):
            self.change(key, 3, forms[turn % 2])
            if turn != 3:
                self.compile(key)

    def held(self) -> None:
        self.story.append("waits for a job in hold")
        job = f"JOB{self.some(10000, 99999)}"
        self.call("submit", {"jcl": f"'PROD.{self.code}.JCL({self.code}NIGHT)'"}, f"{job} SUBMITTED")
        for _ in range(self.some(17, 24)):
            text = f"{self.stamp()} {job} {self.code}NIGHT INPUT HOLD CLASS=N POS=0"
            self.call("sdsf", {"panel": "ST", "job": job}, text, wait=(job, "hold"), gap=self.rng.uniform(22, 70))

    def abended(self) -> None:
        self.story.append("looks at a job that has ended long ago")
        job = f"JOB{self.some(10000, 99999)}"
        for turn in range(self.some(8, 14)):
            panel = self.pick(["ST", "H", "O"])
            text = f"{job} {self.code}NIGHT ABEND S0C7 U0000 STEP03  ({self.stamp()})"
            given = {"panel": panel, "job": job} if turn % 3 else {"panel": panel, "prefix": f"{self.code}*"}
            self.call("sdsf", given, text, wait=(job, "abend"), final=True, gap=self.rng.uniform(5, 45))

    def space(self) -> None:
        self.story.append("submits a job that dies of space, again and again")
        for _ in range(self.some(8, 12)):
            job = f"JOB{self.some(10000, 99999)}"
            text = f"{job} SUBMITTED\nIEC031I D37-04,{job},LINK,SYSLMOD - DATA SET FULL\n{job} ENDED ABEND SD37"
            given = {"jcl": self.pick(["'PROD.TOOLS.JCL(LINK)'", "PROD.TOOLS.JCL(LINK)"])}
            self.call("submit", given, text, ok=self.soft, cause="D37", asks="link", gap=self.some(10, 30))

    def racf(self) -> None:
        self.story.append("has no right to the test data")
        steps: list[Step] = []
        for number in self.rng.sample(range(1, 90), self.some(4, 7)):
            name = f"TEST.{self.code}.DATA.G{number:04d}V00"
            said = f"ICH408I USER(AGENT4) GROUP(BATCH)\n  {name}\n  INSUFFICIENT ACCESS AUTHORITY"
            tool, given = self.pick([("tso", {"cmd": f"PRINTDS DSN('{name}')"}), ("zfile_read", {"dsn": name})])
            steps.append(partial(self.call, tool, given, said, ok=self.soft, cause="racf", asks=name))
        self.weave(steps, [self.unit, lambda: self.show(self.copies[1], 1), self.unit])

    def quotes(self) -> None:
        self.story.append("writes the names of data sets without quotes")
        for number, key in enumerate((self.mine * 5)[: self.some(4, 5)]):
            command = f"{self.pick(['SRCHFOR', 'SUPERC', 'COUNT'])} {key} STRING({self.pick(_FIELDS)}{number})"
            said = f"IKJ56500I DATA SET AGENT4.{key.split('(')[0]} NOT IN CATALOG"
            self.call("tso", {"cmd": command}, said, ok=self.soft, cause="prefix", asks=command)
            if number in (1, 3):
                self.change(self.mine[0], number + 2, f"           MOVE 0 TO WS-X{self.some(100, 999)}.")
        if self.rng.random() < 0.5:
            given = {"cmd": f"SRCHFOR '{self.mine[0]}' STRING(WS-RATE)"}
            self.call("tso", given, "3 LINES FOUND", shows="3 lines", clears="prefix", on=self.mine[0])

    def enqueue(self) -> None:
        self.story.append("a member is held by another user")
        key = self.copies[0]
        for line in range(self.some(4, 7)):
            said = f"MEMBER IN USE BY USER OPS{7} SINCE 06:12"
            given = {"dataset": key, "commands": [f"LOCATE {line + 1}", "REPLACE '05 FILLER PIC X.'"]}
            self.call("ispf_edit", given, said, ok=False, cause="enq", asks=str(line), on=key)
            if self.rng.random() < 0.6:
                self.change(self.mine[0], line + 2, f"           MOVE {self.some(1, 999)} TO WS-ROUND.")

    def tape(self) -> None:
        self.story.append("the tape library is offline")
        steps: list[Step] = []
        for year in self.rng.sample(range(2001, 2025), self.some(4, 7)):
            verb = self.pick(["HRECALL", "HLIST DSNAME", "HRECOVER"])
            said = f"ARC1102I DATA SET IS MIGRATED, VTS01 OFFLINE, RC=0058 AT {self.stamp()}"
            command = f"{verb}('HIST.{self.code}.Y{year}')"
            steps.append(partial(self.call, "tso", {"cmd": command}, said, ok=False, cause="vts", asks=command))
        self.weave(steps, [self.unit, self.unit])

    def other_systems(self) -> None:
        self.story.append("mends the same thing in other systems")
        keys = [key for key in self.far if ".SRC" in key]
        for key in self.rng.sample(keys, self.some(4, 6)):
            if self.rng.random() < 0.5:
                self.show(key, self.some(0, 2))
            self.change(key, self.some(2, 6), f"           MOVE {self.some(1, 99)} TO WS-CENTURY.")
            if self.rng.random() < 0.3:
                self.compile(self.mine[0])

    def reads_jobs(self) -> None:
        self.story.append("reads through programs of other systems")
        for key in self.rng.sample(self.far, self.some(6, 9)):
            self.show(key, self.some(0, 2))
            if self.rng.random() < 0.2:
                self.show(self.mine[0], 1)

    def renumbers(self) -> None:
        self.story.append("tidies copybooks and jobs of others between its own lines")
        for key in self.rng.sample([key for key in self.far if ".SRC" not in key] + self.far[:2], 4):
            command = f"SORTJCL '{key}'" if "JCL" in key else f"RENUM '{key}' 10 10"
            self.call("tso", {"cmd": command}, "READY", change=(f"{key} form", command), on=key)
            if self.rng.random() < 0.7:
                self.show(self.mine[0], self.some(0, 2))

    def next_program(self) -> None:
        self.story.append("goes on to programs with like names")
        code = self.pick([key.split(".")[1] for key in self.far])
        for key in [key for key in self.far if f".{code}." in key][: self.some(4, 6)]:
            self.show(key)
            self.change(key, 1, f"      *    CHECKED {self.some(100, 999)}")

    def job_moves(self) -> None:
        self.story.append("waits for a job that goes from step to step")
        job = f"JOB{self.some(10000, 99999)}"
        for step in range(1, self.some(5, 7)):
            for _ in range(self.some(1, 2)):
                text = f"{self.stamp()} {job} {self.code}NIGHT EXECUTING STEP{step:02d}"
                self.call("sdsf", {"panel": "DA", "job": job}, text, wait=(job, f"{step}"), gap=self.some(30, 80))

    def copybooks(self) -> None:
        self.story.append("changes the copybooks that the program copies")
        for key in self.copies:
            self.show(key, 1)
            for line in self.rng.sample(range(5), 2):
                self.change(key, line, f"           05 F{self.some(100, 999)} PIC 9(4).")

    def spool(self) -> None:
        self.story.append("reads the spool page by page")
        job = f"JOB{self.some(10000, 99999)}"
        for page in range(self.some(4, 7)):
            text = "\n".join(
                f"{page * 5 + n:06d} RECORD {self.some(10000, 99999)} {self.pick(_FIELDS)}" for n in range(5)
            )
            self.call("sdsf_read", {"job": job, "dd": "SYSOUT", "from": page * 5}, text, shows=text)

    def allocates(self) -> None:
        self.story.append("three failures, then the right allocation")
        for units in ("TRK", "TRACKS", "CYLS")[: self.some(2, 3)]:
            command = f"ALLOC DA('AGENT4.WORK') SPACE(5) {units}"
            self.call("tso", {"cmd": command}, "IKJ56712I INVALID KEYWORD", ok=self.soft, cause="keyword", asks=units)
        self.call(
            "tso",
            {"cmd": "ALLOC DA('AGENT4.WORK') SPACE(5) CYLINDERS NEW"},
            "READY",
            change=("work", "1"),
            clears="keyword",
        )

    def lines(self) -> None:
        self.story.append("changes line after line of one program")
        for line in range(2, 2 + self.some(4, 5)):
            self.change(self.mine[0], line, f"           COMPUTE OUT-{line} ROUNDED = WS-RATE / {self.some(2, 99)}.")

    def scans(self) -> None:
        self.story.append("searches several fields at once, without hits")
        with self.together():
            for field in self.rng.sample(_FIELDS, 5):
                given = {"dsn": self.mine[0], "string": f"REDEFINES {field}"}
                self.call("zfile_search", given, "0 LINES", shows=f"no {field}", on=self.mine[0])

    def everywhere(self) -> None:
        self.story.append("changes many programs, as far as the task goes")
        for key in self.rng.sample(self.mine, min(len(self.mine), self.some(5, 9))):
            self.change(key, 6, f"           MOVE 20 TO WS-CENTURY.  *> {self.some(100, 999)}")

    def glance(self) -> None:
        self.story.append("looks for a moment at another system, and goes back")
        self.unit()
        for key in self.rng.sample(self.far, self.some(2, 4)):
            self.show(key, self.some(0, 2))
        self.unit()


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories of this kind without end."""
    return deal(KIND, lambda named: Mainframe(rng, named), rng)
