import os
import tempfile

import harness
import pytest


def pytest_configure(config):
    # Servers share what they measured, but not with the user's own.
    curves = tempfile.TemporaryDirectory(prefix="deepinfer-curves-")
    config.add_cleanup(curves.cleanup)
    os.environ.setdefault("DEEPINFER_SPEC_CURVE_CACHE", curves.name)
    config.addinivalue_line("markers", "release_only: measures the product (memory, start script) or is too slow under a sanitizer")


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory):
    server = harness.Server(tmp_path_factory.mktemp("shared"))
    yield server
    assert server.stop() == 0


@pytest.fixture
def server(shared_server):
    """The server that most tests share. Whatever a test did to it, the next request works."""
    yield shared_server
    assert shared_server.process.poll() is None, shared_server.log()[-3000:]
    assert shared_server.answer(max_tokens=4)


@pytest.fixture
def start(tmp_path):
    """Starts servers with options of their own and ends them."""
    started = []

    def start_one(*options, **named):
        started.append(harness.Server(tmp_path, *options, **named))
        return started[-1]

    yield start_one
    for server in started:
        if server.process.poll() is None:
            assert server.stop() == 0
