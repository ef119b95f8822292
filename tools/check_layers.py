#!/usr/bin/env python3
"""Checks who includes whom below src/: the table of rooms, where third-party headers may appear, and that no file
includes itself by a detour.

    tools/check_layers.py [ROOT]        prints one line per violation, exit status 1 when there is one

Adding an edge means changing ROOMS here and DI_ROOMS_* in cmake/Rooms.cmake.
"""
import pathlib
import re
import sys

# Room -> what of other rooms it may include, as patterns of the path below src/ (fullmatch). A room may always include
# itself; cli may include everything.
ROOMS = {
    "base": [],
    "codec": ["base/.*"],
    "structured": ["base/.*"],
    "device": ["base/.*"],
    "kernels": ["base/.*", "device/.*"],
    # The operator list and its views, never a backend: kernels/cpu, kernels/cuda and kernels/ascend are sub-folders.
    "model": ["base/.*", "device/[^/]*", "kernels/[^/]*"],
    "kv": ["base/.*", "device/[^/]*"],
    "store": ["base/.*"],
    # Of codec only the token types.
    "engine": ["base/.*", "codec/token[^/]*", "structured/.*", "device/[^/]*", "model/.*", "kv/.*"],
    "cluster": ["base/.*", "kv/.*", "store/.*", "engine/types.h"],
    # The Python modules stand on the C interfaces alone.
    "python": [r"[a-z]+/c_api/deepinfer_[a-z]+\.h"],
    "server": ["base/.*", "codec/.*", "structured/.*", "engine/api.h", "cluster/router.h"],
    "cli": [".*"],
}

# Third-party header -> (files that may include it, what to say). First match decides.
CC = r".*\.cc"
VENDORS = [
    (r"fmt/.*|xxhash\.h", r".*", ""),
    (r"boost/(asio|beast|system|core|intrusive).*", r"(server|cluster|store)/" + CC, "Asio and Beast: .cc files of server, cluster and store"),
    (r"boost/.*", CC, "Boost: .cc files only"),
    (r"grpc(pp)?/.*|google/protobuf/.*|.*\.pb\.h", r"(cluster|store)/" + CC, "gRPC and generated code: .cc files of cluster and store"),
    (r"CLI/.*|toml\+\+/.*|toml\.hpp", r"cli/.*", "CLI11 and toml++: cli only"),
    (r"spdlog/.*", r"base/log\.cc", "spdlog: base/log.cc only"),
    (r"simdjson\.h", r"(base|codec|structured|server)/" + CC, "simdjson: .cc files only"),
    (r"prometheus/.*", r"(base|server)/" + CC, "prometheus-cpp: .cc files of base and server"),
    (r"openssl/.*", CC, "OpenSSL: .cc files only"),
    (r"z(lib|std)\.h", CC, "zlib and zstd: .cc files only"),
    (r"hwy/.*", r"kernels/cpu/.*(\.cc|-inl\.h)", "Highway: .cc and -inl.h files of kernels/cpu"),
    (r"(cuda|cublas|cudnn|nccl|nvtx|cooperative_groups|cub/|thrust/|cutlass/|cute/).*", r"(device|kernels)/cuda/.*", "CUDA: device/cuda and kernels/cuda only"),
    (r"(acl|hccl|aclnnop)/.*|acl\.h|hccl\.h", r"(device|kernels)/ascend/.*", "CANN: device/ascend and kernels/ascend only"),
    (r"utf8proc\.h|zstd\.h|lz4.*|lmdb\.h|liburing.*|numa.*|hwloc.*|ucp/.*|ucs/.*|uct/.*|mpi\.h|curl/.*|mimalloc.*|nlohmann/.*|"
     r"jpeglib\.h|jerror\.h|turbojpeg\.h|png\.h|webp/.*|gif_lib\.h|pybind11/.*|Python\.h", CC, "this library: .cc files only"),
    (r"(gtest|gmock|rapidcheck|benchmark|pcre2)(/.*|\.h)", r"(?!)", "test libraries have no place below src/"),
]
# The compiler's and the system's own headers.
SYSTEM = re.compile(
    r"[a-z_0-9]+|(sys|net|netinet|arpa|linux|asm|bits|ext)/.*|[a-z0-9]*intrin\.h|"
    r"(unistd|fcntl|errno|signal|poll|pthread|sched|dlfcn|stdint|stddef|string|stdlib|stdio|math|time|limits|dirent|endian|"
    r"getopt|glob|ftw|netdb|termios|cpuid|execinfo|malloc|pwd|grp|inttypes|locale|wchar|wctype|ctype|float|assert|"
    r"spawn|ucontext|link|elf|features|ifaddrs|semaphore|syslog|utime)\.h")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
# Beyond these a header needs C++23, which nvcc does not have.
NOT_FOR_CUDA = {"base/result.h"}


def sources(src):
    for path in sorted(src.rglob("*")):
        if path.suffix in (".h", ".cc", ".cu", ".cuh", ".c") and path.is_file():
            yield path.relative_to(src).as_posix(), path.read_text(encoding="utf-8", errors="replace")


def check_quoted(name, target, files):
    room = name.split("/")[0]
    if target not in files:
        generated = target.endswith(".pb.h") and room in ("cluster", "store") and name.endswith(".cc")
        if not generated:
            yield f'src/{name}: #include "{target}" is no file below src/ (paths are written from src/, third parties in <>)'
        return
    other = target.split("/")[0]
    if room == other:
        return
    if room not in ROOMS:
        yield f"src/{name}: room {room} is not in the table of tools/check_layers.py"
    elif not any(re.fullmatch(pattern, target) for pattern in ROOMS[room]):
        allowed = ", ".join(ROOMS[room]) or "nothing of another room"
        yield f'src/{name}: #include "{target}": {room} may include {allowed}'


def check_vendor(name, target):
    for pattern, where, rule in VENDORS:
        if re.fullmatch(pattern, target):
            if not re.fullmatch(where, name):
                yield f"src/{name}: #include <{target}>: {rule}"
            return
    if not SYSTEM.fullmatch(target):
        yield f"src/{name}: #include <{target}>: a header that tools/check_layers.py does not know; add it there with where it may appear"


def cycles(graph):
    """Each cycle of files once, as the list of its members; depth first, without recursion."""
    state = {}
    for start in graph:
        if start in state:
            continue
        path, iterators = [start], [iter(graph[start])]
        state[start] = "open"
        while path:
            for target in iterators[-1]:
                if state.get(target) == "open":
                    yield path[path.index(target):] + [target]
                elif target not in state:
                    state[target] = "open"
                    path.append(target)
                    iterators.append(iter(graph[target]))
                    break
            else:
                state[path.pop()] = "done"
                iterators.pop()


def reachable(start, graph):
    seen, stack = set(), [start]
    while stack:
        for target in graph[stack.pop()]:
            if target not in seen:
                seen.add(target)
                stack.append(target)
    return seen


def check(root):
    src = pathlib.Path(root) / "src"
    files = dict(sources(src))
    graph = {name: [] for name in files}
    for name, text in files.items():
        for kind, target in INCLUDE.findall(text):
            if kind == "<":
                yield from check_vendor(name, target)
            else:
                yield from check_quoted(name, target, files)
                if target in files:
                    graph[name].append(target)
    for cycle in cycles(graph):
        yield "include cycle: " + " -> ".join("src/" + name for name in cycle)
    for name in files:
        if name.endswith((".cu", ".cuh")):
            for target in sorted(reachable(name, graph) & NOT_FOR_CUDA):
                yield f"src/{name}: reaches {target}, which nvcc cannot compile (std::expected)"


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    violations = list(check(root))
    for line in violations:
        print(line)
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
