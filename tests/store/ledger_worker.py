"""Processes on one ledger: they do what the command line says, and say on stdout what they did.

`race` copies itself, so that ten processes start in the time of one; all begin together, at a line on stdin, and make
calls under one ceiling after another until each is refused. `hold` begins calls and never ends them. `spend` makes as
many calls as each line on stdin says. `fork`, `outlived`, `outlived_store`, `opened_in_fork` and `fork_in_call` go on
in several processes.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from watchkeeper.accounting.call_request import CallRequest, Charge, Estimate
from watchkeeper.accounting.limits import UNLIMITED
from watchkeeper.containment.config import WrapOptions
from watchkeeper.containment.execution_context import ExecutionContext
from watchkeeper.containment.in_flight import Ticket
from watchkeeper.core.errors import ConfigurationError, Stop, StoreError
from watchkeeper.disk.sqlite import register
from watchkeeper.ledgers.sqlite_ledger import SqliteLedger
from watchkeeper.session.log import Envelope
from watchkeeper.shield.decision import ChainMetadata, Decision
from watchkeeper.store.items import Item
from watchkeeper.store.run_store import RunStore

CENT = 10_000_000
CEILINGS: Mapping[str, Mapping[str, Any]] = {
    "steps": {"max_steps": 500},
    "one": {"max_steps": 1},
    "retries": {"max_retries": 10},
    "cost": {"max_cost_usd": 5},
    "account": {"account": "team-a", "account_limit": "$5/month"},
}


def context(ledger: SqliteLedger, name: str) -> ExecutionContext:
    """Open the context that all processes share under a name, or whose account they share."""
    limits = replace(UNLIMITED, landing=None, **CEILINGS[name])
    return ExecutionContext(limits, None, None if name == "account" else ChainMetadata("r", name), ledger=ledger)


def race(ledger: SqliteLedger, rng: random.Random) -> dict[str, Any]:
    """Make calls until none is admitted; return how many ran, and what was spent."""
    ran = dict.fromkeys(CEILINGS, 0)
    spent = dict.fromkeys(CEILINGS, 0)
    for name in CEILINGS:
        with context(ledger, name) as gate:
            while call(ledger, gate, name, rng, ran, spent):
                pass
    return {"ran": ran, "spent": spent}


def call(
    ledger: SqliteLedger,
    gate: ExecutionContext,
    name: str,
    rng: random.Random,
    ran: dict[str, int],
    spent: dict[str, int],
) -> bool:
    """Make one call with a known worst case; return whether it ran."""
    worst = rng.randint(5, 30) * CENT if name in ("cost", "account") else 0
    real = rng.choice((worst, worst // 2, CENT if worst else 0))
    request = CallRequest("llm", name, Estimate(input_nanos=worst), spends_retry_on_error=name == "retries")

    def work(ticket: Ticket) -> None:
        ran[name] += 1
        if worst:
            bill(ledger, name, real)
        if name == "retries":
            raise ValueError("flaky")

    def meter(value: None, error: BaseException | None, ticket: Ticket) -> Charge:
        spent[name] += real
        return Charge(cost_nanos=real)

    outcome = gate.call(request, work, meter)
    return outcome.decision is not Decision.HALT or outcome.admitted


def bill(ledger: SqliteLedger, name: str, nanos: int) -> None:
    """Write down what the provider bills, at the moment when it does: whatever becomes of this process."""
    line = json.dumps([name, nanos]).encode() + b"\n"
    file = os.open(ledger.path.with_suffix(".bill"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)


def hold(ledger: SqliteLedger, say: Callable[[str], object]) -> None:
    """Begin a call that holds $3 of the account, spend a dollar in another, and never come back."""
    gate = context(ledger, "account")
    gate.call(CallRequest("llm", "spent", Estimate(input_nanos=100 * CENT)), lambda _: None)

    def stay(ticket: Ticket) -> None:
        say("held")
        threading.Event().wait()

    gate.call(CallRequest("llm", "held", Estimate(input_nanos=300 * CENT)), stay)


def fork(ledger: SqliteLedger) -> None:
    """Make one call in a copy of this process, and two in this one, where there are steps for two in all.

    The copy must open a context of its own: that of the parent is refused there.
    """
    limits = replace(UNLIMITED, max_steps=2, landing=None)
    gate = ExecutionContext(limits, None, ChainMetadata("r", "forked"), ledger=ledger)
    child = os.fork()
    if child == 0:
        for use in (lambda: gate.call_tool(lambda: 1), lambda: gate.child(limits)):
            try:
                use()
            except ConfigurationError as error:
                print("forked" if "before the process was forked" in str(error) else error, flush=True)
        again = ExecutionContext(limits, None, ChainMetadata("r", "forked"), ledger=ledger)
        print(f"child:{again.call_tool(lambda: 1).decision}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    for _ in range(2):
        print(f"parent:{gate.call_tool(lambda: 1).decision}", flush=True)
    gate.close()


def outlived(path: str) -> None:
    """Fork a process that goes on when this one has shut its ledger down, beside one that joins then.

    There are steps for six in all; the two ask for six each, in turn.
    """
    with SqliteLedger(path) as ledger:
        own_step(ledger)
        first, second = in_turn(lambda: own_step(ledger))
    second(lambda: own_step(SqliteLedger(path)))
    first()


def outlived_store(path: str) -> None:
    """Do the same with a store of runs, in which each of the two writes six events."""
    with RunStore(path) as store:
        write(store)
        first, second = in_turn(lambda: write(store))
    second(lambda: write(RunStore(path)))
    first()


def opened_in_fork(path: str) -> None:
    """Fork while another thread begins to open a store; say how far it is at the moment of the fork, and in the end."""
    opening = threading.Thread(target=lambda: RunStore(path).close(), daemon=True)

    class Beside:
        def before_fork(self) -> None:
            opening.start()
            opening.join(0.2)
            print("waits" if opening.is_alive() else "opened", flush=True)

        def after_fork(self, *, child: bool) -> None:
            pass

    register(beside := Beside())
    child = os.fork()
    if child == 0:
        RunStore(path).close()
        os._exit(0)
    os.waitpid(child, 0)
    opening.join()
    print("opened", flush=True)
    del beside


def spend(ledger: SqliteLedger) -> None:
    """Make as many calls of 10 cents under a ceiling of $1 as each line says; say how many were admitted."""
    limits = replace(UNLIMITED, max_cost_usd=1, landing=None)
    dime = WrapOptions(cost_estimate_hint=0.1)
    for line in sys.stdin:
        ran = 0
        for _ in range(int(line)):
            with (
                suppress(StoreError),
                ExecutionContext(limits, None, ChainMetadata("r", "s"), ledger=ledger) as gate,
            ):
                ran += gate.call_llm(lambda: "done", dime).decision is Decision.ALLOW
        print(ran, flush=True)


def own_step(ledger: SqliteLedger) -> Decision:
    """Ask for a step of those that all share."""
    limits = replace(UNLIMITED, max_steps=6, landing=None)
    with ExecutionContext(limits, None, ChainMetadata("r", "o"), ledger=ledger) as gate:
        return gate.call_tool(lambda: 1).decision


def write(store: RunStore) -> str:
    """Write one event."""
    store.append([Item(uuid4(), Envelope(1, datetime.now(UTC), Stop("aborted", "caller", "x" * 500)))])
    return "written"


def in_turn(act: Callable[[], object]) -> tuple[Callable[[], None], Callable[[Callable[[], object]], int]]:
    """Fork a process that acts six times; return what lets it begin and waits for it, and what forks one beside it."""
    mine, other = os.pipe(), os.pipe()
    child = forked(act, mine, other)

    def wait() -> None:
        os.write(mine[1], b"x")
        os.waitpid(child, 0)

    return wait, lambda act: forked(act, other, mine)


def forked(act: Callable[[], object], mine: tuple[int, int], other: tuple[int, int]) -> int:
    """Fork a process that acts six times, each when it is its turn."""
    child = os.fork()
    if child:
        return child
    for _ in range(6):
        os.read(mine[0], 1)
        try:
            print(act(), flush=True)
        except StoreError as error:
            print(error, flush=True)
        os.write(other[1], b"x")
    os._exit(0)


def fork_in_call(ledger: SqliteLedger | None) -> None:
    """Fork inside a call that may cost 40 cents, four times; each copy returns from it and goes on as if it were ours.

    Says what each copy was told, and what a run of its own came to there.
    """
    from watchkeeper import Agent
    from watchkeeper.models import Say, ScriptedModel

    gate = ExecutionContext(
        replace(UNLIMITED, max_cost_usd=1, landing=None), None, ChainMetadata("r", "f"), ledger=ledger
    )
    ours = os.getpid()
    copies: list[int] = []

    def work(ticket: Ticket) -> None:
        while len(copies) < 4 and os.getpid() == ours:
            copies.append(os.fork())

    request = CallRequest("llm", "dear", Estimate(input_nanos=40 * CENT))
    gate.call(request, work)
    if os.getpid() != ours:
        told = "admitted"
        try:
            gate.call(request, lambda _: None)
        except ConfigurationError:
            told = "refused"
        agent = Agent(ScriptedModel(lambda _: Say("done")), "Be brief.", str)
        ran = agent.run("go", store=None, ledger="default" if ledger is None else ledger)
        os.write(1, f"{told}:{ran.output}\n".encode())
        gate.close()
        if ledger is not None:
            ledger.shutdown()  # what it could not write yet, because another copy was writing
        os._exit(0)
    for copy in copies:
        os.waitpid(copy, 0)
    print(f"billed:{gate.usage.cost_nanos}", flush=True)
    gate.close()


def racers(path: str, count: int) -> None:
    """Start processes that race; each says ``ready`` with its id, and in the end what it did."""
    gate, opener = os.pipe()
    for seed in range(count):
        if os.fork() == 0:
            os.close(opener)
            racer(path, seed, gate)
            os._exit(0)
    sys.stdin.readline()
    os.close(opener)
    for _ in range(count):
        os.wait()


def racer(path: str, seed: int, gate: int) -> None:
    """Race when the gate opens; every line is one write, so that no other process writes into it."""
    with SqliteLedger(path, busy_seconds=60, lease_seconds=60) as ledger:
        os.write(1, json.dumps({"ready": os.getpid()}).encode() + b"\n")
        os.read(gate, 1)
        os.write(1, json.dumps({"pid": os.getpid(), **race(ledger, random.Random(seed))}).encode() + b"\n")


def main() -> None:
    """Do what the first argument says, on the ledger that the second names; the third depends on the first."""
    what, path, number = sys.argv[1:]
    match what:
        case "fork":
            fork(SqliteLedger(path))
        case "outlived":
            outlived(path)
        case "outlived_store":
            outlived_store(path)
        case "spend":
            spend(SqliteLedger(path))
        case "opened_in_fork":
            opened_in_fork(path)
        case "fork_in_call":
            fork_in_call(SqliteLedger(path) if number == "shared" else None)
        case "hold":
            hold(SqliteLedger(path, lease_seconds=float(number)), lambda text: print(text, flush=True))
        case _:
            racers(path, int(number))


if __name__ == "__main__":
    main()
