"""NCCL's own lines tell which way it took. The lines are as NCCL 2.18 to 2.30 print them."""

from __future__ import annotations

import pytest

from allranks.fabric.transport import Lines, Link

START = "h:1:1 [0] NCCL INFO ncclCommInitRankConfig comm 0x55 rank 0 nranks {} cudaDev 0 nvmlDev 0 - Init START"


def read(*lines: str, ranks: int = 16, of: int = 16) -> Lines:
    """What rank 0 of a gang of ``of`` says in a communicator of ``ranks``."""
    found = Lines(0, of)
    for line in (START.format(ranks), *(f"h:1:7 [0] NCCL INFO {line}" for line in lines)):
        found.feed(line)
    return found


@pytest.mark.parametrize(
    ("line", "link"),
    [
        ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0(1)/GDRDMA", Link(0, 8, "IB", True)),
        ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA(PCI)", Link(0, 8, "IB", True)),
        ("Channel 01/0 : 8[0] -> 0[0] [receive] via NET/IB/3", Link(0, 8, "IB")),
        ("Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Socket/0", Link(0, 8, "Socket")),
        ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/2/GDRDMA/Shared", Link(0, 8, "AWS Libfabric", True)),
        ("Channel 00/01 : 0[0] -> 1[1] via P2P/IPC", Link(0, 1, "P2P")),
        ("Channel 00 : 0[1d] -> 1[56] via SHM/direct/direct", Link(0, 1, "SHM")),
    ],
)
def test_a_channel_tells_network_and_gpudirect(line: str, link: Link) -> None:
    assert read(line).links == {link}


def test_ranks_of_a_smaller_communicator_are_not_taken_for_the_gangs() -> None:
    assert read("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0", ranks=2).links == {Link(0, None, "IB")}


@pytest.mark.parametrize(
    ("line", "network"),
    [("Using network IB", "IB"), ("Using network AWS Libfabric", "AWS Libfabric"),
     ("Assigned NET plugin Socket to comm 0x55", "Socket")],
)  # fmt: skip
def test_the_network_that_was_chosen_is_told_before_any_channel(line: str, network: str) -> None:
    assert read(line).networks == {network}


def test_what_a_program_prints_itself_is_not_nccls() -> None:
    found = Lines(0, 2)
    found.feed("step 1 Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0")
    assert not found.links
