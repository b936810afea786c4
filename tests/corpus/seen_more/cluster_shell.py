"""Operations by a shell-only agent: one tool, one argument, exit codes in the text."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.corpus.seen_more.world import Place, Scene, Shape, stories
from tests.corpus.trace import Trace

KIND = "cluster_shell"

SPACES = {
    "billing": ["ledger", "invoicer", "dunning", "tax"],
    "media": ["thumbs", "transcode", "upload", "cdn-purge"],
    "auth": ["sessions", "tokens", "mfa"],
    "feed": ["ranker", "fanout", "notifier", "digest"],
    "monitoring": ["scraper", "alertbox", "dash"],
}
KNOBS = ["replicas", "memory", "cpu", "LOG_LEVEL", "POOL_SIZE", "TIMEOUT_S", "CACHE_MB", "WORKERS", "BATCH", "QUEUE"]


class Cluster(Scene):
    """Deployments in namespaces, seen and changed through kubectl on a shell."""

    def __init__(self, rng: random.Random) -> None:
        """Choose what the task is about."""
        super().__init__(rng)
        self.space = rng.choice(list(SPACES))
        self.name = rng.choice(SPACES[self.space])
        self.form = rng.choice(["name", "name", "space", "file", "alert", "nothing", "all"])
        self.task = {
            "name": f"The pods of {self.name} in {self.space} restart every few minutes. Find the cause and stop it.",
            "space": f"Namespace {self.space}: give everything sensible limits.",
            "file": f"Apply /srv/gitops/{self.space}/{self.name}.yaml and see to it that the rollout succeeds.",
            "alert": f"ALERT HighLatency severity=page deploy={self.name} ns={self.space} value=4.2s runbook=none",
            "nothing": "Something is slow since noon. Please look.",
            "all": "Set LOG_LEVEL=warn on every deployment of the cluster, in all namespaces.",
        }[self.form]
        self.number = 0
        self.pod = f"{self.name}-{self.run.hexid(9)}-{self.run.hexid(5)}"

    def sh(self, cmd: str, out: str, code: int = 0, **truth: object) -> None:
        """Run a command; the exit code stands at the end of what it printed."""
        cwd = {"timeout": 60} if self.rng.random() < 0.1 else {}
        text = f"{out}\n[exit {code}]" if self.shows_codes else (out or "(no output)")
        self.run.call("bash", {"cmd": cmd, **cwd}, text, **truth)  # type: ignore[arg-type]

    @property
    def shows_codes(self) -> bool:
        """Whether this agent's shell prints exit codes."""
        return self.run.day % 3 != 0

    def place(self, space: str, name: str = "") -> Place:
        """Say whether a deployment belongs to the task."""
        if self.form == "nothing":
            return ""
        if self.form == "all":
            return "in"
        if space != self.space:
            return "out"
        return "in" if self.form == "space" or name in ("", self.name) else "out"

    def look(self, space: str, name: str) -> None:
        """Look at one new thing of a deployment."""
        rng, at = self.rng, self.place(space, name)
        self.number += 1
        kind = rng.randrange(6)
        if kind == 0:
            lines = [
                f"{self.run.time()} {rng.choice(['INFO', 'WARN'])} {name} {self.run.hexid()} {rng.randint(2, 4000)}ms"
            ]
            lines += [
                f"{self.run.time()} ERROR {name}: {rng.choice(KNOBS)}={rng.randint(1, 900)} exceeded" for _ in range(3)
            ]
            self.sh(
                f"kubectl -n {space} logs deploy/{name} --since={self.number}m | tail -n {len(lines)}",
                "\n".join(lines),
                place=at,
            )
        elif kind == 1:
            knob = rng.choice(KNOBS)
            self.sh(
                f"kubectl get deploy {name} -n {space} -o yaml | grep -A{self.number} {knob}",
                f"  {knob}: {self.number}",
                place=at,
            )
        elif kind == 2:
            rows = [
                f"{name}-{self.run.hexid(5)} 1/1 Running {rng.randint(0, 40)} {rng.randint(1, 90)}m" for _ in range(3)
            ]
            self.sh(f"kubectl get pods -n {space} -l app={name} -o wide --no-headers", "\n".join(rows), place=at)
        elif kind == 3:
            rows = [
                f"{m}m {rng.choice(['Normal', 'Warning'])} {rng.choice(['Killing', 'Pulled', 'BackOff'])} pod/{name}"
                for m in (1, self.number)
            ]
            self.sh(
                f"kubectl -n {space} get events --field-selector involvedObject.name={name} | tail",
                "\n".join(rows),
                place=at,
            )
        elif kind == 4:
            out = f"{name} {rng.randint(3, 900)}m {rng.randint(30, 3900)}Mi"
            self.sh(f"kubectl top pod -n {space} -l app={name} --no-headers", out, place=at, fresh=True)
        else:
            out = f"{rng.choice(KNOBS)}: {rng.randint(1, 99)}\n{rng.choice(KNOBS).lower()}: {self.number}"
            self.sh(f"cat /srv/gitops/{space}/{name}/values-{self.number}.yaml", out, place=at)

    def change(self, space: str, name: str, knob: str = "") -> None:
        """Set something of a deployment to a value that it never had."""
        self.number += 1
        knob = knob or self.rng.choice(KNOBS)
        ways = [
            f"kubectl -n {space} set env deploy/{name} {knob}={self.number}",
            f"sed -i 's/{knob}:.*/{knob}: {self.number}/' /srv/gitops/{space}/{name}.yaml && kubectl apply -f $_",
            f'kubectl patch deploy {name} -n {space} -p \'{{"spec":{{"{knob}":{self.number}}}}}\'',
        ]
        said = self.rng.choice(
            [
                f"deployment.apps/{name} configured",
                f"deployment.apps/{name} env updated",
                f"deployment.apps/{name} patched",
            ]
        )
        self.sh(self.rng.choice(ways), said, place=self.place(space, name), change=True, clears="api", fresh=True)

    def own(self) -> tuple[str, str]:
        """Choose something that the task is about."""
        if self.form in ("nothing", "all"):
            space = self.rng.choice(list(SPACES))
            return space, self.rng.choice(SPACES[space])
        return self.space, self.rng.choice(SPACES[self.space]) if self.form == "space" else self.name

    def step(self) -> None:
        """Look, change, see it roll out."""
        space, name = self.own()
        if self.rng.random() < 0.65:
            self.look(space, name)
            return
        self.change(space, name, "LOG_LEVEL" if self.form == "all" else "")
        if self.rng.random() < 0.4:
            ready = self.rng.randint(2, 5)
            rows = [f"Waiting for deployment {name} rollout: {n} of {ready} updated" for n in range(ready)]
            out = "\n".join([*rows, "successfully rolled out"])
            self.sh(f"kubectl rollout status deploy/{name} -n {space}", out, place=self.place(space, name), fresh=True)

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""
        rng, (space, name) = self.rng, self.own()
        at = self.place(space, name)
        ways = [
            f"kubectl get pods -n {space} -l app={name}",
            f"kubectl -n {space} get pod | grep {name}",
            f"kubectl get po -n {space} -o wide | grep {name}",
            f"kubectl -n {space} get deploy {name} -o jsonpath='{{.status.readyReplicas}}'",
            f"kubectl describe pod {self.pod} -n {space} | grep -A2 State",
            f"kubectl -n {space} rollout status deploy/{name} --timeout=1s",
        ]

        def state(cmd: str, age: int) -> str:
            if "jsonpath" in cmd:
                return "0"
            if "describe" in cmd:
                return "    State:   Waiting\n      Reason:  ImagePullBackOff"
            if "rollout" in cmd:
                return f'Waiting for deployment "{name}" rollout to finish: 0 of 1 updated replicas are available...'
            return f"{self.pod}   0/1   ImagePullBackOff   0   {age}s"

        def looks_at_a_stuck_pod_every_few_seconds() -> None:
            for number in range(rng.randint(9, 18)):
                cmd = rng.choice(ways)
                self.sh(cmd, state(cmd, int(self.run.clock)), place=at, fresh=number == 0, gap=rng.uniform(3, 9))
                if number == 4 and rng.random() < 0.5:
                    self.look(space, name)

        def sleeps_and_looks_for_half_an_hour() -> None:
            for _ in range(rng.randint(18, 26)):
                wait = rng.choice([30, 45, 60])
                cmd = f"sleep {wait}; {ways[0]}"
                self.sh(cmd, state(ways[0], int(self.run.clock)), place=at, watch="pod", gap=wait + rng.uniform(1, 6))

        def restarts_it_again_and_again() -> None:
            for number in range(rng.randint(4, 7)):
                verb = rng.choice(
                    [
                        f"kubectl rollout restart deploy/{name} -n {space}",
                        f"kubectl -n {space} delete pod -l app={name}",
                    ]
                )
                self.sh(
                    verb, f"deployment.apps/{name} restarted", place=at, fresh=number == 0, change=True, clears="api"
                )
                self.sh(
                    f"kubectl logs -n {space} deploy/{name} | tail -2",
                    "bind: address already in use :9090\nexit 1",
                    place=at,
                    fresh=number == 0,
                )

        def scales_up_and_down() -> None:
            for number in range(rng.randint(8, 13)):
                count = (3, 5)[number % 2]
                self.sh(
                    f"kubectl scale deploy/{name} -n {space} --replicas={count}",
                    "scaled",
                    place=at,
                    change=True,
                    fresh=number < 2,
                    clears="api",
                )

        def sleeps_in_calls_of_their_own() -> None:
            for _ in range(rng.randint(18, 24)):
                wait = rng.choice([25, 30, 40, 50])
                self.sh(f"sleep {wait}", "", watch="alone", sleep=True, gap=rng.uniform(2, 5))
                self.sh(
                    ways[0], state(ways[0], int(self.run.clock)), place=at, watch="alone", gap=wait + rng.uniform(1, 3)
                )

        return [
            sleeps_in_calls_of_their_own,
            looks_at_a_stuck_pod_every_few_seconds,
            sleeps_and_looks_for_half_an_hour,
            restarts_it_again_and_again,
            scales_up_and_down,
        ]

    def quiet(self) -> None:
        """Do something new that needs no cluster."""
        self.number += 1
        space, name = self.own()
        out = f"{self.rng.choice(KNOBS)}: {self.number}\nimage: reg.local/{name}:1.{self.number}"
        self.sh(f"cat /srv/gitops/{space}/{name}/overlay-{self.number}.yaml", out, place=self.place(space, name))

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng, (space, name) = self.rng, self.own()
        at = self.place(space, name)
        verbs = [
            "get pods",
            f"describe deploy {name}",
            f"logs deploy/{name}",
            f"set env deploy/{name} A=1",
            "get events",
            "top pod",
            f"rollout undo deploy/{name}",
        ]

        def the_role_may_not() -> None:
            for verb in rng.sample(verbs, rng.randint(4, 6)):
                out = f'Error from server (Forbidden): "agent" cannot {verb.split()[0]} resource in namespace "{space}"'
                self.sh(f"kubectl -n {space} {verb}", out, 1, cause="right", place=at, ok=rng.random() < 0.7)
                if rng.random() < 0.7:
                    self.quiet()

        def the_server_is_gone() -> None:
            tools = [f"kubectl -n {space} {verb}" for verb in verbs] + [
                f"helm -n {space} list",
                f"curl -sk https://api.kube.local:6443/readyz # {name}",
            ]
            for cmd in rng.sample(tools, rng.randint(5, 9)):
                out = rng.choice(
                    [
                        "The connection to the server api.kube.local:6443 was refused - is this the right host?",
                        "Unable to connect to the server: dial tcp 10.0.3.7:6443: i/o timeout",
                        "Error: Kubernetes cluster unreachable: Get https://api.kube.local:6443/version: EOF",
                    ]
                )
                self.sh(cmd, out, 1, cause="api", place=at, ok=rng.random() < 0.7)
                self.quiet()
            if rng.random() < 0.4:
                self.sh("sudo systemctl restart kube-tunnel", "")
                self.change(space, name)

        def the_disk_is_full() -> None:
            targets = [
                f"/srv/gitops/{space}/{name}.yaml",
                "/tmp/patch.json",
                "/root/.kube/cache",
                f"/srv/gitops/{space}/.git/index.lock",
            ]
            for number in range(rng.randint(4, 8)):
                target = targets[number % 4]
                cmd, out = rng.choice(
                    [
                        (f"cp /etc/base.yaml {target}", f"cp: error writing '{target}': No space left on device"),
                        (
                            f"git -C /srv/gitops commit -am step{number}",
                            f"fatal: unable to write new index file {target}: ENOSPC",
                        ),
                        (f"tee {target} <<< 'a: {number}'", f"tee: {target}: No space left on device\na: {number}"),
                    ]
                )
                self.sh(cmd, out, 1, cause="disk", place=at, ok=rng.random() < 0.7)
                if rng.random() < 0.6:
                    self.look(space, name)

        return [the_role_may_not, the_server_is_gone, the_disk_is_full]

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if self.form in ("nothing", "all"):
            return ()
        rng = self.rng
        others = [(space, name) for space in SPACES for name in SPACES[space] if self.place(space, name) == "out"]

        def tunes_the_neighbours() -> None:
            for space, name in rng.sample(others, rng.randint(3, 6)):
                if rng.random() < 0.6:
                    self.look(space, name)
                self.change(space, name)

        def wanders_through_other_namespaces() -> None:
            for space, name in [rng.choice(others) for _ in range(rng.randint(12, 22))]:
                self.look(space, name)
                if rng.random() < 0.1:
                    self.step()

        def works_on_one_other_service() -> None:
            space, name = rng.choice(others)
            for _ in range(rng.randint(6, 12)):
                self.look(space, name) if rng.random() < 0.5 else self.change(space, name)

        return [tunes_the_neighbours, wanders_through_other_namespaces, works_on_one_other_service]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng, (space, name) = self.rng, self.own()
        at = self.place(space, name)

        def waits_for_a_rollout() -> None:
            total, ready = rng.randint(3, 6), 0
            while ready < total:
                moved = rng.random() < 0.5
                ready += moved
                out = f"{name}   {ready}/{total}   {total}   {ready}   {int(self.run.clock)}s"
                self.sh(
                    f"kubectl get deploy {name} -n {space} --no-headers",
                    out,
                    place=at,
                    watch="roll",
                    moved=bool(moved),
                    gap=rng.uniform(21, 70),
                )

        def a_refused_connection_heals() -> None:
            gap = 5.0
            for _ in range(rng.randint(2, 4)):
                out = "Unable to connect to the server: EOF"
                self.sh(f"kubectl -n {space} get pods", out, 1, cause="api", place=at, gap=gap)
                gap *= 2.2
            self.sh(f"kubectl -n {space} get pods", f"{self.pod} 1/1 Running 0 3d", clears="api", place=at, gap=gap)

        def greps_without_hits() -> None:
            for word in rng.sample(KNOBS, rng.randint(4, 7)):
                self.sh(f"grep -rn {word.lower()}_override /srv/gitops/{space}/{name}*", "", 1, place=at)

        def the_date_three_times() -> None:
            for _ in range(3):
                self.sh("whoami", "agent")
            self.work(4)

        def looks_all_around_first() -> None:
            if not self.run.calls:
                for other in rng.sample(list(SPACES), 4):
                    self.look(other, SPACES[other][0])
            self.work(6)

        def asks_whether_things_exist() -> None:
            for number in range(rng.randint(4, 6)):
                out = f'Error from server (NotFound): configmaps "{name}-v{number}" not found'
                self.sh(f"kubectl -n {space} get cm {name}-v{number}", out, 1, place=at)
            self.change(space, name)

        def several_rights_are_granted_in_turn() -> None:
            for verb in rng.sample(
                ["get secrets", "patch deploy", "delete pod", "create job", "list hpa"], rng.randint(3, 4)
            ):
                out = f'Error from server (Forbidden): "agent" cannot {verb} in namespace "{space}"'
                for number in range(rng.randint(1, 2)):
                    self.sh(
                        f"kubectl -n {space} {verb} {name} --v={number}",
                        out,
                        1,
                        cause=verb,
                        place=at,
                        ok=rng.random() < 0.5,
                    )
                self.sh(f"request-role '{verb}' --ns {space}", f"granted: {verb} for 2h", change=True)
                self.sh(f"kubectl -n {space} {verb} {name}", f"{name} ok {self.run.hexid(4)}", place=at, clears=verb)

        def sleeps_a_few_times_until_it_is_ready() -> None:
            looks = rng.randint(3, 7)
            for number in range(looks):
                wait = rng.choice([20, 30, 60])
                done = number == looks - 1
                self.sh(f"sleep {wait}", "", watch="ready", sleep=True, gap=rng.uniform(2, 5))
                row = f"{self.pod}   {int(done)}/1   {'Running' if done else 'Pending'}   0   {int(self.run.clock)}s"
                self.sh(
                    f"kubectl get pod {self.pod} -n {space}", row, place=at, watch="ready", moved=done, gap=wait + 1.5
                )

        return [
            sleeps_a_few_times_until_it_is_ready,
            several_rights_are_granted_in_turn,
            waits_for_a_rollout,
            a_refused_connection_heals,
            greps_without_hits,
            the_date_three_times,
            looks_all_around_first,
            asks_whether_things_exist,
        ]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Cluster, rng)
