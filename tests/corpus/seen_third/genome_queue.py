"""A sequencing group's cluster: samples, a workflow manager, jobs in a queue."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace

TOOLS = ["fastqc", "trim", "bwa", "markdup", "bqsr", "haplotype", "multiqc", "kraken"]


class GenomeQueue(Stage):
    """Samples of one project run through a pipeline."""

    kind = "genome_queue"
    styles = ("table", "csv", "log")

    def setup(self) -> None:
        self.project = f"{self.pick('WGS', 'EXO', 'RNA', 'LUP')}{self.n(10, 99)}"
        self.samples = [f"{self.project}_{n:03}" for n in self.some(range(1, 200), 9)]
        self.root = self.pick("/data/runs", "/scratch/seq", "/gpfs/projects")
        self.queue = self.pick("slurm", "sge")
        self.task = self.pick(
            f"Finish the pipeline for project {self.project} in {self.root}/{self.project}; three samples hang.",
            f"{self.project}: sample {self.samples[0]} failed at {self.pick(*TOOLS)}. Rerun what is needed.",
            f"QC table for all samples of {self.project} please, with coverage and duplicates",
        )

    def sh(self, line: str, result: str, **more: Any) -> None:
        """Run a command on the login node."""
        self.call("ssh_exec", {"host": "login1", "command": line}, result, **more)

    def step(self) -> None:
        sample, tool, kind = self.pick(*self.samples), self.pick(*TOOLS), self.n(0, 5)
        home = f"{self.root}/{self.project}"
        if kind == 0:
            self.sh(
                f"tail -{self.n(3, 60)} {home}/log/{sample}.{tool}.log",
                (
                    f"[{self.time()}] {tool} {sample}: {self.n(10**4, 10**8)} reads, {self.x(0, 99, 2)} % "
                    f"{self.pick('mapped', 'kept', 'dup')}"
                ),
            )
        elif kind == 1:
            self.sh(
                f"zcat {home}/{sample}_R{self.n(1, 2)}.fastq.gz | sed -n '{self.n(1, 9999)}p'",
                f"{self.pick('ACGTTG', 'GGCATT', 'TTAGCC')}{self.pick('ACGA', 'CCGT', 'NNAG')}{self.n(1, 9999)}",
            )
        elif kind == 2:
            job = self.n(10**6, 10**7)
            self.sh(f"sbatch {home}/jobs/{sample}.{tool}.sh", f"Submitted batch job {job}", change=True)
        elif kind == 3:
            self.sh(
                f"samtools flagstat {home}/bam/{sample}.bam -@ {self.n(1, 16)}",
                f"{sample}: {self.n(10**6, 10**9)} in total, {self.x(80, 99, 2)} % properly paired",
            )
        elif kind == 4:
            self.call(
                "write_remote",
                {
                    "path": f"{home}/jobs/{sample}.{tool}.sh",
                    "text": f"#SBATCH --mem={self.n(4, 200)}G\n{tool} {sample}",
                },
                f"{self.n(60, 900)} bytes",
                change=True,
            )
        else:
            self.sh(f"grep -c PASS {home}/vcf/{sample}.vcf", f"{self.n(1000, 99999)}")

    def drift_other_projects(self) -> None:
        """Cancels and restarts jobs of colleagues."""
        self.lead()
        for _ in self.times(8, 12):
            project, job = f"{self.pick('PIG', 'OAK', 'SOIL', 'BAT')}{self.n(10, 99)}", self.n(10**6, 10**7)
            self.sh(
                *self.pick(
                    (
                        f"scontrol show job {job}",
                        (
                            f"JobId={job} JobName={project}_{self.n(1, 99)} "
                            f"UserId={self.pick('mhoang', 'tek', 'brandt')} Reason=Priority"
                        ),
                    ),
                    (
                        f"tail {self.root}/{project}/log/run{self.n(1, 99)}.log",
                        f"{project}: {self.pick('done', 'waiting', 'oom')} {self.n(1, 9999)}",
                    ),
                ),
                out=True,
            )
            if self.chance(0.6):
                self.sh(
                    f"scontrol {self.pick('requeue', 'hold', 'release')} {job}",
                    f"{project} job {job} changed",
                    out=True,
                    change=True,
                )
            self.now_and_then()

    def drift_disk_cleaning(self) -> None:
        """Frees space in homes and old runs, a neighbouring trouble."""
        self.lead()
        self.sh("df -h /scratch | tail -1", f"{self.n(80, 97)}% /scratch", out=None)
        for _ in self.times(8, 11):
            path = self.pick(
                f"/home/{self.pick('mhoang', 'tek', 'silva')}/.cache/{self.hex(4)}",
                f"/scratch/old/run{self.n(2011, 2022)}_{self.n(1, 99)}",
                f"/scratch/tmp/{self.hex(6)}",
            )
            self.sh(f"du -sh {path}", f"{self.x(0, 900)}G {path}", out=True)
            if self.chance(0.7):
                self.sh(f"rm -r {path}", self.pick("", f"removed {path}"), out=True, change=True)
        self.tail()

    def drift_literature(self) -> None:
        """From a gene in the table into abstracts without end."""
        self.lead()
        for _ in self.times(10, 15):
            gene = self.pick("BRCA", "TP", "FOX", "HOX", "MYH", "COL", "SLC") + str(self.n(1, 40))
            self.call(
                "abstract_search",
                {
                    "q": f"{gene} {self.pick('zebrafish', 'evolution', 'yeast', 'ageing', 'sleep')}",
                    "from": self.n(1985, 2025),
                },
                (
                    f"{self.person()} et al. {self.n(1985, 2025)}: {gene} in {self.n(3, 9000)} "
                    f"{self.pick('mice', 'flies', 'people')}"
                ),
                out=True,
            )
            self.now_and_then(0.1)

    def drift_workflow_rewrite(self) -> None:
        """Rewrites another team's workflow in another language."""
        self.lead()
        for _ in self.times(8, 10):
            part = self.pick("align", "peaks", "assembly", "polish", "annotate", "phylo")
            self.sh(
                f"cat /opt/workflows/metagenome/{part}_{self.n(1, 9)}.wdl",
                f"task {part} {{ runtime {{ cpu: {self.n(1, 64)} }} }}",
                out=True,
            )
            self.call(
                "write_remote",
                {
                    "path": f"/opt/workflows/metagenome/{part}_{self.n(1, 99)}.nf",
                    "text": f"process {part} {{ cpus {self.n(1, 64)} }}",
                },
                f"{self.n(100, 9999)} bytes",
                out=True,
                change=True,
            )
            self.now_and_then()
        self.tail()

    def stall_pending_forever(self) -> None:
        """The job waits for a resource that does not exist; the agent waits, too."""
        self.work(4, 8)
        job = self.n(10**6, 10**7)
        for number in self.times(15, 28):
            self.sh(
                f"squeue -j {job}",
                f"{job} PD 0:00 (Resources) [{self.time()}]",
                new=number == 0,
                wait="job",
                gap=self.x(30, 150),
            )

    def stall_resubmit_failed(self) -> None:
        """Looks at a job that has failed for good, in all views."""
        self.work(4, 8)
        job = self.n(10**6, 10**7)
        for number in self.times(7, 12):
            self.sh(
                self.pick(
                    f"sacct -j {job}",
                    f"scontrol show job {job} | grep State",
                    f"seff {job}",
                    f"sacct -j {job} --format=State,ExitCode",
                    f"sacct --jobs={job} -P",
                ),
                self.pick(f"{job} FAILED 1:0", "State: FAILED (exit code 1)", "JobState=FAILED ExitCode=1:0"),
                new=number == 0,
                gap=self.x(5, 60),
            )
        self.tail()

    def stall_memory_up_and_down(self) -> None:
        """Memory of the job is set to the two values that were both tried."""
        self.work(4, 8)
        for number in self.times(8, 12):
            memory = [32, 64][number % 2]
            self.call(
                "write_remote",
                {"path": f"{self.root}/{self.project}/jobs/all.sh", "text": f"#SBATCH --mem={memory}G"},
                f"mem={memory}G",
                new=number < 2,
            )

    def cascade_reference_missing(self) -> None:
        """The index of the reference genome is gone: each tool complains in its own words."""
        self.work(4, 8)
        for sample in self.some(self.samples, 5, 8):
            self.sh(
                *self.pick(
                    (
                        f"bwa mem ref/hg38.fa {sample}_R1.fastq.gz",
                        f"[E::bwa_idx_load_from_disk] fail to locate the index files ({sample})",
                    ),
                    (
                        f"gatk HaplotypeCaller -R ref/hg38.fa -I {sample}.bam",
                        f"A USER ERROR has occurred: Fasta index file hg38.fa.fai does not exist. {sample}",
                    ),
                    (f"samtools mpileup -f ref/hg38.fa {sample}.bam", f"[faidx] Could not build fai index, {sample}"),
                    (
                        f"nextflow run main.nf --sample {sample} -resume",
                        f"Error executing process > 'ALIGN ({sample})': exit status 1",
                    ),
                ),
                ok=self.chance(0.2),
                cause="index",
            )
            if self.chance(0.4):
                self.sh(
                    f"ls -l {self.root}/{self.project}/bam/{sample}*", f"{self.n(1, 99)}G {sample}.bam {self.day()}"
                )

    def cascade_quota(self) -> None:
        """The group's quota is used up; jobs die, files cannot be written."""
        self.work(4, 8)
        for sample in self.some(self.samples, 5, 9):
            tool, args, text = self.pick(
                (
                    "write_remote",
                    {"path": f"{self.root}/{self.project}/jobs/{sample}.sh", "text": "..."},
                    f"Disk quota exceeded: {sample}.sh",
                ),
                (
                    "ssh_exec",
                    {"host": "login1", "command": f"samtools sort {sample}.bam"},
                    f"samtools sort: failed to create temporary file {sample}.tmp.0000.bam",
                ),
                (
                    "ssh_exec",
                    {"host": "login1", "command": f"cp {sample}.vcf out/"},
                    f"cp: error writing 'out/{sample}.vcf': Disk quota exceeded",
                ),
            )
            self.call(tool, args, text, ok=False, cause="quota")
            if self.chance(0.3):
                self.sh(f"wc -l {sample}.bed", f"{self.n(100, 99999)} {sample}.bed")

    def healthy_queue_moves(self) -> None:
        """Polls while samples become done."""
        self.work(4, 8)
        left = self.n(12, 40)
        while left:
            left = max(0, left - self.n(1, 5))
            self.sh(
                f"squeue -u agent -h | wc -l; squeue --name {self.project}",
                f"{left} jobs left",
                wait="queue",
                new=True,
                gap=self.x(30, 300),
            )
        self.work(3, 6)

    def healthy_each_sample(self) -> None:
        """The same three commands for each sample."""
        for sample in self.samples:
            self.sh(f"samtools flagstat {sample}.bam", f"{sample}: {self.n(10**6, 10**9)} in total")
            self.sh(f"mosdepth -n {sample} {sample}.bam", f"{sample} mean {self.x(5, 60, 2)}")
            self.call(
                "write_remote", {"path": f"qc/{self.project}.csv", "append": sample}, f"{sample} appended", change=True
            )

    def healthy_log_to_config(self) -> None:
        """The failing rule's log names its script, the script its configuration."""
        self.work(2, 4)
        for sample in self.samples[:5]:
            self.sh(
                f"cat {self.root}/{self.project}/log/{sample}.err",
                f"Error in rule {self.pick(*TOOLS)}: see scripts/{sample}.R line {self.n(1, 99)}",
            )
            self.sh(f"sed -n '1,40p' scripts/{sample}.R", f"cfg <- read_yaml('conf/{sample}.yml') # {self.n(1, 999)}")
            self.sh(f"cat conf/{sample}.yml", f"min_q: {self.n(1, 40)}\nrun: {self.hex(5)}")
        self.work(3, 6)

    def healthy_oom_ladder(self) -> None:
        """Memory is raised step by step, at most twice, until the job passes."""
        self.work(4, 7)
        for sample in self.samples[:3]:
            for memory in range(1, self.n(2, 3)):
                self.sh(
                    f"srun --mem={memory * 16}G bqsr {sample}",
                    f"slurmstepd: error: Detected 1 oom_kill event, {sample} at {memory * 16}G",
                    ok=False,
                    cause=sample,
                )
            self.sh(
                f"srun --mem=96G bqsr {sample}", f"{sample} done, peak {self.n(49, 95)}G", needs=sample, change=True
            )
            self.work(1, 2)

    def healthy_plain(self) -> None:
        """Nothing special."""
        self.work(12, 30)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(GenomeQueue, rng)
