#!/usr/bin/env python3
"""Executes deploy/Dockerfile where there is no container tool: each stage in a folder that debootstrap filled, each RUN in a
chroot, each COPY with the files that a build would be given. Then it starts what the image would start, as its user, on a read-only
root with its own network, asks for the health check and for an answer, and ends it with SIGTERM.

    tools/image_check.py [--keep] [--ccache DIR]

Needs root, debootstrap and a Debian mirror that apt knows; says so and leaves with status 77 where one is missing. The base system
and the finished image stay in build/image (--keep: the build stage too). --ccache gives the compiler a cache of the machine.
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORK = ROOT / "build/image"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LIMIT_MB = 400  # of the image of the CPU build
SKIPPED = 77
# What a machine needs to reach package archives belongs to it and not to the image.
OF_MACHINE = {k: v for k, v in os.environ.items() if re.fullmatch(r"(?i)\w+_proxy|SSL_CERT_\w+|\w+_CA_BUNDLE", k)}


def say(text):
    print(text, flush=True)


def run(command, **more):
    result = subprocess.run([str(part) for part in command], **more)
    if result.returncode != 0:
        sys.exit(f"image_check: status {result.returncode} of: {' '.join(map(str, command))[:500]}")
    return result


def instructions():
    """(word, rest) of each instruction, in order."""
    text = re.sub(r"\\\n", " ", (ROOT / "deploy/Dockerfile").read_text())
    return [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]


def mirror():
    found = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE) $(CODENAME)"], capture_output=True, text=True).stdout
    for line in found.splitlines():
        site, _, name = line.partition(" ")
        if name == "bookworm":
            return site
    return None


def base_system(image, site):
    """The folder that stands for FROM debian:12-slim."""
    if not re.fullmatch(r"debian:12(-slim)?", image):
        sys.exit(f"image_check: FROM {image}: only debian:12-slim is known here")
    folder, done = WORK / "base", WORK / "base.done"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        begun = time.monotonic()
        with open(WORK / "debootstrap.log", "wb") as log:
            run(["debootstrap", "--variant=minbase", "bookworm", folder, site], stdout=log, stderr=subprocess.STDOUT)
        for source in pathlib.Path("/etc/apt/sources.list.d").glob("*.sources"):
            shutil.copy(source, folder / "etc/apt/sources.list.d")
        done.write_text(site)
        say(f"FROM {image}: debootstrap, {time.monotonic() - begun:.0f} s")
    return folder


class Stage:
    def __init__(self, name, base):
        self.name, self.root = name, WORK / f"stage-{name}"
        self.folder, self.env, self.meta = "/", {"PATH": PATH}, {}
        shutil.rmtree(self.root, ignore_errors=True)
        run(["cp", "-a", "--reflink=auto", base, self.root])
        shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")

    def inside(self, path):
        return self.root / str(pathlib.PurePosixPath(self.folder) / path).lstrip("/")

    def run(self, command, ccache):
        mounts = [f"mount -t proc proc {self.root}/proc", f"mount --rbind /dev {self.root}/dev"]
        env = {**self.env, **OF_MACHINE, "HOME": "/root"}
        if ccache:
            (self.root / "ccache").mkdir(exist_ok=True)
            mounts.append(f"mount --bind {shlex.quote(ccache)} {self.root}/ccache")
            env["CCACHE_DIR"] = "/ccache"
        inner = ["chroot", str(self.root), "env", "-i", *(f"{k}={v}" for k, v in env.items()), "sh", "-c", f"cd {self.folder} && {command}"]
        script = " && ".join(mounts) + " && exec " + shlex.join(inner)
        with open(WORK / f"{self.name}.log", "ab") as log:
            run(["unshare", "--mount", "--propagation", "private", "sh", "-c", script], stdout=log, stderr=subprocess.STDOUT)
        if ccache:
            (self.root / "ccache").rmdir()


def copy(stage, stages, rest):
    words = rest.split()
    source_root, ignored = ROOT, (ROOT / "deploy/Dockerfile.dockerignore").read_text().split()
    if words[0].startswith("--from="):
        source_root, ignored = stages[words.pop(0)[len("--from="):]].root, []
    *sources, target = words
    for source in sources:
        at = source_root / source.lstrip("/")
        to = stage.inside(target)
        if at.is_dir():
            to.mkdir(parents=True, exist_ok=True)
            without = [f"--exclude=./{one}" for one in ignored] if source == "." else []
            reader = subprocess.Popen(["tar", "-C", str(at), *without, "-cf", "-", "."], stdout=subprocess.PIPE)
            run(["tar", "-C", to, "--no-same-owner", "-xf", "-"], stdin=reader.stdout)
            if reader.wait() != 0:
                sys.exit(f"image_check: COPY {rest}: tar failed")
        else:
            if target.endswith("/"):
                to = to / at.name
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(at, to)


def build(site, ccache, keep):
    """All stages; the last one."""
    for log in WORK.glob("*.log"):
        log.unlink()
    stages, stage = {}, None
    for word, rest in instructions():
        begun = time.monotonic()
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            stage = Stage(name.strip() or "image", base_system(image.strip(), site))
            stages[stage.name] = stage
        elif word == "WORKDIR":
            stage.folder = rest
            stage.inside(".").mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            copy(stage, stages, rest)
        elif word == "RUN":
            stage.run(rest, ccache if stage.name == "build" else None)
        elif word == "ENV":
            key, _, value = rest.partition("=")
            stage.env[key] = value
        elif word in ("ENTRYPOINT", "CMD"):
            stage.meta[word] = json.loads(rest)
        elif word == "HEALTHCHECK":
            stage.meta[word] = json.loads(rest[rest.index("CMD") + 3:])
        elif word in ("USER", "EXPOSE", "STOPSIGNAL"):
            stage.meta[word] = rest.strip()
        else:
            sys.exit(f"image_check: {word} is not understood here")
        say(f"{stage.name:6} {word} {' '.join(rest.split())[:90]} ({time.monotonic() - begun:.0f} s)")
    if not keep and "build" in stages:
        shutil.rmtree(stages["build"].root)
    return stage


def size_mb(folder):
    return int(subprocess.run(["du", "-sxm", str(folder)], capture_output=True, text=True, check=True).stdout.split()[0])


# In a network, mount and process namespace of its own: the root read-only, /tmp in memory, the image's user. $1: the root.
START = r"""
set -eu
ip link set lo up
mount --bind "$1" "$1"
mount -o remount,ro,bind "$1"
mount -t tmpfs tmpfs "$1/tmp"
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
inside() { chroot --userspec="$USER_OF" "$1" env -i $ENV_OF "${@:2}"; }
inside "$1" sh -c 'id -u; touch /made 2>/dev/null && echo "the root can be written" || echo "read-only root"'
(exec chroot --userspec="$USER_OF" "$1" env -i $ENV_OF $COMMAND) >"$LOG" 2>&1 &
server=$!
begun=$(date +%s%N)
until inside "$1" $HEALTH 2>/dev/null; do sleep .05; kill -0 $server; done
echo "healthy after $(( ($(date +%s%N) - begun) / 1000000 )) ms"
until inside "$1" curl -fsS -o /dev/null http://127.0.0.1:8000/readyz 2>/dev/null; do sleep .05; kill -0 $server; done
echo "ready after $(( ($(date +%s%N) - begun) / 1000000 )) ms"
inside "$1" curl -fsS http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d '{"model":"deepseek-v4.1-flash","messages":[{"role":"user","content":"What is 3 times 4?"}],"thinking":{"type":"disabled"},"temperature":0,"max_tokens":32}'
echo
kill -TERM $server
wait $server
"""


def start(stage):
    meta = stage.meta
    env = {**os.environ, "USER_OF": meta["USER"], "LOG": str(WORK / "server.log"), "HEALTH": " ".join(meta["HEALTHCHECK"]),
           "COMMAND": " ".join(meta["ENTRYPOINT"] + meta["CMD"]), "ENV_OF": " ".join(f"{k}={v}" for k, v in stage.env.items())}
    command = ["unshare", "--mount", "--propagation", "private", "--net", "--pid", "--fork", "--kill-child", "bash", "-c", START, "start", str(stage.root)]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    if result.returncode != 0:
        sys.exit(f"image_check: starting the image: status {result.returncode}\n{result.stdout}{result.stderr}"
                 f"{(WORK / 'server.log').read_text()[-3000:]}")
    lines = result.stdout.splitlines()
    uid, root, *times, answer = lines
    answer = json.loads(answer)["choices"][0]
    say(f"user {uid}, {root}, {', '.join(times)}")
    say(f"answer {answer['message']['content']!r}, finish_reason {answer['finish_reason']}; SIGTERM: status 0")
    if uid != meta["USER"].split(":")[0] or root != "read-only root" or uid == "0":
        sys.exit("image_check: not the user or the root that the Dockerfile says")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--ccache", default=None)
    options = parser.parse_args()
    missing = [name for name in ("debootstrap", "unshare", "chroot", "tar", "ip") if shutil.which(name) is None]
    site = mirror() if shutil.which("apt-get") else None
    if os.geteuid() != 0 or missing or site is None:
        say(f"image_check: skipped: needs root, debootstrap and a mirror of Debian 12 (missing: {', '.join(missing) or 'none'}, "
            f"mirror: {'known' if site else 'none'}, user {os.geteuid()})")
        sys.exit(SKIPPED)
    WORK.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    image = build(site, options.ccache, options.keep)
    mb = size_mb(image.root)
    say(f"image: {mb} MB (limit {LIMIT_MB})")
    if mb >= LIMIT_MB:
        sys.exit("image_check: the image is too large")
    start(image)
    say(f"done in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
