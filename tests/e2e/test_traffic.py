"""Load and faults: mixed traffic with clients that leave, read slowly and send rubbish, and SIGTERM in the middle of it. Short here;
DEEPINFER_SOAK_SECONDS=600 makes it the long form that also looks at memory (tools/soak.sh)."""
import os
import signal
import statistics
import time

import harness
import pytest
from traffic import Traffic, at_rest, open_files, resident

SECONDS = int(os.environ.get("DEEPINFER_SOAK_SECONDS", 0))
# Stores that grow until they are full are small, so that the warm-up fills them.
OPTIONS = ("--max-num-seqs", 8, "--exact-replay-memory", "1MiB", "--responses-store", 50, "--diag-responses", 50, "--drain-timeout", "60s")
OF_ENGINE = {"mock:tokens=30,step_ms=1": ("--test-blocks", 64),
             "real": ("--max-model-len", 4096, "--kv-memory", "8MiB", "--swa-memory", "4MiB", "--http-workers", 1)}
ENGINES = list(OF_ENGINE)[:2 if SECONDS else 1]
# What an allocator gives back late: between two looks at rest some pages come and go.
NOISE_MIB = 2


@pytest.mark.parametrize("engine", ENGINES)
def test_mixed_traffic_and_sigterm(tmp_path, engine):
    server = harness.Server(tmp_path, "--engine", engine, *OPTIONS, *OF_ENGINE[engine])
    length = {"seconds": SECONDS / len(ENGINES) / 21} if SECONDS else {"requests": 200}
    try:
        run(server, length)
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


def part(server, seed, length):
    """Some traffic, then a rest; MiB resident in it."""
    traffic = Traffic(server, seed=seed + 1)
    traffic.run(**length)
    at_rest(server)
    assert not traffic.faults, traffic.faults[:10]
    if SECONDS:
        print(f"\n{sum(traffic.tally.values())} requests: {traffic.summary()}" if seed in (0, 19) else ".", end="", flush=True)
    else:
        assert len(traffic.tally) >= 9, traffic.summary()
    return resident(server)


def run(server, length):
    at_rest(server)
    files = open_files(server)
    # Short: one round of each. Long: rounds of traffic with a look at the memory after each.
    rounds = [part(server, seed, length) for seed in range(20 if SECONDS else 1)]
    harness.wait_until(lambda: open_files(server) <= files + 1, f"{files} open files as before")  # and this test's own connection
    if SECONDS:
        early, late = (statistics.median(rounds[i:i + 4]) for i in (8, 16))
        print(f"resident {early:.1f} -> {late:.1f} MiB ({100 * (late / early - 1):+.2f} %), open files {files} -> {open_files(server)}, "
              f"after each round {' '.join(f'{one:.1f}' for one in rounds)}")
        if not harness.sanitized():
            assert late <= early * 1.02 + NOISE_MIB, "memory grows"

    last = Traffic(server, seed=100)
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
