"""Infrastructure as code: modules of cloud settings, changed by patches and planned by commands."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from tests.corpus.seen_more.trees import TreeScene
from tests.corpus.seen_more.world import Place, Shape, stories
from tests.corpus.trace import Trace

KIND = "infra_plans"


class Infra(TreeScene):
    """Environments and modules; a `source` line is a link."""

    parts: ClassVar[dict[str, list[str]]] = {
        "envs/prod": ["main", "dns", "queues", "backup"],
        "envs/staging": ["main", "dns", "queues", "backup"],
        "envs/dev": ["main", "dns", "queues"],
        "envs/legacy-eu": ["main", "vpn", "queues", "mail"],
        "teams/search": ["main", "alerts", "roles"],
    }
    shared: ClassVar[dict[str, list[str]]] = {"modules": ["network", "bucket", "role", "queue", "zone", "key"]}
    strays = (
        "README.md",
        "scripts/rotate.sh",
        "docs/oncall.md",
        ".github/CODEOWNERS",
        "docs/cost.md",
        "scripts/report.py",
    )
    words = (
        "subnet",
        "retention",
        "tags",
        "lifecycle",
        "ttl",
        "policy",
        "quota",
        "region",
        "kms",
        "versioning",
        "alias",
    )
    forms = ("path", "file", "glob", "folder", "words", "words", "red", "line", "everywhere", "nothing")

    def path(self, part: str, stem: str) -> str:
        """Files by folder."""
        return f"infra/{part}/{stem}.tf"

    def link_line(self, path: str, link: str) -> str:
        """A module's source or a file's output."""
        return f'source = "{"../" * path.count("/")}{link.removeprefix("infra/")}"'

    def body(self, path: str) -> list[str]:
        """Blocks."""
        rng = self.rng
        lines: list[str] = []
        for _ in range(rng.randint(2, 7)):
            word = rng.choice(self.words)
            lines += [
                f'resource "cloud_{word}" "r{rng.randint(1, 99)}" {{',
                f"  {rng.choice(self.words)} = {rng.randint(1, 400)}",
                "}",
            ]
        return lines

    def new_line(self, path: str, word: str) -> str:
        """An attribute."""
        return f"  {word} = {self.number}"

    def say_task(self) -> str:
        """The task in its form."""
        rng, name = self.rng, self.target.rsplit("/", 1)[-1]
        part = self.part.rsplit("/", 1)[-1]
        return {
            "path": f"{self.target}: bring it in line with what is running (drift report of today).",
            "file": f"In {part} the {name} still has the old provider syntax. Migrate it.",
            "glob": f"infra/{self.part}/*.tf: tags `owner` and `cost_center` everywhere",
            "folder": f"Split the state of infra/{self.part} in two without destroying anything.",
            "words": rng.choice(
                [f"{part} costs too much, look for what is oversized and shrink it", f"Add backups for {part}."]
            ),
            "red": f"`plan` of {part} fails in the pipeline.",
            "line": f"infra/{self.part}/{name} line {rng.randint(3, 12)}: deprecated attribute",
            "everywhere": "The provider was renamed from cloud to nimbus. Rename it in all environments and modules.",
            "nothing": "Have a look over the infrastructure code.",
        }[self.form]

    def do_read(self, path: str, fresh: bool | None, place: Place) -> None:
        """Read a file."""
        lines = self.text[path]
        if fresh is False and self.rng.random() < 0.6:
            command = self.rng.choice(
                [f"cat {path}", f"hcledit show {path}", f"nl -ba {path}", f"git show HEAD:{path}"]
            )
            self.run.call(
                "run_command", {"command": command, "workdir": "/w"}, "\n".join(lines), fresh=False, place=place
            )
            return
        shown = "\n".join(lines)
        self.run.call(
            "get_file_contents", {"path": path, "ref": "main"}, shown, fresh=fresh is None or fresh, place=place
        )

    def do_edit(self, path: str, before: str, after: str, fresh: bool, place: Place) -> None:
        """Apply a patch."""
        patch = f"*** Begin Patch\n*** Update File: {path}\n@@\n-{before}\n+{after}\n*** End Patch"
        if not before:
            patch = f"*** Begin Patch\n*** Add File: {path}\n+{after}\n*** End Patch"
        said = self.rng.choice(["Done!", f"Success. Updated the following files:\nM {path}"])
        self.run.call("apply_patch", {"input": patch}, said, fresh=fresh, change=True, place=place)

    def do_seek(self, query: str, hits: list[str], fresh: bool, place: Place) -> None:
        """Search."""
        where = "infra" if self.form in ("everywhere", "nothing") else f"infra/{self.part}"
        args = {"command": f"rg -n '{query}' {where}", "workdir": "/w"}
        self.run.call("run_command", args, "\n".join(hits) or "(exit status 1)", fresh=fresh, place=place)

    def do_check(self, red: list[str], fresh: bool, place: Place) -> None:
        """Plan."""
        lines = ["Refreshing state...", *(f"  # id={self.run.hexid()}" for _ in range(2))]
        where = self.named_by_check or self.target
        lines += [
            f'Error: Unsupported argument\n  on {where} line {len(word)}: "{word}" is not expected here.'
            for word in red
        ]
        lines += [f"Plan: {self.number % 7} to add, 1 to change, 0 to destroy."] if not red else []
        args = {"command": f"terraform -chdir=infra/{self.part} plan -no-color", "workdir": "/w"}
        self.run.call("run_command", args, "\n".join(lines), fresh=fresh, place=place, clears="state")

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def cmd(command: str, said: str, cause: str) -> None:
            args = {"command": command, "workdir": "/w"}
            self.run.call("run_command", args, said, ok=rng.random() < 0.5, cause=cause, place=self.here)

        def the_state_is_locked() -> None:
            lock = self.run.hexid()
            for _ in range(rng.randint(4, 8)):
                self.number += 1
                verb = rng.choice(
                    [
                        "plan",
                        "apply -auto-approve",
                        f"state mv a.r{self.number} b.r{self.number}",
                        "import",
                        "refresh",
                        "output",
                    ]
                )
                said = rng.choice(
                    [
                        f"Error: Error acquiring the state lock\n  ID: {lock}\n  Who: ci@runner-4",
                        f"Error locking state: ConditionalCheckFailedException (RequestID: {self.run.hexid(12)})",
                        "state snapshot is held by ci@runner-4, operation APPLY; nothing done",
                    ]
                )
                cmd(f"terraform -chdir=infra/{self.part} {verb}", said, "state")
                self.quiet()
            if rng.random() < 0.4:
                cmd2 = {"command": f"terraform -chdir=infra/{self.part} force-unlock -force {lock}", "workdir": "/w"}
                self.run.call("run_command", cmd2, "Terraform state has been successfully unlocked!", change=True)
                self.check()

        def the_session_token_has_expired() -> None:
            verbs = [
                "s3 ls",
                "iam list-roles",
                "sqs list-queues",
                "kms list-keys",
                "sts get-caller-identity",
                "route53 list-hosted-zones",
            ]
            for verb in rng.sample(verbs, rng.randint(4, 6)):
                said = rng.choice(
                    [
                        f"An error occurred (ExpiredToken) when calling {verb.split()[-1]}: token is expired",
                        f"<Error><Code>ExpiredToken</Code><RequestId>{self.run.hexid(16)}</RequestId></Error>",
                        "Unable to locate valid credentials: SSO session has expired. Run sso login.",
                    ]
                )
                cmd(f"cloud {verb} --profile {self.part.rsplit('/', 1)[-1]}", said, "token")
                if rng.random() < 0.8:
                    self.step()

        return [the_state_is_locked, the_session_token_has_expired]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""

        def workspace_thrice() -> None:
            for _ in range(3):
                self.run.call("run_command", {"command": "terraform workspace show", "workdir": "/w"}, "default")
            self.work(5)

        def an_apply_that_goes_on() -> None:
            for number in range(1, self.rng.randint(4, 9)):
                said = f"{number} of 9 resources created, {int(self.run.clock)}s elapsed"
                args = {"command": "tail -1 apply.log", "workdir": "/w"}
                self.run.call("run_command", args, said, watch="apply", moved=True, gap=self.rng.uniform(20, 60))

        def errors_of_one_kind_with_three_causes() -> None:
            for word in self.rng.sample(self.words, 3):
                for number in range(self.rng.randint(1, 2)):
                    args = {"command": f"terraform -chdir=infra/{self.part} import r.{word} {number}", "workdir": "/w"}
                    said = f"Error: AccessDenied: missing permission {word}:Describe (request {self.run.hexid()})"
                    self.run.call("run_command", args, said, ok=False, cause=word, place=self.here)
                args = {"command": f"grant {word}:Describe --to agent", "workdir": "/w"}
                self.run.call("run_command", args, "granted", change=True)
                args = {"command": f"terraform -chdir=infra/{self.part} import r.{word} x", "workdir": "/w"}
                self.run.call("run_command", args, f"Import of {word} successful!", clears=word, place=self.here)

        return [errors_of_one_kind_with_three_causes, *super().alikes(), workspace_thrice, an_apply_that_goes_on]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Infra, rng)
