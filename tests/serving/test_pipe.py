"""What rank 0 and the process that speaks HTTP say to each other, also when one of them ends in the midst of it."""

from __future__ import annotations

import socket

from allranks.serving.pipe import Pipe, encode


def test_who_waits_until_all_is_sent_waits_no_longer() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pipe = Pipe(ours)
        assert pipe.flush(30)  # nothing was said
        for number in range(100):
            pipe.say(number=number)
        assert pipe.flush(30)
        said = b"".join(encode({"number": number}) for number in range(100))
        assert theirs.recv(2**20, socket.MSG_WAITALL | socket.MSG_DONTWAIT) == said


def test_who_does_not_read_is_waited_for_only_so_long() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pipe = Pipe(ours)
        pipe.say(text="a" * 2**24)
        assert not pipe.flush(0.1)


def test_a_message_that_was_broken_off_by_the_others_end_is_none() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(encode({"op": "up"}) + encode({"op": "add"})[:5])
        assert list(Pipe(ours).heard()) == [{"op": "up"}]
