"""The figures of one context: its ceilings, what is settled, what is reserved, what stopped it, when its time is over.

Accounts form a chain of parents. What an account uses is counted in it and in every account above it, so the ceilings
of a parent bound all its descendants together. What an account has carved from those above is reserved there as a
claim; reservations inside it go no further up than this account, and settlement turns claimed amounts into spent
ones. An account is plain data: only a ledger changes it, under one lock for the tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from watchkeeper.accounting.budget import SHOWN, BudgetStatus, is_told
from watchkeeper.core.clock import Clock, Deadline, earliest
from watchkeeper.core.errors import ConfigurationError, LimitsError, Stop
from watchkeeper.accounting.limits import UNLIMITED, AccountLimit, Limits, Period
from watchkeeper.core.meters import COLUMNS, EVERY_CALL, SHARED
from watchkeeper.core.quantities import is_number
from watchkeeper.core.usage import CALL_COUNTS, NANOS_PER_USD, NOTHING_PRESUMED, Presumed, TokenUsage, Usage

# What is counted, as indexes of the lists below: the columns of the table of meters. Those that can have a ceiling come
# first; admission checks them in this order.
COST, TOTAL_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, STEPS, TOOL_CALLS, RETRIES = map(
    COLUMNS.index, ("cost_nanos", "total_tokens", "input_tokens", "output_tokens", "steps", "tool_calls", "retries")
)
CACHED_TOKENS, CACHE_WRITE_TOKENS, REASONING_TOKENS, MODEL_CALLS = map(
    COLUMNS.index, ("cached_tokens", "cache_write_tokens", "reasoning_tokens", "model_calls")
)
PRESUMED_CALLS, PRESUMED_INPUT, PRESUMED_OUTPUT, PRESUMED_COST = map(
    COLUMNS.index, ("presumed_calls", "presumed_input_tokens", "presumed_output_tokens", "presumed_cost_nanos")
)

CALLS_IN_USAGE: Final = tuple((name, COLUMNS.index(name)) for name in CALL_COUNTS)
"""The counts of calls that `Usage` has, each with its index."""

LIMITED: Final = len(SHARED)
"""How many of them can have a ceiling."""

CEILINGS: Final = tuple(meter.ceiling for meter in SHARED)
"""Attribute of `Limits` for each count that can have a ceiling."""

ceilings_of: Final = attrgetter(*CEILINGS)
"""Returns the ceilings of limits, in that order."""

NOTHING: Final[tuple[int, ...]] = (0,) * LIMITED

SPENDABLE: Final = (COST, TOTAL_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS)
"""What a call's estimate reserves and its charge settles; after these come the meters that count calls."""

OTHERS: Final = tuple((count, meter) for count, meter in enumerate(SHARED) if meter not in SHOWN)
"""The meters that have no fields of their own in `BudgetStatus`."""


class Claim(msgspec.Struct, eq=False):
    """What one account has carved of one count from those above it, and may still use.

    Attributes:
        account: The account that has carved it.
        count: The index of the limited quantity, such as cost or steps.
        outer: Where it is reserved: the accounts above, up to the next one that has carved the same count itself.
        amount: How much is reserved there now.
    """

    account: Account
    count: int
    outer: tuple[Account, ...]
    amount: int = 0


Row = tuple[int, int, "Account"]
"""``(count, ceiling, account)``."""


class Account(msgspec.Struct, eq=False, weakref=True):
    """One context's figures; a ledger opens it.

    Attributes:
        limits: Its own ceilings.
        parent: The account above it.
        name: The name of the context in the messages of stops.
        key: The key under which a ledger shares it between processes; None for an account of this process alone.
        period: Whether it starts again with every day or month (UTC); None for an account that never does.
        carved_on_open: Whether its ceilings are carved from what is left above when it is opened.
        for_verdict: Whether it holds what its parent keeps for a verdict.
        by_estimate: Whether it is the isolated budget of a nested evaluation, which model calls may pass by an estimate
            of their input; what it claims above grows with the worst cases that are reserved in it.
        renews_on: The next day on which its period starts again; set by the ledger that keeps it.
        chain: This account and all above it, innermost first.
        tops: Its own ceilings by count, as they are in force: the carved amount if it is less than the requested one.
        work_ignored: The accounts above whose end of work does not stop it: those above what is kept for a verdict.
        carved: The claims that it has carved itself.
        claims: Its own claims and those of all above it, innermost first.
        paths: By count, the accounts at which its reservations are held: up to the one that has carved the count.
        ceilings: A row for every ceiling on those paths, in the order of admission, innermost account first.
        beyond: A row for every ceiling further up: what was carved there is sure, unless more was spent than reserved.
        settled: What was used, by count.
        reserved: What calls under way, landing holds and claims, of this account and all below it, may still use.
        landing_hold: The part of ``reserved`` that is kept for this context's own landing turn.
        verdict_hold: The part of ``reserved`` that is kept for the verdict on this context.
        keeps_verdict: Whether a verdict may still be asked for when everything else is over here.
        unpriced: Whether something was used whose price is not known.
        stop: What ended everything here, if something did.
        barred: Why nothing is admitted here any more: that stop, or that it was closed.
        work_stop: What ended the work; a landing turn may still pass.
        reached: The last stop that a call below met at a ceiling of this account or above, and that call's number.
        deadline: When everything is over, as wall time for display; None if it never is.
        work_deadline: When the work is over and landing begins, as wall time.
        deadline_at: Monotonic instant at which everything is over; infinity without a deadline.
        work_until: Monotonic instant at which the work is over and landing begins.
        kept_seconds: How much of the time before ``deadline_at`` is reserved for the verdict.
        opened_at: Monotonic instant at which it was opened.
        wall: The moment at which everything is over by the wall clock too, if one was given here or above.
        whole_seconds: How long it was to take when it was opened.
        ends_with: The account above whose deadline ends this one too; None if it has an earlier one of its own.
    """

    limits: Limits
    parent: Account | None = None
    name: str = ""
    key: str | None = None
    period: Period | None = None
    carved_on_open: bool = False
    for_verdict: bool = False
    by_estimate: bool = False
    renews_on: date | None = None
    chain: tuple[Account, ...] = ()
    tops: list[int | None] = []
    work_ignored: tuple[Account, ...] = ()
    carved: tuple[Claim, ...] = ()
    claims: tuple[Claim, ...] = ()
    paths: tuple[tuple[Account, ...], ...] = ()
    ceilings: tuple[Row, ...] = ()
    beyond: tuple[Row, ...] = ()
    settled: list[int] = msgspec.field(default_factory=lambda: [0] * len(COLUMNS))
    reserved: list[int] = msgspec.field(default_factory=lambda: [0] * LIMITED)
    landing_hold: tuple[int, ...] = NOTHING
    verdict_hold: tuple[int, ...] = NOTHING
    keeps_verdict: bool = False
    unpriced: bool = False
    stop: Stop | None = None
    barred: Stop | None = None
    work_stop: Stop | None = None
    reached: tuple[Stop, int] | None = None
    deadline: Deadline | None = None
    work_deadline: Deadline | None = None
    deadline_at: float = math.inf
    work_until: float = math.inf
    kept_seconds: float = 0.0
    opened_at: float = 0.0
    wall: datetime | None = None
    whole_seconds: float = 0.0
    ends_with: Account | None = None

    def __post_init__(self) -> None:
        """Link the account to those above it."""
        parent = self.parent
        self.chain = (self, *(parent.chain if parent else ()))
        self.tops = [*ceilings_of(self.limits)]
        if parent is not None:
            self.work_ignored = parent.chain if self.for_verdict else parent.work_ignored
        self.carve(())

    def carve(self, counts: Sequence[int]) -> None:
        """Set the carved counts; recompute where reservations are held and which ceilings bind them."""
        parent = self.parent
        if parent is None:
            self.paths = ((self,),) * LIMITED
        else:
            self.carved = tuple(Claim(self, count, parent.paths[count]) for count in counts)
            self.claims = (*self.carved, *parent.claims)
            self.paths = tuple((self,) if count in counts else (self, *parent.paths[count]) for count in range(LIMITED))
        self.ceilings = rows(self.paths)
        self.beyond = rows([self.chain[len(path) :] for path in self.paths]) if self.claims else ()

    @property
    def has_landing(self) -> bool:
        """Whether this context has a landing turn to protect."""
        return self.limits.landing is not None

    def stops_work_only(self, *, landing: bool) -> bool:
        """Return whether a stop of the work leaves something that may still run: a landing turn or a verdict.

        Args:
            landing: Whether the landing turn itself was stopped; then only a verdict is left.
        """
        return self.keeps_verdict or (self.has_landing and not landing)

    def ends_at(self, *, landing: bool) -> float:
        """Return the monotonic instant at which the work is over, or the landing turn."""
        return self.deadline_at - self.kept_seconds if landing else self.work_until

    def has_ceiling(self, count: int) -> bool:
        """Return whether this account or one above it limits ``count``."""
        return any(level.tops[count] is not None for level in self.chain)


def rows(paths: Sequence[tuple[Account, ...]]) -> tuple[Row, ...]:
    """Return a row for every ceiling on the path of each count."""
    return tuple(
        [
            (count, top, account)
            for count, path in enumerate(paths)
            for account in path
            if (top := account.tops[count]) is not None
        ]
    )


# --- what an account shows --------------------------------------------------------------------------------------------


def usage_of(account: Account) -> Usage:
    """Return what an account and all below it have used."""
    settled = account.settled.copy()
    calls: Any = {name: settled[count] for name, count in CALLS_IN_USAGE} | {"retries": retries_of(account)}
    return Usage(
        TokenUsage(settled[INPUT_TOKENS], settled[OUTPUT_TOKENS], *settled[CACHED_TOKENS : REASONING_TOKENS + 1]),
        None if account.unpriced else settled[COST],
        presumed=presumed_in(settled, unpriced=account.unpriced),
        **calls,
    )


def carry_over(account: Account, spent: Usage) -> None:
    """Begin an account with what an earlier process has used of it; the accounts above have counted it already."""
    settled, tokens = account.settled, spent.tokens
    amounts = {
        **{name: getattr(spent, name) for name in CALL_COUNTS},
        "cost_nanos": spent.cost_nanos or 0,
        "total_tokens": tokens.total,
        "input_tokens": tokens.input_tokens,
        "output_tokens": tokens.output_tokens,
        "cached_tokens": tokens.cached_tokens,
        "cache_write_tokens": tokens.cache_write_tokens,
        "reasoning_tokens": tokens.reasoning_tokens,
        "presumed_calls": spent.presumed.calls,
        "presumed_input_tokens": spent.presumed.tokens.input_tokens,
        "presumed_output_tokens": spent.presumed.tokens.output_tokens,
        "presumed_cost_nanos": spent.presumed.cost_nanos or 0,
    }
    for column, amount in amounts.items():
        settled[COLUMNS.index(column)] += amount
    account.unpriced = account.unpriced or spent.cost_nanos is None


def presumed_in(settled: Sequence[int], *, unpriced: bool) -> Presumed:
    """Return the part of settled figures that is presumed, because the true figures are unknown."""
    calls = settled[PRESUMED_CALLS]
    if not calls:
        return NOTHING_PRESUMED
    tokens = TokenUsage(settled[PRESUMED_INPUT], settled[PRESUMED_OUTPUT])
    return Presumed(calls, tokens, None if unpriced else settled[PRESUMED_COST])


def retries_of(account: Account) -> int:
    """Return the retries spent; a last failure that found none left spends none."""
    ceiling = account.tops[RETRIES]
    spent = account.settled[RETRIES]
    return spent if ceiling is None else min(spent, ceiling)


def budget_status_of(account: Account, now: float, turns_used: int | None = None) -> BudgetStatus:
    """Return the account's own ceilings beside what was used; of turns only if their number is given."""
    tops, settled = account.tops, account.settled
    # By position, each ceiling before its use: it is made for every tool call, and keywords cost five times as much.
    return BudgetStatus(
        account.deadline,
        now - account.opened_at,
        None if account.deadline is None else max(account.deadline_at - now, 0.0),
        tops[TOTAL_TOKENS],
        settled[TOTAL_TOKENS],
        tops[TOOL_CALLS],
        settled[TOOL_CALLS],
        tops[COST],
        None if account.unpriced else settled[COST],
        tops[STEPS],
        settled[STEPS],
        tops[INPUT_TOKENS],
        settled[INPUT_TOKENS],
        tops[OUTPUT_TOKENS],
        settled[OUTPUT_TOKENS],
        tops[RETRIES],
        retries_of(account),
        None if turns_used is None else account.limits.ceiling("max_turns"),
        turns_used or 0,
        tuple(others(account)) if OTHERS else (),
    )


def others(account: Account) -> Iterator[tuple[str, int, int]]:
    """Yield the limits that have no fields of their own in `BudgetStatus`: field of `Limits`, use, ceiling."""
    for count, meter in OTHERS:
        most, used = account.tops[count], account.settled[count]
        if most is not None and is_told(meter, used, most):
            yield meter.field, used, most


def stop_of(account: Account) -> Stop | None:
    """Return what ended everything here, found here or above."""
    return next((level.stop for level in account.chain if level.stop is not None), None)


def work_stop_of(account: Account) -> Stop | None:
    """Return what ended the work here, found here or above; a stop of everything ends the work too."""
    for level in account.chain:
        stop = level.stop if level in account.work_ignored else level.work_stop or level.stop
        if stop is not None:
            return stop
    return None


def put_stop(account: Account, stop: Stop, *, work_only: bool) -> bool:
    """Put a stop on an account; the first one of its kind stays. Return whether this one was put."""
    if account.stop is not None or (work_only and account.work_stop is not None):
        return False
    if work_only:
        account.work_stop = stop
    else:
        account.stop = stop
        account.barred = account.barred or stop
    return True


def tell_reached(caller: Account, limiting: Account, stop: Stop, number: int) -> None:
    """Tell the accounts above a refused call, up to the one whose ceiling refused it, that this ceiling is reached."""
    if limiting is not caller:
        for level in caller.chain[1:]:
            level.reached = stop, number
            if level is limiting:
                return


def retries_left(account: Account) -> bool:
    """Return whether the retry ceilings of this chain allow one more retry."""
    limiting = (row for row in (*account.ceilings, *account.beyond) if row[0] == RETRIES)
    return all(level.settled[RETRIES] < ceiling for _, ceiling, level in limiting)


def spent_share(account: Account) -> float | None:
    """Return which share of its cost ceiling is spent, of the tightest one in its chain; None without one."""
    share: float | None = None
    for count, ceiling, level in (*account.ceilings, *account.beyond):
        if count == COST:
            share = max(share or 0.0, level.settled[COST] / ceiling)
    return share


# --- time -------------------------------------------------------------------------------------------------------------
# When the work of a context is over, and when everything is. Both instants are fixed when it is opened, on the
# monotonic clock. Only for a deadline that was given as a moment they come nearer later, when the wall clock has gone
# ahead: the machine slept, or its clock was set. They never move away. A child ends with its parent's work.


def set_ends(account: Account, parent: Account | None, clock: Clock) -> None:
    """Fix when an account that is opened now ends: its own deadline, or the end of the parent's work if earlier.

    One for a verdict ends with everything of its parent.

    Args:
        account: Its instants and wall times are set.
        parent: The account of the context above.
        clock: The source of time.
    """
    limits = account.limits
    now = account.opened_at = clock.monotonic()
    ends, given = None, limits.deadline
    if isinstance(given, timedelta):
        ends = Deadline.ending(clock.now() + given, now + given.total_seconds())
    elif isinstance(given, Deadline):
        ends = given.bound(clock)
    if parent is not None:
        whole = account.for_verdict
        end, above = (parent.deadline_at, parent.deadline) if whole else (parent.work_until, parent.work_deadline)
        if above is not None and (ends is None or above.remaining(clock) < ends.remaining(clock)):
            account.ends_with = parent.ends_with or parent
        if ends is None or (ends.wall is None and parent.wall is None):
            ends = above if ends is None or (ends.until is not None and end < ends.until) else ends
        else:
            ends = earliest(ends, above, clock=clock)
    if ends is not None and ends.until is not None:
        account.deadline, account.deadline_at, account.wall = ends, ends.until, ends.wall
        account.whole_seconds = account.deadline_at - now
    kept = 0.0
    if limits.landing is not None and account.deadline is not None:
        kept = limits.landing.seconds(max(account.deadline_at - now, 0.0))
    end_work(account, kept)


STEP_SECONDS: Final = 0.05
"""How far the wall clock must have gone ahead to count: less is what every clock is corrected by."""


def heed_wall(account: Account, clock: Clock, now: float) -> None:
    """Bring the ends nearer if the wall clock is nearer to the moment that was given than the monotonic clock is."""
    if account.wall is None:
        return
    left = (account.wall - clock.now()).total_seconds()
    ahead = account.deadline_at - now - left
    if ahead > STEP_SECONDS or (ahead > 0 and left <= 0):
        account.deadline_at -= ahead
        account.work_until -= ahead


def end_work(account: Account, kept: float) -> None:
    """Let the work end ``kept`` seconds before the deadline."""
    account.work_until = account.deadline_at - kept
    account.work_deadline = account.deadline
    if kept and account.deadline is not None:
        by, wall = timedelta(seconds=kept), account.wall
        account.work_deadline = Deadline.ending(
            account.deadline.at - by, account.work_until, None if wall is None else wall - by
        )


def keep_verdict_time(account: Account) -> None:
    """Keep time for a verdict before the end of everything: the work ends earlier by it.

    What is kept for a landing turn and for the verdict together is never more than half of the time: where it would
    be, both are reduced in proportion.
    """
    verdict, whole = account.limits.verdict, account.deadline_at - account.opened_at
    if verdict is None or account.deadline is None:
        return
    seconds, landing = verdict.seconds(whole), account.deadline_at - account.work_until
    shrunk = min(1.0, max(whole, 0.0) / 2 / (seconds + landing)) if seconds else 1.0
    account.kept_seconds = seconds * shrunk
    end_work(account, (seconds + landing) * shrunk)


# --- carving ----------------------------------------------------------------------------------------------------------
# Carving gives a context its own part of what the contexts above it have left, and takes it back later. The part is
# reserved above as a claim, so that no other context can take it. While the context is open, its claim is the carved
# amount less what is settled in it: what it spends is counted above as spent, once, and frees nothing. When the context
# is closed, or stopped finally, its claim shrinks to what its calls in flight still hold.

SAFETY_NETS: Final = Limits()
"""Default limits. A ceiling at its default is a safety net; it does not request a reservation of that size."""

VERDICT_CALLS: Final = tuple(sum(kind in meter.calls for kind in ("child", "llm")) for meter in SHARED)
"""By count, how many of the calls of a verdict it counts: a verdict is a model call inside a child run."""

LANDING_CALLS: Final = tuple(count for count, meter in enumerate(SHARED) if meter.is_counted and "llm" in meter.calls)
"""The counts that the model call of a landing turn raises."""


class Left(NamedTuple):
    """The amount that is left of one count, and the ceiling that determines it."""

    amount: int
    ceiling: Row


def left_of(account: Account) -> dict[int, Left]:
    """Return, for every count that an account or one above it limits, what the tightest of those ceilings leaves."""
    found: dict[int, Left] = {}
    for ceilings, shared in ((account.ceilings, True), (account.beyond, False)):
        for row in ceilings:
            count, ceiling, level = row
            free = ceiling - level.settled[count] - (level.reserved[count] if shared else 0)
            if count not in found or free < found[count].amount:
                found[count] = Left(max(free, 0), row)
    return found


def wishes_of(account: Account) -> dict[int, int]:
    """Return what a child's own ceilings ask for."""
    return {
        count: top
        for count, top in enumerate(account.tops)
        if top is not None and top != SAFETY_NETS.ceiling(CEILINGS[count])
    }


def kept_for_verdict(keeper: Account, left: Mapping[int, Left]) -> dict[int, int]:
    """Return what an account keeps for a verdict, of all counts that its limits or those around it bound.

    Of what is measured, at least what its meter says is kept, but no more than a quarter of what there is; of what
    counts calls, at least the calls of a verdict, if that leaves the work some. An account that runs share is no part
    of the run: of what it alone bounds, nothing is kept.
    """
    verdict = keeper.limits.verdict
    if verdict is None:
        return {}
    bounded = {count for count, _, level in (*keeper.ceilings, *keeper.beyond) if level.period is None}
    wishes: dict[int, int] = {}
    for count in bounded:
        meter, calls, rest = SHARED[count], VERDICT_CALLS[count], left[count].amount
        if calls:
            least = min(meter.kept_for_verdict, rest // 4) if count in SPENDABLE else calls if rest > calls else 0
            wishes[count] = max(int(rest * verdict.share), least)
    return {count: wish for count, wish in wishes.items() if wish}


def one_call_of(account: Account) -> tuple[int, ...]:
    """Return what an account keeps for the call of its landing turn: one of what counts it, where two are left."""
    hold: list[int] = list(NOTHING)
    for count in LANDING_CALLS:
        rooms = [top - at.settled[count] - at.reserved[count] for row, top, at in account.ceilings if row == count]
        hold[count] = int(bool(rooms) and min(rooms) >= 2)
    return tuple(hold)


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise a LimitsError unless there are weights and all are finite numbers above zero."""
    if not weights:
        raise LimitsError("there is nobody to split between; give weights by name, for example {'a': 3, 'b': 1}")
    for name, weight in weights.items():
        if not is_number(weight) or weight <= 0:
            raise LimitsError(f"the weight of {name!r} is {weight!r}; it must be a finite number above zero")


def shares_of(left: Mapping[int, Left], weights: Sequence[float]) -> list[dict[int, int]]:
    """Divide what is left by weight; rounded down, so that the shares together never exceed it."""
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    return [{count: int(rest.amount * weight / total) for count, rest in left.items()} for weight in exact]


def carve(account: Account, wishes: Mapping[int, int], left: Mapping[int, Left]) -> Row | None:
    """Give an account what it requests, at most what is left, as ceilings of its own that are reserved above it.

    A count without a ceiling above is not carved, nor are tool calls and retries if none are left: the account shares
    these counts with the accounts above it.

    Returns:
        The ceiling above that leaves 0 of a count that every call needs (cost, tokens or steps); nothing is carved
        then. None if the account may work.
    """
    used = account.settled  # by an earlier process: counted above already, so it is no part of what is left there
    given = {count: min(wish, left[count].amount + used[count]) for count, wish in wishes.items() if count in left}
    for count, amount in given.items():
        if amount == 0 and SHARED[count].calls == EVERY_CALL:
            return left[count].ceiling
    carved = [count for count, amount in given.items() if amount]
    for count in carved:
        account.tops[count] = given[count]
    ceilings: dict[str, Any] = {SHARED[count].field: given[count] for count in carved if count != COST}
    if COST in carved:
        ceilings["max_cost_usd"] = Decimal(given[COST]) / NANOS_PER_USD
    if any(getattr(account.limits, field) != ceiling for field, ceiling in ceilings.items()):
        account.limits = replace(account.limits, **ceilings)
    account.carve(carved)
    return None


def update_claim(claim: Claim) -> None:
    """Reserve above the present claim: the carved amount less what is settled, or what an ended account still holds."""
    account, count = claim.account, claim.count
    amount = max((account.tops[count] or 0) - account.settled[count], 0)
    if account.barred is not None:
        amount = min(amount, account.reserved[count])
    if account.by_estimate:
        amount = max(amount, account.reserved[count])
    change = amount - claim.amount
    if change:
        claim.amount = amount
        for level in claim.outer:
            level.reserved[count] += change
        if account.for_verdict:
            keeper = account.chain[1]
            held = keeper.verdict_hold
            keeper.verdict_hold = (*held[:count], held[count] + change, *held[count + 1 :])


def move_claims(account: Account) -> None:
    """Set aside above an account, and above those above it, what is claimed now that their figures have changed."""
    for claim in account.claims:
        update_claim(claim)


# --- shared accounts --------------------------------------------------------------------------------------------------
# `Limits(account="team-a", account_limit="$20/day")` puts an account above the root that several runs share, by a key
# that a ledger on disk knows in every process. It has that ceiling only, and no deadline, landing or stop: what it
# refuses ends the run that asked, not the account.

PREFIX: Final = "account:"
"""Starts the keys of shared accounts, so that no chain has one of them by chance."""


def shared_key(name: str) -> str:
    """Return the key by which a ledger knows the account of this name."""
    return PREFIX + name


def account_above(limits: Limits, parent: Account | None, *, lasting: bool = True) -> Account | None:
    """Return the account above a new context: its parent, or the shared account that its limits name.

    Args:
        limits: The context's own ceilings.
        parent: The account of the context that it is a child of, or None for a root.
        lasting: Whether the ledger remembers figures when the process ends.

    Raises:
        ConfigurationError: If the ledger does not remember figures, or a child names another account than its root.
    """
    if limits.account is None:
        return parent
    if parent is not None:
        if any(level.period is not None and level.name == limits.account for level in parent.chain):
            return parent
        raise ConfigurationError(
            f"account={limits.account!r} is named for a part of a run; name it in the limits of the whole run"
        )
    if not lasting:
        raise ConfigurationError(
            f"account={limits.account!r} needs a ledger that remembers other runs, for example"
            " ledger=SqliteLedger('ledger.sqlite3')"
        )
    return shared_account(limits)


def shared_account(limits: Limits) -> Account | None:
    """Return the shared account that limits name, or None if they name none."""
    limit = limits.account_limit
    if limits.account is None or not isinstance(limit, AccountLimit):
        return None
    ceilings = replace(
        UNLIMITED,
        max_cost_usd=limit.dollars,
        max_total_tokens=limit.tokens,
        min_output_tokens=limits.min_output_tokens,
        landing=None,
        account=limits.account,
        account_limit=limit,
    )
    return Account(ceilings, None, limits.account, key=shared_key(limits.account), period=limit.period)
