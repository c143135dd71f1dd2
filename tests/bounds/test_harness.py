"""The harness itself: it sees a stall, memory and connections."""

from __future__ import annotations

from bounds.attack import MAX_STALL_S, eventually, victim


def test_a_quiet_server_has_short_stalls_and_no_connections() -> None:
    with victim() as server:
        before = server.reset()
        server.works()
        after = server.figures()
        assert after.stall_cpu_s < MAX_STALL_S
        assert after.peak_bytes < before.peak_bytes + 50 * 2**20
        with server.raw(), server.raw():
            eventually(lambda: server.num_connections() >= 2)
        eventually(lambda: server.num_connections() == 0)
