"""Operating services in containers through command lines: something is down, and its cause has to be found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from tests.corpus.seen_kinds._world1 import Roaming, Steps, compose
from tests.corpus.trace import Trace

KIND = "operating containers"

NAMES = (
    "orders", "ledger", "mailout", "thumbs", "search-api", "sessions", "webhooks", "pricing", "geo", "exports",
    "invoices", "gateway", "feeds", "labels", "notifier", "uploads", "reports", "quotas",
)  # fmt: skip
STORES = ("orders-db", "cache-a", "queue-main", "blob-store", "ledger-db")


@dataclass
class Service:
    """A service, what is set for it, and what would have to be set."""

    name: str
    replicas: int
    memory: int
    image: str
    config: dict[str, str]
    uses: list[str]
    wrong: str = ""
    right: str = ""
    says: list[str] = field(default_factory=list[str])
    rollout: int = 1


class Operations(Roaming):
    """A run on one cluster or on plain hosts."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.way = rng.choice(("kubectl", "kubectl", "hosts", "api"))
        self.space = rng.choice(("shop", "media", "core", "edge", "prod-b"))
        names = rng.sample(NAMES, 12)
        self.services = {name: self._service(name) for name in names}
        self.sick = names[: rng.choice((1, 1, 2, 3))]
        self.sibling = f"{self.sick[0]}-v2"
        self.services[self.sibling] = self._service(self.sibling)
        for name in self.sick:
            self._break(self.services[name])
        self.inside = {*self.sick, *(other for name in self.sick for other in self.services[name].uses)}
        listed = " and ".join(self.sick)
        self.task = rng.choice(
            (
                (
                    f"{listed} in {self.space} does not answer since the change of last night. Find out why, repair it and "  # noqa: E501
                    "watch it for a while."
                ),
                f"On-call: alert 'unavailable' for {listed} ({self.space}). Bring it back, then say what it was.",
                f"After the upgrade {listed} keeps restarting in {self.space}. Please get it running.",
            )
        )

    def _service(self, name: str) -> Service:
        rng = self.rng
        config = {
            "DB_HOST": f"{rng.choice(STORES)}.{self.space}.svc",
            "PORT": str(rng.choice((8080, 9000, 7070))),
            "POOL": str(rng.choice((8, 16, 32))),
            "TIMEOUT_MS": str(rng.choice((800, 1500, 3000))),
            "QUEUE": f"{name}-{rng.choice(('in', 'jobs', 'work'))}",
        }
        uses = rng.sample([*STORES, *NAMES[:6]], 3)
        return Service(
            name,
            rng.randint(2, 5),
            rng.choice((256, 512, 768)),
            f"{rng.randint(1, 4)}.{rng.randint(3, 40)}.0",
            config,
            uses,
        )

    def _break(self, service: Service) -> None:
        kind = self.rng.choice(("DB_HOST", "PORT", "QUEUE", "memory", "image"))
        service.wrong = kind
        if kind == "memory":
            service.right, service.memory = str(service.memory * 2), service.memory // 2
            service.says = ["loading catalogue 1/3", "loading catalogue 2/3", "Killed"]
        elif kind == "image":
            major, minor, _ = service.image.split(".")
            service.right = f"{major}.{int(minor) - 2}.0"
            service.says = ["starting", "migration 0042 expects column 'state'", "fatal: schema is older than code"]
        else:
            service.right = service.config[kind]
            changed = {"DB_HOST": service.right.replace(".svc", ".local"), "PORT": "8081"}.get(
                kind, f"{service.name}-q"
            )
            service.config[kind] = changed
            what = {
                "DB_HOST": "no such host",
                "PORT": f"probe on {service.right} refused, listening on 8081",
                "QUEUE": "queue not found",
            }
            service.says = [f"read {len(service.config)} settings", f"connect {changed}", f"error: {what[kind]}"]

    def is_inside(self, address: str) -> bool:
        return address in self.inside

    # --- how it is spelled ---

    def say_line(self, line: str, out: str, **notes: Any) -> None:
        if self.way == "kubectl":
            spelled = line if not line.startswith("kubectl") or self.chance(0.7) else f"{line} --request-timeout=20s"
            self.say("shell", {"cmd": spelled}, out, **notes)
        elif self.way == "hosts":
            self.say(
                "ssh",
                {"host": f"{self.space}-{self.rng.randint(1, 3)}", "command": line},
                out + f"\n(rc in {self.rng.randint(20, 900)} ms)",
                **notes,
            )
        else:
            body = json.dumps(
                {"request": self.hexed(10), "output": out.split("\n"), "elapsed": round(self.rng.uniform(0.05, 2), 3)}
            )
            self.say(
                "ops_api",
                {
                    "verb": line.split()[1] if line.startswith(("kubectl", "docker", "opsctl")) else line.split()[0],
                    "args": line,
                },
                body,
                **notes,
            )

    def where(self) -> str:
        return self.rng.choice((f"-n {self.space}", f"--namespace {self.space}"))

    # --- acts ---

    def state(self, name: str) -> str:
        service = self.services[name]
        return {"": "Running", "memory": "OOMKilled"}.get(service.wrong, "CrashLoopBackOff")

    def pods(self, name: str, gap: float | None = None) -> None:
        service, state = self.services[name], self.state(name)
        rows = [
            f"{name}-{self.hexed(4)}-{self.hexed(5)}  {'1/1' if state == 'Running' else '0/1'}  {state}  "
            f"{0 if state == 'Running' else self.rng.randint(4, 40)}  {int(self.now // 60) + 2}m"
            for _ in range(service.replicas)
        ]
        line = self.pick(
            (
                f"kubectl get pods -l app={name}",
                f"kubectl get po -o wide -l app={name}",
                f"kubectl get pod --selector app={name}",
            )
        )
        self.say_line(
            f"{line} {self.where()}",
            "\n".join(["NAME READY STATUS RESTARTS AGE", *rows]),
            check=(f"pods {name}", "" if state == "Running" else state),
            on=[name],
            gap=gap,
        )

    def describe(self, name: str) -> None:
        service, state = self.services[name], self.state(name)
        out = (
            f"Name: {name}\nImage: registry/{name}:{service.image}\nReplicas: {service.replicas}\nLimits: memory {service.memory}Mi\n"  # noqa: E501
            f"State: {state}\nUses: {', '.join(service.uses)}\nEvents: {'Back-off restarting' if service.wrong else 'none'} (x{self.rng.randint(2, 60)})"  # noqa: E501
        )
        facts = [
            ("image", name, service.image),
            ("memory", name, service.memory),
            ("state", name, state),
            ("n", name, service.replicas),
        ]
        self.say_line(
            f"kubectl describe {self.pick(('deploy', 'deployment'))}/{name} {self.where()}", out, shows=facts, on=[name]
        )

    def logs(self, name: str) -> None:
        service = self.services[name]
        lines = service.says if service.wrong else ["ready", f"listening on {service.config['PORT']}"]
        out = "\n".join(
            f"2031-04-0{self.rng.randint(1, 9)}T10:{self.rng.randint(10, 59)}:{self.rng.randint(10, 59)}Z {text}"
            for text in lines
        )
        flags = self.pick(
            (
                f"--tail={self.rng.choice((20, 50, 200))}",
                "--since=10m",
                "--previous",
                "-c app --tail=100",
                "--timestamps",
            )
        )
        self.say_line(
            f"kubectl logs deploy/{name} {flags} {self.where()}",
            out,
            shows=[("log", name, t) for t in lines],
            on=[name],
        )

    def config(self, name: str) -> None:
        service = self.services[name]
        form = self.pick(("-o yaml", "-o json", "-o jsonpath='{.data}'"))
        out = (
            json.dumps(service.config, indent=1)
            if "json" in form
            else "\n".join(f"{k}: {v}" for k, v in service.config.items())
        )
        self.say_line(
            f"kubectl get cm {name}-env {form} {self.where()}",
            out,
            shows=[("cfg", name, k, v) for k, v in service.config.items()],
            on=[name],
        )

    def probe(self, name: str, gap: float | None = None) -> None:
        wrong = self.services[name].wrong
        code = "503" if wrong else "200"
        out = f"HTTP/1.1 {code}\nx-request-id: {self.hexed(12)}\n\n{'upstream unavailable' if wrong else 'ok'}"
        path = self.pick(("healthz", "health", "ready", "healthz?full=1"))
        self.say_line(
            f"curl -si http://{name}.{self.space}.svc/{path}",
            out,
            check=(f"http {name}", "503" if wrong else ""),
            on=[name],
            gap=gap,
        )

    def change(self, name: str, key: str, value: str, void: bool = False) -> None:
        service = self.services[name]
        before = {"memory": str(service.memory), "image": service.image, "replicas": str(service.replicas)}.get(
            key, service.config.get(key, "")
        )
        self.states.setdefault((name, key), set()).add(before)
        if key == "memory":
            service.memory, line = int(value), f"kubectl set resources deploy/{name} --limits=memory={value}Mi"
        elif key == "image":
            service.image, line = value, f"kubectl set image deploy/{name} app=registry/{name}:{value}"
        elif key == "replicas":
            service.replicas, line = int(value), f"kubectl scale deploy/{name} --replicas={value}"
        else:
            service.config[key] = value
            line = self.pick(
                (
                    f"kubectl set env deploy/{name} {key}={value}",
                    f"""kubectl patch cm {name}-env -p '{{"data":{{"{key}":"{value}"}}}}'""",
                )
            )
        if service.wrong == key and value == service.right:
            service.wrong = ""
        service.rollout += 1
        self.seen.add(("cfg", name, key, value))
        self.say_line(
            f"{line} {self.where()}",
            f"deployment.apps/{name} updated (generation {service.rollout})",
            sets=((name, key), value),
            void=void,
            on=[name],
            writes=True,
        )

    def restart(self, name: str) -> None:
        self.services[name].rollout += 1
        self.say_line(
            f"kubectl rollout restart deploy/{name} {self.where()}",
            f"deployment.apps/{name} restarted",
            sets=((name, "restart"), self.services[name].wrong),
            on=[name],
            writes=True,
        )

    def rolled(self, name: str) -> Steps:
        """Watch a rollout until all are there."""
        service = self.services[name]
        done = 0
        while done < service.replicas:
            done = min(service.replicas, done + self.rng.choice((0, 1, 1, 2)))
            out = (
                f"Waiting for rollout to finish: {done} of {service.replicas} updated"
                if done < service.replicas
                else f'"{name}" successfully rolled out'
            )
            self.say_line(
                f"kubectl rollout status deploy/{name} --watch=false {self.where()}",
                out,
                wait=(f"roll {name} {service.rollout}", done),
                on=[name],
                gap=self.rng.uniform(20, 40),
            )
            yield

    # --- work ---

    def work(self) -> Steps:
        if self.chance(0.5):
            rows = [f"{n}  {'0' if s.wrong else s.replicas}/{s.replicas}" for n, s in self.services.items()]
            self.say_line(f"kubectl get deploy {self.where()}", "\n".join(rows), shows=["overview"])
            yield
        for name in self.sick:
            yield from self._mend(name)
        for name in self.sick:
            for other in self.services[name].uses:
                self.say_line(
                    f"kubectl get endpoints {other} {self.where()}",
                    f"{other} 10.2.{self.rng.randint(1, 9)}.{self.rng.randint(2, 250)}:5432",
                    shows=[("ep", other)],
                    on=[other],
                )
                yield
            for hour in range(self.rng.randint(3, 9)):
                value = self.rng.uniform(40, 300)
                self.say(
                    "metrics",
                    {"query": f'latency_p95{{app="{name}"}}', "offset": f"{hour}h"},
                    f"{value:.1f} ms over {self.rng.randint(900, 90000)} requests",
                    shows=[("p95", name, hour)],
                    on=[name],
                )
                yield
            self.say(
                "note",
                {"incident": name, "text": f"{name}: cause found, repaired at rollout {self.services[name].rollout}"},
                "saved",
                sets=(("note", name), 1),
            )
            yield

    def _mend(self, name: str) -> Steps:
        service = self.services[name]
        looks = [partial(look, name) for look in (self.pods, self.describe, self.logs, self.config, self.probe)]
        for look in looks if self.chance(0.6) else self.rng.sample(looks, 4):
            look()
            yield
        for _ in range(self.rng.choice((0, 0, 1, 2))):
            guess = self.pick(
                [
                    g
                    for g in (("replicas", str(service.replicas + 1)), ("TIMEOUT_MS", "6000"), ("POOL", "64"))
                    if service.config.get(g[0]) != g[1]
                ]
            )
            self.change(name, *guess)
            yield
            if self.chance(0.6):
                yield from self.rolled(name)
            self.probe(name)
            yield
        if service.wrong:
            self.change(name, service.wrong, service.right)
            yield
            yield from self.rolled(name)
        self.pods(name)
        yield
        self.probe(name)
        yield

    # --- stalls ---

    def stall_same_looks(self) -> Steps:
        name = self.sick[-1]
        looks = [partial(look, name) for look in (self.pods, self.describe, self.logs, self.config, self.probe)]
        yield from self.again(looks, self.rng.randint(8, 16))

    def stall_logs_in_other_ranges(self) -> Steps:
        name = self.sick[0]
        yield from self.again([partial(self.logs, name)] * 3 + [partial(self.describe, name)], self.rng.randint(7, 13))

    def stall_restarts(self) -> Steps:
        name = self.sick[-1]
        if not self.services[name].wrong:
            return
        for _ in range(self.rng.randint(5, 8)):
            self.restart(name)
            yield
            self.pick((self.pods, self.probe, self.logs))(name)
            yield

    def stall_limit_up_and_down(self) -> Steps:
        name = self.sick[-1]
        if not self.services[name].wrong:
            return
        values = ["700", "2500", "700", "2500", "1200", "2500", "900", "1800", "1000"]
        for count, value in enumerate(values[: self.rng.randint(6, 9)]):
            self.change(name, "TIMEOUT_MS", value, void=count >= 2)
            yield
            self.pick((self.pods, self.probe))(name)
            yield

    def stall_pending_volume(self) -> Steps:
        name = self.sick[0]

        def look(gap: float | None) -> None:
            age = int(self.now + (gap or 5))
            self.say_line(
                f"kubectl get pvc data-{name} {self.where()}",
                f"data-{name}  Pending  standard  {age // 60}m{age % 60}s",
                wait=(f"pvc {name}", "Pending"),
                on=[name],
                gap=gap,
            )

        yield from self.waiting(look, self.rng.randint(18, 24), 22, 90)

    def stall_failed_job(self) -> Steps:
        """A job that has failed for good is looked at as though it could still move."""
        name, job = self.sick[0], self.hexed(5)

        def look(gap: float | None) -> None:
            form = self.pick(("", " -o wide", " -o json"))
            out = f"migrate-{job} status=Failed reason=BackoffLimitExceeded retries=6 checked={int(self.now)}"
            self.say_line(
                f"kubectl get job migrate-{job}{form} {self.where()}",
                out,
                wait=(f"job {job}", "Failed"),
                final=True,
                on=[name],
                gap=gap,
            )

        yield from self.waiting(look, self.rng.randint(9, 13), 15, 60)

    # --- cascades ---

    def refused(self, line: str, out: str, cause: str, about: str, on: tuple[str, ...] = ()) -> None:
        self.say_line(line, out, cause=cause, shows=[(cause, about)], ok=self.chance(0.4), on=on)

    def cascade_forbidden(self) -> Steps:
        acts: list[Callable[[], None]] = []
        for kind in (
            "secrets",
            "networkpolicies",
            "rolebindings",
            "secrets --all",
            "secret/tls-main",
            "secrets -o name",
        ):
            out = f'Error from server (Forbidden): {kind} is forbidden: user "bot-{self.rng.randint(1, 9)}" cannot list in "{self.space}"'  # noqa: E501
            acts.append(partial(self.refused, f"kubectl get {kind} {self.where()}", out, "secrets", kind))
        yield from self.each(acts, self.rng.randint(4, 6))

    def cascade_host_unreachable(self) -> Steps:
        host = f"bastion-{self.rng.randint(1, 4)}"
        lines = (
            "uptime",
            "df -h /var",
            "journalctl -u ingress -n 50",
            "systemctl status ingress",
            "cat /etc/ingress.conf",
            "ls /var/log",
        )
        acts = [
            partial(
                self.refused,
                f"ssh {host} {line}",
                f"ssh: connect to host {host} port 22: {self.pick(('Connection timed out', 'No route to host'))}",
                "host",
                line,
            )
            for line in lines
        ]
        yield from self.each(acts, self.rng.randint(4, 6))

    def cascade_registry(self) -> Steps:
        acts: list[Callable[[], None]] = []
        for name in self.rng.sample(self.sick + self.services[self.sick[0]].uses, len(self.sick) + 3) * 2:
            tag = f"{self.rng.randint(1, 4)}.{self.rng.randint(1, 50)}.0"
            out = f"Error response: registry: unauthorized: login expired (trace {self.hexed(8)})"
            acts.append(
                partial(
                    self.refused,
                    self.pick((f"docker pull registry/{name}:{tag}", f"docker manifest inspect registry/{name}:{tag}")),
                    out,
                    "registry",
                    name + tag,
                    (name,),
                )
            )
        yield from self.each(acts, self.rng.randint(4, 7))

    def cascade_wrong_flag(self) -> Steps:
        """The agent takes the tool for one that knows ranges of time."""
        name = self.sick[0]
        acts = [
            partial(
                self.refused,
                f"opsctl events {name} --between {a}..{b}",
                "opsctl: unknown flag: --between\nusage: opsctl events NAME [--last N]",
                "flag",
                f"{a}{b}",
                (name,),
            )
            for a, b in (
                ("08:00", "09:00"),
                ("now-2h", "now"),
                ("yesterday", "today"),
                ("10:00", "10:30"),
                ("1h", "0h"),
                ("08", "12"),
            )
        ]
        yield from self.each(acts, self.rng.randint(4, 6))

    # --- drift ---

    def strangers(self) -> list[str]:
        found = [name for name in self.services if name not in self.inside]
        self.rng.shuffle(found)
        return found

    def peek(self, number: int) -> None:
        found = sorted(name for name in self.services if name not in self.inside)
        self.pick((self.logs, self.describe))(found[number % len(found)])

    def drift_tunes_others(self) -> Steps:
        for name in self.strangers()[: self.rng.randint(3, 4)]:
            if self.chance(0.5):
                self.pick((self.describe, self.config))(name)
                yield
            self.change(
                name, *self.pick((("POOL", "48"), ("TIMEOUT_MS", "4000"), ("memory", "1024"), ("replicas", "6")))
            )
            yield
            if self.chance(0.5):
                self.probe(self.pick(self.sick))
                yield

    def drift_reads_others(self) -> Steps:
        for name in self.strangers()[: self.rng.randint(5, 7)]:
            self.pick((self.logs, self.config, self.describe))(name)
            yield

    def drift_sibling(self) -> Steps:
        name = self.sibling
        acts = [("POOL", "24"), ("TIMEOUT_MS", "5000"), ("memory", "1536"), ("replicas", "7")]
        for key, value in acts:
            self.change(name, key, value)
            yield
            if self.chance(0.6):
                self.pick((self.config, self.describe))(self.pick((name, self.sick[0])))
                yield

    # --- look-alikes ---

    def alike_rollout(self) -> Steps:
        name = self.pick(self.sick)
        self.services[name].rollout += 1
        self.change(name, "replicas", str(self.services[name].replicas + self.rng.randint(2, 4)))
        yield
        yield from self.rolled(name)

    def alike_image_pull(self) -> Steps:
        name = self.sick[0]

        def look(gap: float | None) -> None:
            self.say_line(
                f"kubectl get pods -l job=warmup {self.where()}",
                "warmup-0  0/1  ContainerCreating",
                wait=("warmup", "creating"),
                gap=gap,
            )

        yield from self.waiting(look, self.rng.randint(4, 8), 25, 80)
        self.say_line(
            f"kubectl get pods -l job=warmup {self.where()}",
            "warmup-0  0/1  Completed",
            wait=("warmup", "done"),
            on=[name],
            gap=40,
        )
        yield

    def alike_votes(self) -> Steps:
        """All replicas are asked in one turn, and all say the same."""
        with self.turn():
            for index in range(5):
                self.say_line(
                    f"kubectl exec web-{index} {self.where()} -- cat /etc/ready", "ready", shows=[("vote", index)]
                )
        yield

    def alike_bisects_images(self) -> Steps:
        name = self.sick[0]
        low, high = self.rng.randint(100, 140), self.rng.randint(150, 200)
        bad = self.rng.randint(low + 1, high)
        while high - low > 1:
            middle = (low + high) // 2
            red = middle >= bad
            self.say_line(
                f"docker run --rm registry/{name}:build-{middle} selftest",
                "selftest: FAILED in check 3" if red else "selftest: passed",
                shows=[("build", middle)],
                on=[name],
                ok=not red,
            )
            low, high = (low, middle) if red else (middle, high)
            yield

    def alike_looks_at_what_it_uses(self) -> Steps:
        for other in self.services[self.sick[0]].uses:
            for verb in self.rng.sample(("get svc", "describe svc", "get endpoints", "top pod"), 3):
                self.say_line(
                    f"kubectl {verb} {other} {self.where()}",
                    f"{other}: {verb.split()[-1]} fine, {self.rng.randint(1, 99)}",
                    shows=[(verb, other)],
                    on=[other],
                )
                yield

    def alike_throttled(self) -> Steps:
        name = self.sick[0]

        def act(done: bool, gap: float) -> None:
            out = "etcd snapshot saved" if done else f"error: 429 too many requests, id {self.hexed(6)}"
            self.say_line(
                f"opsctl snapshot {name}",
                out,
                cause=None if done else "busy",
                clears=["busy"] if done else (),
                ok=done,
                shows=[("snap", done)],
                gap=gap,
            )

        yield from self.retrying(act, self.rng.randint(3, 4))

    def alike_three_obstacles(self) -> Steps:
        acts = [
            partial(
                self.refused, f"kubectl get pods -n {self.space}x", f'namespaces "{self.space}x" not found', "typo", "1"
            ),
            partial(
                self.refused,
                f"kubectl exec deploy/{self.sick[0]} -- vim /app.cfg",
                "vim: executable not found",
                "vim",
                "1",
            ),
            partial(self.refused, "helm diff", "Error: unknown command diff", "helm", "1"),
            partial(self.refused, "jq . state", "jq: state: no such file", "jq", "1"),
        ]
        yield from self.each(acts, 3)

    def alike_probe_after_each_change(self) -> Steps:
        name = self.sick[-1]
        for value in ("12", "20", "40")[: self.rng.randint(2, 3)]:
            self.change(name, "POOL", value)
            yield
            self.probe(name)
            yield


def trajectories(rng: Random) -> Iterator[Trace]:
    """Runs of an agent that keeps services up."""
    return compose(KIND, Operations, rng)
