"""What one client of the local cloud's servers may take, while others keep their place."""

from __future__ import annotations

import io
import socket
import threading

import pytest

from localcloud.api import admission
from localcloud.api.admission import USER, Incoming, Share

HOSTILE, HONEST = ("vpc-1", "10.0.1.12"), ("vpc-1", "10.0.1.13")


@pytest.fixture
def share() -> Share:
    return Share(own=2, most=5, shared=4, of_user=3)


def takes(share: Share, peer: admission.Peer) -> int:
    """Take one at a time until there is no more."""
    return next(count for count in range(100) if not share.take(peer))


def test_a_peer_gets_no_more_than_it_may_have(share):
    assert takes(share, HOSTILE) == 5
    assert not share.take(("vpc-2", "10.0.1.12"), 6)


def test_each_peer_and_the_user_keep_their_own_whatever_others_take(share):
    assert [takes(share, ("vpc-1", f"10.0.1.{number}")) for number in range(4)] == [5, 3, 2, 2]
    assert takes(share, USER) == 3


def test_what_is_given_back_is_there_for_others(share):
    takes(share, HOSTILE)
    assert takes(share, HONEST) == 3
    share.give_back(HOSTILE, 5)
    assert (share.take(HONEST, 2), takes(share, HOSTILE)) == (True, 3)


def test_who_waits_gets_what_is_given_back(share):
    takes(share, HOSTILE)
    got = []
    waiting = threading.Thread(target=lambda: got.append(share.take(HOSTILE, 3, wait_s=60)))
    waiting.start()
    share.give_back(HOSTILE, 3)
    waiting.join(60)
    assert got == [True]
    assert not share.take(HOSTILE)


def test_nothing_of_peers_that_have_gone_is_kept(share):
    for number in range(100):
        share.take((f"vpc-{number}", "10.0.1.12"), 5)
        share.give_back((f"vpc-{number}", "10.0.1.12"), 5)
    assert not share._taken
    assert takes(share, HOSTILE) == 5


def test_connections_leave_most_files_of_a_process_that_may_open_few(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (64, 64))
    share = admission.connections(own=1, most=100)
    assert takes(share, HOSTILE) == 1 + 64 // 4


def test_without_threads_a_connection_is_refused_and_not_counted(share, monkeypatch, caplog):
    def cannot(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(admission, "start_new_thread", cannot)
    refused = []
    admission.admit(share, HOSTILE, lambda: None, lambda: refused.append(HOSTILE))
    assert refused == [HOSTILE]
    assert takes(share, HOSTILE) == 5
    assert "can't start new thread" in caplog.text


def test_a_client_that_is_turned_away_is_told_to_try_again():
    ours, theirs = socket.socketpair()
    with theirs:
        admission.turn_away(ours)
        said = theirs.recv(1000)
    assert said.startswith(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n")
    assert said.endswith(b"\r\n\r\n")
    assert ours.fileno() < 0


def test_turning_away_a_client_that_has_gone_is_no_error():
    ours, theirs = socket.socketpair()
    theirs.close()
    admission.turn_away(ours)
    assert ours.fileno() < 0


def test_no_more_is_read_than_is_expected():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"x" * 50)
        incoming = Incoming(ours)
        incoming.expect(20, 60)
        reader = io.BufferedReader(incoming)
        assert len(reader.read(100)) == 20
        incoming.expect(10, 60)
        assert len(reader.read(100)) == 10


def test_what_comes_too_late_is_not_waited_for(monkeypatch):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"in time")
        incoming = Incoming(ours)
        incoming.expect(100, 0)
        # It is there already, and this process was late to read it.
        assert incoming.read(7) == b"in time"
        with pytest.raises(TimeoutError):
            incoming.read(1)
