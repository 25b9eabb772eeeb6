"""Whom the kernel killed for memory: by saved trees of every kind of cgroup, and their counters moved by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.node.death import Death
from allranks.node.memory import Memory, groups, in_words

V1_MOUNT = "35 31 0:32 {root} /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n"
V2_MOUNT = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid,nodev - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n" + V1_MOUNT.format(root="/")
OTHER = (
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
)
UNLIMITED_V1 = 9223372036854771712


def version_1(folder: Path, limit: int = UNLIMITED_V1, kills: int = 0, hits: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
    (folder / "memory.failcnt").write_text(f"{hits}\n")
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")


def version_2(folder: Path, limit: int | None = None, kills: int = 0, hits: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.events").write_text(
        f"low 0\nhigh 0\nmax {hits}\noom {hits}\noom_kill {kills}\noom_group_kill 0\n"
    )
    (folder / "memory.max").write_text("max\n" if limit is None else f"{limit}\n")


@pytest.mark.parametrize(
    ("told", "mounts", "present", "expected"),
    [
        pytest.param(
            "5:cpu,cpuacct:/\n4:memory:/user/a\n0::/\n", OTHER + V1_MOUNT.format(root="/"),
            ["memory", "memory/user", "memory/user/a"], ["memory/user/a", "memory/user", "memory"], id="v1",
        ),
        pytest.param(
            "4:memory:/docker/abc\n", V1_MOUNT.format(root="/docker/abc"), ["memory"], ["memory"],
            id="v1 in a container without a namespace",
        ),
        pytest.param(
            "4:memory:/docker/abc/sub\n", V1_MOUNT.format(root="/docker/abc"), ["memory", "memory/sub"],
            ["memory/sub", "memory"], id="v1 below a container's",
        ),
        pytest.param("4:memory:/\n", V1_MOUNT.format(root="/"), ["memory"], ["memory"], id="v1 with a namespace"),
        pytest.param(
            "0::/user.slice/run.scope\n", OTHER + V2_MOUNT.format(root="/"), ["user.slice", "user.slice/run.scope"],
            ["user.slice/run.scope", "user.slice"], id="v2, whose root counts nothing",
        ),
        pytest.param("0::/\n", V2_MOUNT.format(root="/"), ["."], ["."], id="v2 with a namespace"),
        pytest.param(
            "0::/kubepods/pod1/c1\n", V2_MOUNT.format(root="/kubepods/pod1/c1"), ["."], ["."],
            id="v2 in a container without a namespace",
        ),
        pytest.param(
            "0::/../c2\n", V2_MOUNT.format(root="/.."), ["."], ["."], id="v2, of another namespace's mount",
        ),
        pytest.param(
            "9:name=systemd:/\n4:memory:/a\n0::/\n", HYBRID, ["memory/a"], ["memory/a"], id="hybrid, memory in v1",
        ),
        pytest.param("9:name=systemd:/\n0::/a\n", HYBRID, ["unified/a"], ["unified/a"], id="hybrid, memory in v2"),
        pytest.param("0::/gone (deleted)\n", V2_MOUNT.format(root="/"), [], [], id="nothing to be read"),
        pytest.param("", "", [], [], id="no cgroups at all"),
    ],
)  # fmt: skip
def test_the_cgroup_is_found(tmp_path: Path, told: str, mounts: str, present: list[str], expected: list[str]) -> None:
    tree = tmp_path / "sys/fs/cgroup"
    for name in present:
        (version_1 if name.startswith("memory") else version_2)(tree / name)
    assert [Path(group.folder).relative_to(tree) for group in groups(told, mounts, str(tmp_path))] == [
        Path(name) for name in expected
    ]


class Host:
    """A root in which this process and ranks 0 and 1 (pids 100 and 101) are in cgroup ``job``, version 2."""

    def __init__(self, root: Path) -> None:
        self.root, self.tree = root, root / "sys/fs/cgroup/job"
        for pid in ("self", "100", "101"):
            self.place(pid, "/job")
        (root / "proc/self/mountinfo").write_text(V2_MOUNT.format(root="/"))
        (root / "proc/meminfo").write_text("MemTotal:       24657028 kB\nMemFree: 1 kB\n")
        self.host(0)
        version_2(self.tree, limit=2 << 30, kills=3, hits=3)
        self.memory = Memory(lambda: {0: 100, 1: 101}, str(root))
        self.memory.begin()

    def place(self, pid: str, group: str) -> None:
        folder = self.root / "proc" / pid
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(f"0::{group}\n")

    def host(self, kills: int) -> None:
        (self.root / "proc/vmstat").write_text(f"pgfault 7\noom_kill {kills}\n")

    def killed(self, rank: int, asked: bool = False) -> Death:
        death = Death(rank, 0, "signal", "killed by SIGKILL", 137, "SIGKILL", asked=asked)
        return self.memory.explain(death, 2040109465)


def test_a_kill_by_the_kernel_is_told_with_limit_and_use(tmp_path: Path) -> None:
    host = Host(tmp_path)
    version_2(host.tree, limit=2 << 30, kills=4, hits=4)
    death = host.killed(1)
    assert (death.kind, death.signal, death.exit) == ("oom", "SIGKILL", 137)
    assert death.message == (
        "killed by the kernel for memory: its cgroup's limit is 2.0 GiB, rank 1 used 1.9 GiB at most"
    )


def test_a_kill_by_somebody_stays_a_signal(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.host(5)  # of other containers on this host
    assert (host.killed(0).kind, host.killed(0).message) == ("signal", "killed by SIGKILL")


def test_one_kill_ends_one_rank(tmp_path: Path) -> None:
    host = Host(tmp_path)
    version_2(host.tree, limit=2 << 30, kills=4, hits=4)
    assert [host.killed(0).kind, host.killed(1).kind] == ["oom", "signal"]


def test_a_rank_that_we_killed_ourselves_is_not_explained(tmp_path: Path) -> None:
    host = Host(tmp_path)
    version_2(host.tree, limit=2 << 30, kills=4, hits=4)
    assert host.killed(0, asked=True).kind == "signal"


def test_what_was_killed_before_the_attempt_explains_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path)
    version_2(host.tree, limit=2 << 30, kills=4, hits=4)
    host.memory.begin()
    assert host.killed(0).kind == "signal"


@pytest.mark.parametrize("peak", [2 << 30, 1 << 30])
def test_a_limit_that_counts_no_hits_is_told_by_what_was_held(tmp_path: Path, peak: int) -> None:
    host = Host(tmp_path)
    version_2(host.tree, limit=2 << 30, kills=4, hits=3)
    (host.tree / "memory.peak").write_text(f"{peak - 4096}\n")
    expected = "its cgroup's limit is 2.0 GiB, and was nearly used up" if peak == 2 << 30 else "this host's memory"
    assert expected in host.killed(0).message


def test_the_limit_above_and_a_host_without_memory_are_told(tmp_path: Path) -> None:
    host = Host(tmp_path)
    version_2(host.tree, kills=4, hits=3)
    assert "this host's memory of 23.5 GiB was used up, rank 0" in host.killed(0).message
    for pid in ("self", "100", "101"):
        host.place(pid, "/job/step")
    version_2(host.tree, limit=1 << 30, kills=4, hits=4)
    version_2(host.tree / "step", limit=2 << 30)
    host.memory.begin()
    version_2(host.tree, limit=1 << 30, kills=5, hits=5)
    version_2(host.tree / "step", limit=2 << 30, kills=1)
    assert "the limit of the cgroup /job above it is 1.0 GiB" in host.killed(1).message


def test_a_rank_in_a_cgroup_of_its_own_is_told_by_that(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.place("101", "/scope")
    version_2(host.tree.parent / "scope", limit=300 << 20)
    host.memory.look()
    version_2(host.tree.parent / "scope", limit=300 << 20, kills=1, hits=1)
    assert host.killed(0).kind == "signal"
    assert "limit is 300 MiB" in host.killed(1).message


def test_without_a_readable_cgroup_the_hosts_counter_tells(tmp_path: Path) -> None:
    host = Host(tmp_path)
    for pid in ("self", "100", "101"):
        host.place(pid, "/hidden")
    host.memory.begin()
    host.host(1)
    death = host.killed(0)
    assert death.kind == "oom"
    assert "this host's count of such kills rose" in death.message


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed. ",
        "RuntimeError: DataLoader worker (pid(s) 4242) exited unexpectedly",
        "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL",
        "subprocess.CalledProcessError: Command '['eat']' died with <Signals.SIGKILL: 9>.",
        "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly",
        "exited with code 137; its last line: Killed",
    ],
)
def test_a_rank_whose_helper_the_kernel_killed_is_out_of_memory(tmp_path: Path, message: str) -> None:
    host = Host(tmp_path)
    death = Death(0, 0, "exception", message, 1)
    assert host.memory.explain(death).kind == "exception"
    version_2(host.tree, limit=2 << 30, kills=4, hits=4)
    told = host.memory.explain(death)
    assert told.kind == "oom"
    assert (
        told.message == f"{message} (the kernel killed a process of its node for memory: its cgroup's limit is 2.0 GiB)"
    )
    assert host.memory.explain(Death(1, 0, "exception", "ValueError: no", 1)).kind == "exception"


@pytest.mark.parametrize(
    ("size", "words"), [(17, "17 bytes"), (2 << 30, "2.0 GiB"), (300 << 20, "300 MiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_are_for_people(size: int, words: str) -> None:
    assert in_words(size) == words
