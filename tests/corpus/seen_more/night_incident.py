"""Incident response: services that depend on each other, logs by time window, metrics, flags and pages to people."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.corpus.seen_more.world import Args, Place, Scene, Shape, js, stories
from tests.corpus.trace import Trace

KIND = "night_incident"

DEPENDS = {
    "ticket-shop": ["pay-gateway", "seat-map"],
    "pay-gateway": ["ledger-db", "fraud-score"],
    "seat-map": ["cache-a", "ledger-db"],
    "mobile-api": ["auth-svc", "seat-map"],
    "auth-svc": ["users-db", "cache-a"],
    "newsletter": ["mail-relay", "users-db"],
    "search-ui": ["index-svc"],
    "index-svc": ["object-store"],
    "reports": ["warehouse", "object-store"],
    "fraud-score": [],
    "ledger-db": [],
    "users-db": [],
    "cache-a": [],
    "mail-relay": [],
    "object-store": [],
    "warehouse": [],
}
METRICS = ["p99_ms", "error_rate", "cpu", "queue_len", "open_fds", "gc_pause", "conn_pool", "disk_used"]
PEOPLE = ["on-call database", "on-call network", "duty manager", "team search", "team payments"]


class Incident(Scene):
    """One service has an incident; what it depends on is one step away."""

    def __init__(self, rng: random.Random) -> None:
        """Choose the incident."""
        super().__init__(rng)
        self.service = rng.choice([name for name, needs in DEPENDS.items() if needs])
        self.hour = rng.randint(1, 20)
        self.form = rng.choice(["name", "alert", "window", "words", "nothing"])
        number = rng.randint(100, 999)
        self.task = {
            "name": f"{self.service} answers slowly. Find the cause, mitigate, write the timeline.",
            "alert": js(alert="ErrorBudgetBurn", service=self.service, severity="sev2", incident=number),
            "window": f"What happened to {self.service} from {self.hour:02d}:00 to {self.hour + 2:02d}:00 on 3 March?",
            "words": f"INC-{number}: customers cannot finish in {self.service.replace('-', ' ')}, please take over",
            "nothing": "You are on call until six.",
        }[self.form]
        self.inside = [self.service, *DEPENDS[self.service]]
        self.outside = [name for name in DEPENDS if name not in self.inside]
        self.number = rng.randint(10, 50)
        if self.form != "nothing":
            catalogue = js(service=self.service, depends_on=DEPENDS[self.service], owner=rng.choice(PEOPLE))
            self.run.call("catalogue_get", {"service": self.service}, catalogue, place="in")

    def place(self, service: str) -> Place:
        """Say whether a service belongs to the incident."""
        return "" if self.form == "nothing" else "in" if service in self.inside else "out"

    def own(self) -> str:
        """Choose a service of the incident, mostly the one that is named."""
        if self.form == "nothing":
            return self.rng.choice(list(DEPENDS))
        return self.service if self.rng.random() < 0.6 else self.rng.choice(self.inside)

    def look(self, service: str) -> None:
        """Look at something new of a service."""
        rng, at = self.rng, self.place(service)
        self.number += 1
        kind = rng.randrange(4)
        minute = self.number % 60
        if kind == 0:
            args: Args = {
                "query": f'{{app="{service}"}} |= "{rng.choice(METRICS)}"',
                "from": f"{self.hour:02d}:{minute:02d}",
                "limit": 50,
            }
            lines = [
                f"{self.hour:02d}:{minute:02d}:{rng.randint(10, 59)} {service}-{self.run.hexid(4)} "
                f"{rng.choice(['warn', 'error', 'info'])} {rng.choice(METRICS)}={self.number} {self.run.hexid(6)}"
                for _ in range(rng.randint(2, 10))
            ]
            self.run.call("loki_query", args, "\n".join(lines), place=at)
        elif kind == 1:
            args = {"metric": rng.choice(METRICS), "service": service, "window": f"{self.number}m"}
            values = " ".join(f"{rng.uniform(0, 90):.1f}" for _ in range(12))
            self.run.call("metrics_range", args, values, place=at)
        elif kind == 2:
            said = f"{service} v{rng.randint(1, 9)}.{self.number} deployed by pipeline, {rng.randint(1, 40)} changes"
            self.run.call("deploys_list", {"service": service, "page": self.number}, said, place=at)
        else:
            spans = [{"op": rng.choice(METRICS), "ms": rng.randint(1, 3000)} for _ in range(rng.randint(2, 6))]
            self.run.call(
                "trace_get",
                {"trace_id": self.run.hexid(16), "service": service},
                js(root=service, spans=spans),
                place=at,
            )

    def change(self, service: str) -> None:
        """Do something to a service that was not done before."""
        rng = self.rng
        self.number += 1
        tool, args = rng.choice(
            [
                ("flag_set", js(flag=f"{service}.{rng.choice(METRICS)}", value=self.number)),
                ("scale_set", js(service=service, instances=self.number)),
                ("config_push", js(service=service, key=rng.choice(METRICS), value=self.number)),
            ]
        )
        said = rng.choice(["applied", js(status="accepted", change=self.run.hexid(6)), f"rev {self.number} active"])
        self.run.call(tool, args, said, place=self.place(service), change=True, clears="freeze")

    def step(self) -> None:
        """Look and act."""
        dice = self.rng.random()
        if dice < 0.08:
            self.number += 1
            args: Args = {"entry": f"{self.number}: {self.rng.choice(METRICS)} of {self.service} noted"}
            self.run.call("timeline_add", args, "added", change=True)
        elif dice < 0.8:
            self.look(self.own())
        else:
            self.change(self.own())

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""
        rng, service = self.rng, self.own()
        at = self.place(service)

        def pages_somebody_who_does_not_answer() -> None:
            who = rng.choice(PEOPLE)
            for number in range(rng.randint(8, 12)):
                if number % 2 == 0:
                    args: Args = {
                        "to": who,
                        "text": rng.choice(["please join", "need you", "are you there?", "second call"]),
                    }
                    self.run.call("page", args, f"paged {self.run.hexid(5)}", fresh=number == 0, change=True)
                else:
                    self.run.call(
                        "page_status",
                        {"to": who},
                        rng.choice(["not acknowledged", "ack: none", "open"]),
                        fresh=number == 1,
                    )

        def the_same_graph_in_many_windows() -> None:
            for number in range(rng.randint(8, 14)):
                args: Args = {
                    "metric": "error_rate",
                    "service": service,
                    "window": rng.choice(["5m", "15m", "1h", "6h", "24h"]),
                }
                args["step"] = rng.choice(["15s", "1m", "5m"])
                said = rng.choice(["no data", "[] (series absent)", js(result=[]), "0 series"])
                self.run.call("metrics_range", args, said, fresh=number == 0, place=at)
                if number == 4 and rng.random() < 0.5:
                    self.look(service)

        def flag_on_flag_off() -> None:
            for number in range(rng.randint(7, 12)):
                args = js(flag=f"{service}.fallback", value=number % 2 == 0)
                self.run.call("flag_set", args, "applied", fresh=number < 1, change=True, place=at, clears="freeze")
                if rng.random() < 0.3:
                    said = f"{service}: 503 for 31 % of requests"
                    self.run.call("probe_run", {"service": service}, said, fresh=number < 1, place=at)

        def a_failover_that_never_ends() -> None:
            for _ in range(rng.randint(18, 25)):
                said = f"{service}: failover IN_PROGRESS, step 2 of 5, {int(self.run.clock)} s"
                self.run.call(
                    "failover_status", {"service": service}, said, watch="failover", place=at, gap=rng.uniform(21, 70)
                )

        def the_same_dashboard_by_other_tools() -> None:
            value = f"{rng.uniform(20, 60):.1f}"
            for number in range(rng.randint(8, 14)):
                tool, said = rng.choice(
                    [
                        (
                            "dashboard_panel",
                            f"{service} error_rate {value} % (snapshot of the night, id {self.run.hexid(4)})",
                        ),
                        ("dashboard_image", f"[chart: flat line at {value} %]"),
                        ("dashboard_export", f"panel,value\nerror_rate,{value}"),
                        ("dashboard_panel", js(panel="error_rate", last=value, took=self.run.millis())),
                    ]
                )
                args: Args = {"service": service, "panel": "error_rate", "snapshot": "night-1"}
                self.run.call(tool, args, said, fresh=number == 0, place=at)
                if number == 5 and rng.random() < 0.5:
                    self.look(service)

        return [
            the_same_dashboard_by_other_tools,
            pages_somebody_who_does_not_answer,
            the_same_graph_in_many_windows,
            flag_on_flag_off,
            a_failover_that_never_ends,
        ]

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def a_change_freeze_is_on() -> None:
            for _ in range(rng.randint(4, 8)):
                service = self.own()
                self.number += 1
                tool = rng.choice(["flag_set", "scale_set", "config_push", "restart"])
                said = rng.choice(
                    [
                        js(status="ok", applied=False, reason="change freeze until Monday"),
                        "rejected by policy FREEZE-7",
                        "202 accepted\nWARN: dropped by admission controller (freeze window)",
                    ]
                )
                args = js(service=service, value=self.number)
                self.run.call(tool, args, said, ok=rng.random() < 0.7, cause="freeze", place=self.place(service))
                self.look(self.own())

        def the_log_store_is_overloaded() -> None:
            for _ in range(rng.randint(4, 7)):
                service = self.own()
                self.number += 1
                said = rng.choice(
                    [
                        "504 query timed out after 60s",
                        js(error="too many outstanding requests"),
                        "upstream connect error (loki-read)",
                    ]
                )
                args: Args = {
                    "query": f'{{app="{service}"}} |= "{self.number}"',
                    "from": f"{self.hour:02d}:00",
                    "limit": self.number,
                }
                self.run.call("loki_query", args, said, ok=rng.random() < 0.5, cause="logs", place=self.place(service))
                if rng.random() < 0.8:
                    self.number += 1
                    values = " ".join(f"{rng.uniform(0, 90):.1f}" for _ in range(6))
                    where: Args = {"metric": rng.choice(METRICS), "service": service, "window": f"{self.number}m"}
                    self.run.call("metrics_range", where, values, place=self.place(service))

        def retries_with_growing_waits_in_vain() -> None:
            service, gap = self.own(), rng.uniform(3, 6)
            for number in range(rng.randint(6, 9)):
                said = rng.choice(["refused: quorum lost (1 of 3)", js(ok=False, error="no quorum"), "raft: no leader"])
                args = js(service=service, step=number)
                at = self.place(service)
                self.run.call("failover_start", args, said, ok=rng.random() < 0.6, cause="quorum", place=at, gap=gap)
                gap *= rng.uniform(1.2, 1.6)
                self.look(service)

        return [retries_with_growing_waits_in_vain, a_change_freeze_is_on, the_log_store_is_overloaded]

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if self.form == "nothing":
            return ()
        rng = self.rng

        def hunts_through_services_that_are_not_linked() -> None:
            for _ in range(rng.randint(12, 20)):
                self.look(rng.choice(self.outside))
                if rng.random() < 0.1:
                    self.step()

        def turns_knobs_of_others() -> None:
            for service in rng.sample(self.outside, rng.randint(4, 7)):
                if rng.random() < 0.5:
                    self.look(service)
                self.change(service)

        def mends_another_service_instead() -> None:
            service = rng.choice(self.outside)
            for _ in range(rng.randint(8, 16)):
                self.look(service) if rng.random() < 0.65 else self.change(service)

        return [hunts_through_services_that_are_not_linked, turns_knobs_of_others, mends_another_service_instead]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng, service = self.rng, self.own()
        at = self.place(service)

        def follows_the_dependencies() -> None:
            for name in self.inside:
                self.look(name)
                self.look(name)

        def checks_of_one_page_at_once() -> None:
            for number, metric in enumerate(METRICS[: rng.randint(4, 7)]):
                args: Args = {"metric": metric, "service": service, "window": f"{self.number}s"}
                self.run.call("metrics_range", args, f"{rng.uniform(0, 9):.3f}", place=at, beside=number > 0)

        def the_error_rate_falls() -> None:
            rate = rng.uniform(20, 40)
            for _ in range(rng.randint(5, 10)):
                rate *= rng.uniform(0.6, 0.9)
                said = f"{service}: 503 for {rate:.1f} % of requests"
                self.run.call(
                    "probe_run",
                    {"service": service},
                    said,
                    watch="probe",
                    moved=True,
                    place=at,
                    gap=rng.uniform(10, 50),
                )

        def restarts_after_three_refusals() -> None:
            for wait in (6, 18, 50)[: rng.randint(2, 3)]:
                args = js(service=service, force=False)
                self.run.call("restart", args, "refused: drain not finished", cause="drain", place=at, gap=wait)
            self.run.call("drain_finish", js(service=service), "drained", place=at, change=True)
            self.run.call(
                "restart", js(service=service, force=False), "restarted", place=at, change=True, clears="drain"
            )

        def the_shift_three_times() -> None:
            for _ in range(3):
                self.run.call("shift_who", {}, "agent, until 06:00")
            self.work(5)

        def rules_out_three_others() -> None:
            for name in rng.sample(self.outside, rng.randint(2, 4)):
                self.look(name)
            for _ in range(5):
                self.look(self.own())

        return [
            follows_the_dependencies,
            checks_of_one_page_at_once,
            the_error_rate_falls,
            restarts_after_three_refusals,
            the_shift_three_times,
            rules_out_three_others,
        ]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Incident, rng)
