"""Closing the timing of a block of a chip: scripts, reports and long jobs in a queue."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.corpus.trace import Trace
from tests.corpus.unseen_kinds._world1 import World, produce

KIND = "chip build in a queue"

_BLOCKS = ("uart_hub", "dma4", "vec_alu", "sdram_ctl", "usb_phy_if", "aes_core", "noc_router", "pwm_bank")
_KNOBS = ("core_util", "max_fanout", "cts_skew_ns", "hold_margin_ns", "wire_weight", "pad_left", "density", "buf_dist")
_STEPS = ("elab", "synth", "floorplan", "place", "cts", "route", "sta")
_FILES = ("rtl/{b}_top.sv", "rtl/{b}_fifo.sv", "rtl/{b}_regs.sv", "sdc/{b}.sdc", "flow/config.tcl", "flow/files.f")
_CELLS = ("NAND2X4", "BUFX8", "DFFRX1", "AOI22X2", "INVX16", "MUX2X1", "XOR2X2", "OAI21X4")


class Build(World):
    """One block, its knobs, and how much time its worst path lacks."""

    free_task = "Make the chip better wherever you can tonight; every block is open to you."

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.block, *self.others = rng.sample(_BLOCKS, 5)
        self.root = rng.choice(("/proj/orca", "/eda/tern", "~/soc"))
        self.knobs = {knob: round(rng.uniform(0.1, 0.9), 2) for knob in _KNOBS}
        self.wns = -rng.uniform(0.3, 0.9)
        self.job = rng.randrange(40000, 90000)
        self.runs = 0
        self.slips = 2
        self.shell = rng.choice(("bash", "shell", "run_command"))
        self.task = (
            f"Close timing of the block {self.block} ({self.root}/blocks/{self.block}). Jobs go through the queue "
            f"({rng.choice(('bq submit', 'the farm tools'))}); "
            + rng.choice(("WNS >= 0 in STA.", "target: no setup violation."))
        )

    # --- tools

    def sh(self, command: str, text: str, **meant: Any) -> None:
        """A shell command."""
        self.run.call(self.shell, {"command": command}, text, **meant)

    def cat(self, name: str, block: str = "", touch: str = "in") -> None:
        """Read a file of a block."""
        block = block or self.block
        path = f"blocks/{block}/{name.format(b=block)}"
        rng = random.Random(path)
        lines = [
            f"{rng.choice(_CELLS)} u_{rng.randrange(999)} (.a(n{rng.randrange(99)}));"
            for _ in range(rng.randint(6, 70))
        ]
        if name.endswith("tcl"):
            own = block == self.block
            lines = [f"set {k} {v if own else round(rng.uniform(0.1, 0.9), 2)}" for k, v in self.knobs.items()]
        elif name.endswith("sdc"):
            lines = [f"set_input_delay {rng.uniform(0.1, 0.9):.2f} [get_ports p{rng.randrange(40)}]" for _ in range(6)]
        elif name.endswith("files.f"):
            lines = [one.format(b=block) for one in _FILES[:3]] + [f"-v ../../lib/shared/{c.lower()}.v" for c in _CELLS]
        fact = path + ("" if touch == "out" else str(self.knobs) if name.endswith("tcl") else "")
        self.sh(
            self.rng.choice(("cat ", "sed -n 1,80p ", "less -FX ")) + path, "\n".join(lines), facts=[fact], touch=touch
        )

    def turn(self, knob: str, value: float, block: str = "", touch: str = "in") -> None:
        """Set a knob."""
        block = block or self.block
        old = self.knobs[knob]
        if touch == "in":
            self.knobs[knob] = value
        path = f"blocks/{block}/flow/config.tcl"
        self.sh(
            f"sed -i 's/^set {knob} .*/set {knob} {value}/' {path} && grep -n '{knob}' {path}",
            f"{_KNOBS.index(knob) + 1}:set {knob} {value}",
            state=f"{block}:{knob}={value}" if old != value or touch == "out" else None,
            touch=touch,
            changes=True,
        )

    def submit(self, block: str = "", touch: str = "in") -> int:
        """Put a job into the queue."""
        self.job += self.rng.randrange(1, 30)
        arguments = {"flow": "impl", "target": block or self.block, "cpus": self.rng.choice((4, 8, 16))}
        queue = self.rng.choice(("night", "impl"))
        text = f"Job <{self.job}> is submitted to queue <{queue}>; it will overwrite out/{block or self.block}."
        self.run.call("bq_submit", arguments, text, state=f"job {self.job}", touch=touch, changes=touch == "out")
        return self.job

    def look(self, job: int, state: str, step: str, low: float = 30, high: float = 110, form: int = -1) -> None:
        """Look at a job; the elapsed time is always another."""
        self.run.pause(low, high)
        now = self.run.stamp("%H:%M:%S")
        spent = int(self.run.at) + self.rng.randrange(5)
        form = self.rng.randrange(3) if form < 0 else form
        memory = f"mem={spent % 7 + 9}G" if state == "RUN" else "mem=-"
        tool, arguments, text = (
            ("bq_stat", {"job": job}, f"JOBID  STAT  STEP   ELAPSED\n{job}  {state}  {step}  {spent}s"),
            (self.shell, {"command": f"bq -l {job} | tail -1"}, f"{now} {job} {state} ({step})"),
            (
                "bq_stat",
                {"job": job, "long": True},
                f"Job {job}\n state={state}\n step={step}\n {memory}\n at={now}",
            ),
        )[form]
        self.run.call(tool, arguments, text, wait=(f"job{job}", f"{state} {step}"))

    def timing(self, wns: float | None = None) -> None:
        """The timing report of the newest run."""
        wns = self.wns if wns is None else wns
        rng = random.Random(f"{wns:.3f}")
        rows = [
            f"{wns + i * rng.uniform(0.01, 0.03):8.3f}  {rng.choice(_CELLS):<8} u_{rng.randrange(999)}/D"
            for i in range(rng.randint(5, 40))
        ]
        text = f"STA {self.block}  run {self.run.hex(5)}\n   slack  cell     endpoint\n" + "\n".join(rows)
        text += f"\nWNS {wns:.3f} ns   TNS {wns * 31:.2f} ns"
        arguments = {"block": self.block, "corner": "ss_0p72v_125c"}
        self.run.call("report_timing", arguments, text, check=("wns", f"{wns:.3f}"), touch="in")

    def look_around(self) -> None:
        for block in self.others:
            self.sh(f"ls blocks/{block}", f"flow\nrtl\nsdc\nREADME.{block}", facts=[f"ls {block}"], touch="out")

    def work(self) -> Iterator[None]:
        rng = self.rng
        for name in rng.sample(_FILES, rng.randint(3, 6)):
            self.cat(name)
            yield
        while True:
            self.timing()
            yield
            for knob in rng.sample(_KNOBS, rng.randint(1, 3)):
                self.turn(knob, round(rng.uniform(0.1, 2.0), 3))
                yield
            job = self.submit()
            yield
            steps = sorted(rng.sample(range(len(_STEPS)), rng.randint(2, 4)))
            for step in steps:
                for _ in range(rng.choice((1, 1, 1, 2, 3))):
                    self.look(job, "RUN", _STEPS[step])
                    yield
            self.look(job, "DONE", "sta")
            yield
            self.wns += rng.uniform(0.01, 0.1)
            self.runs += 1

    # --- look-alikes

    def alike_queue(self) -> None:
        """A long queue in which the job moves on."""
        job, place = self.submit(), self.rng.randint(6, 12)
        while place > 1:
            for _ in range(self.rng.randint(1, 5)):
                self.look(job, "PEND", f"pos {place}", 40, 90, 0 if self.rng.random() < 0.5 else 1)
            place -= self.rng.randint(2, 5)
        self.look(job, "RUN", "elab")

    def alike_same_line(self) -> None:
        """Three or four looks at the same short line, half a minute apart, then it is done."""
        name = f"lef_{self.run.hex(3)}"
        for _ in range(self.rng.randint(3, 6)):
            self.run.pause(25, 60)
            self.sh(f"cat out/{name}.state", "running", wait=(name, "running"))
        self.run.pause(25, 60)
        self.sh(f"cat out/{name}.state", "finished", wait=(name, "finished"))

    def alike_grep(self) -> None:
        """Names looked for in the block; none is there, and each is a new question."""
        for cell in self.rng.sample(_CELLS, self.rng.randint(4, 6)):
            command = f"grep -rn 'dont_use.*{cell}' blocks/{self.block}/"
            self.sh(command, "[exit 1]", facts=[f"no {cell}"], touch="in", ok=False)

    def alike_script_errors(self) -> None:
        """A new script with one fault after another, each found and mended."""
        faults = ("missing close-brace at line 14", 'can\'t read "clk_per": no such variable', "unknown port 'rst_nn'")
        path = f"blocks/{self.block}/flow/pre_{self.run.hex(3)}.tcl"
        for fault in self.rng.sample(faults, self.rng.choice((2, 3, 3))):
            self.sh(f"tclcheck {path}", f"Error: {fault}\n[exit 1]", fail=f"{path} {fault}", touch="in")
            if self.rng.random() < 0.4:
                self.sh(
                    f"patch {path} < /tmp/{self.run.hex(4)}.diff",
                    f"patching file {path}",
                    state=path + fault,
                    touch="in",
                )
        self.sh(f"tclcheck {path}", "0 errors", facts=[path + " clean"], touch="in")

    def alike_licence(self) -> None:
        """All licences taken; the retries wait longer and longer."""
        name, wait = f"lic{self.run.hex(4)}", 6.0
        for attempt in range(self.rng.choice((3, 4))):
            text = "LM-4: all 6 seats of 'pwr_signoff' in use\n[exit 3]"
            self.sh(f"pwr -block {self.block}", text, fail=name, ask=f"{attempt}", gap=wait, touch="in")
            wait *= self.rng.uniform(1.9, 2.7)
        text = f"total {self.rng.uniform(10, 90):.1f} mW"
        self.sh(f"pwr -block {self.block}", text, facts=[name], clears=[name], gap=wait, touch="in")

    def alike_library(self) -> None:
        """What the list of files includes: the shared cells, one step away."""
        self.cat("flow/files.f")
        for cell in self.rng.sample(_CELLS, self.rng.randint(5, 7)):
            area = len(cell) * 0.7 + self.rng.random()
            self.sh(
                f"head -20 lib/shared/{cell.lower()}.v", f"module {cell}; // {area:.2f} um2", facts=[cell], touch="in"
            )

    def alike_sweep(self) -> None:
        """A sweep of one knob: the numbers differ in the third place, and each is new."""
        wns = self.wns
        for step in range(self.rng.randint(5, 8)):
            wns += self.rng.choice((-1, 1)) * self.rng.uniform(0.001, 0.008)
            command = f"quick_est -block {self.block} -density {0.6 + step / 100:.2f}"
            self.sh(command, f"est. WNS {wns:.4f}", facts=[f"{command} {wns:.4f}"], touch="in")

    def alike_slip(self) -> None:
        """A knob of a neighbour, turned once; or only looked at."""
        block = self.others[0]
        self.cat("flow/config.tcl", block, "out")
        if self.slips > 0:
            self.slips -= 1
            self.turn(self.rng.choice(_KNOBS), round(self.rng.uniform(0.1, 0.9), 2), block, "out")

    # --- stalls

    def stall_two_values(self) -> None:
        """One knob goes to and fro, and the worst path does not care."""
        knob = self.rng.choice(_KNOBS)
        low = self.knobs[knob]
        values = (round(low + 0.08, 3), low)
        self.run.states.add(f"{self.block}:{knob}={low}")
        for turn in range(self.rng.randint(6, 8)):
            value = values[turn % 2]
            if turn >= 3 and self.rng.random() < 0.5:
                value = round(low + 0.08 * self.rng.random(), 3)
                self.run.states.add(f"{self.block}:{knob}={value}")
            self.turn(knob, value)
            text = f"est. WNS {self.wns:.3f}  ({self.rng.uniform(8, 19):.1f} s)"
            command = self.rng.choice((f"quick_est -block {self.block}", f"quick_est -b {self.block} -corner ss"))
            self.sh(command, text, check=("est", f"{self.wns:.3f}"), touch="in")

    def stall_failed_job(self) -> None:
        """A job that has failed for good is asked for again and again."""
        job = self.submit()

        def act() -> None:
            self.run.pause(10, 120)
            now = self.run.stamp("%b %d %H:%M:%S")
            tool, arguments, text = self.rng.choice(
                (
                    ("bq_stat", {"job": job}, f"{job} EXIT(139) ended earlier; asked {now}"),
                    (self.shell, {"command": f"bq -l {job}"}, f"Job {job} EXIT signal 11, final [{self.run.hex(6)}]"),
                    ("bq_stat", {"job": job, "long": True}, f"state=EXIT\nreason=139\nat={now}"),
                )
            )
            self.run.call(tool, arguments, text, facts=[f"{job} exit"])

        self.stuck([act] * self.rng.randint(8, 13))

    def stall_pending(self) -> None:
        """A place in the queue that never changes, looked at beyond all patience."""
        job = self.submit()
        place = self.rng.randint(4, 19)
        for _ in range(self.rng.randint(18, 24)):
            self.look(job, "PEND", f"pos {place}", 25, 140)

    def stall_same_lines(self) -> None:
        """The worst path of one report is cut out in many ways."""
        path = f"out/{self.block}/sta_{self.run.hex(3)}.rpt"
        lines = f"{self.wns:.3f} ns slack (VIOLATED) u_{self.rng.randrange(999)}/D"
        ways = (f"head -30 {path}", f"grep -n VIOLATED {path}", f"sed -n '1,40p' {path}", f"awk '/slack/' {path}")
        more = (f"grep -i -B2 slack {path}", f"cat {path} | grep slack", f"less -FX {path}")

        def act() -> None:
            number = self.rng.choice(("", "12:", "12-"))
            self.sh(self.rng.choice(ways + more), number + lines, facts=[path], touch="in")

        self.stuck([act] * self.rng.randint(8, 13))

    # --- cascades

    def cascade_licence_host(self) -> None:
        """Every tool of one maker needs the licence host, which cannot be reached."""
        tools = (f"lint_fe {self.block}", f"cdc_check {self.block}", f"eq_check -b {self.block}", "lmstat -a")
        more = (f"lint_fe {self.block} --rules base", f"eq_check -b {self.block} -quick", "cdc_check --version")

        def act(command: str) -> None:
            code = self.rng.choice((-15, -15, -96))
            text = f"Cannot connect to license server system 27000@lic2 ({code},{self.rng.randrange(10, 600)})"
            ok = self.lenient
            self.sh(command + " 2>&1 | tail -3", text, fail="lic2", ask=command, ok=ok)

        self.between([partial(act, command) for command in self.rng.sample(tools + more, self.rng.randint(4, 6))])

    def cascade_scratch(self) -> None:
        """The scratch disk is full, for whatever is written to it."""
        what = ("def", "spef", "gds", "saif", "lib", "lef", "vcd")

        def act(kind: str) -> None:
            target = f"/scratch/eda/{self.block}.{kind}"
            tool, arguments = self.rng.choice(
                (
                    (self.shell, {"command": f"export_{kind} {self.block} > {target}"}),
                    ("write_view", {"block": self.block, "view": kind, "out": target}),
                )
            )
            text = f"write error on {target}: No space left on device"
            self.run.call(tool, arguments, text, fail="scratch", ask=kind, touch="in", ok=self.lenient)

        self.between([partial(act, kind) for kind in self.rng.sample(what, self.rng.randint(4, 6))])

    def cascade_option(self) -> None:
        """A report tool does not know a unit, and is given it again in other reports."""
        kinds = ("setup", "hold", "max_tran", "max_cap", "recovery", "removal")

        def act(kind: str) -> None:
            text = f"ok\nwarning: nothing reported: unknown unit 'nsec' in -unit (report {kind})"
            arguments = {"block": self.block, "kind": kind, "unit": "nsec"}
            self.run.call("report_checks", arguments, text, fail="unit", ask=kind, touch="in", ok=True)

        self.between([partial(act, kind) for kind in self.rng.sample(kinds, self.rng.randint(4, 6))])
        if self.mends():
            arguments = {"block": self.block, "kind": "setup", "unit": "ns"}
            text = f"ok\n{self.rng.randrange(3, 60)} paths reported"
            self.run.call("report_checks", arguments, text, facts=[text], clears=["unit"], touch="in")

    # --- drift

    def drift_other_knobs(self) -> None:
        """Neighbouring blocks get new knobs too."""
        acts: list[Callable[[], None]] = []
        for index in range(self.rng.randint(5, 7)):
            block = self.rng.choice(self.others)
            if self.rng.random() < 0.15:
                acts.append(partial(self.cat, _FILES[index % 6], block, "out"))
            value = round(self.rng.uniform(0.1, 0.9), 3) + index
            acts.append(partial(self.turn, self.rng.choice(_KNOBS), value, block, "out"))
        self.astray(acts)

    def drift_other_jobs(self) -> None:
        """Jobs are started for blocks that nobody asked about."""
        self.astray([partial(self._start, block) for block in self.others + self.others[:1]])

    def _start(self, block: str) -> None:
        self.submit(block, "out")

    def drift_reading(self) -> None:
        """Reading the sources of the neighbours, file after file."""
        self.go(10)
        for block in self.rng.sample(self.others, 3):
            for name in self.rng.sample(_FILES[:4], self.rng.randint(2, 3)):
                self.cat(name, block, "out")
                if self.rng.random() < 0.35:
                    self.go(1)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Trajectories of this kind without end."""
    return produce(KIND, Build, rng)
