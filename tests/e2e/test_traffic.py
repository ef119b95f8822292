"""Load and faults: mixed traffic with clients that leave, read slowly and send rubbish, and SIGTERM in the middle of it. Short here;
DEEPINFER_SOAK_SECONDS=600 makes it the long form that also looks at memory (tools/soak.sh)."""
import os
import signal
import time

import harness
import pytest
from traffic import Traffic, at_rest, open_files, resident

SECONDS = int(os.environ.get("DEEPINFER_SOAK_SECONDS", 0))
# Stores that grow until they are full are small, so that the warm-up fills them.
OPTIONS = ("--max-num-seqs", 8, "--exact-replay-memory", "1MiB", "--responses-store", 50, "--drain-timeout", "60s")
ENGINES = ["mock:tokens=30,step_ms=1"] + (["real"] if SECONDS else [])


@pytest.mark.parametrize("engine", ENGINES)
def test_mixed_traffic_and_sigterm(tmp_path, engine):
    server = harness.Server(tmp_path, "--engine", engine, *OPTIONS)
    length = {"seconds": SECONDS / len(ENGINES)} if SECONDS else {"requests": 150}
    try:
        run(server, length)
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


def run(server, length):
    at_rest(server)
    files = open_files(server)
    warm_up = Traffic(server, seed=1)
    warm_up.run(**({"seconds": length["seconds"] * .4} if SECONDS else {"requests": 50}))
    at_rest(server)
    warm = resident(server)
    traffic = Traffic(server, seed=2)
    traffic.run(**({"seconds": length["seconds"] * .55} if SECONDS else length))
    at_rest(server)
    after = resident(server)
    for one in (warm_up, traffic):
        assert not one.faults, one.faults[:10]
    harness.wait_until(lambda: open_files(server) <= files + 1, f"{files} open files as before")  # and this test's own connection
    if SECONDS:
        print(f"\n{sum(traffic.tally.values())} requests after {sum(warm_up.tally.values())}: {traffic.summary()}")
        print(f"resident {warm:.1f} -> {after:.1f} MiB ({100 * (after / warm - 1):+.2f} %), open files {files} -> {open_files(server)}")
        if not harness.sanitized():
            assert after <= warm * 1.02, "memory grows"
    else:
        assert len(traffic.tally) >= 9

    last = Traffic(server, seed=3)
    last.start()
    time.sleep(5 if SECONDS else .3)
    last.ended = True
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(120) == 0  # one signal only: a second one means "at once"
    report = harness.SANITIZER_REPORT.search(server.log())
    assert not report, server.log()[report.start():][:6000]
    last.stop()
    last.join()
    assert not last.faults, last.faults[:10]
    if SECONDS:
        print(f"with SIGTERM: {last.summary()}")
