#!/usr/bin/env python3
"""Runs clang-tidy over every source file of a build folder and remembers which ones passed.

A file is skipped when nothing that could change the answer did: its compile command, its text, the text of each
Tidepool header it includes, .clang-tidy and the version of clang-tidy go into one hash, and the hash of a clean file
is kept as an empty file in the cache folder. Delete that folder to check everything again.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "tidepool" / "tidy"


def headers_by_object(build):
    """The files each object was compiled from, as ninja recorded them in the last build."""
    listing = subprocess.run(["ninja", "-C", build, "-t", "deps"], check=True, capture_output=True, text=True).stdout
    headers, current = {}, None
    for line in listing.splitlines():
        if line.startswith("    "):
            headers[current].append((build / line.strip()).resolve())
        elif ": #deps" in line:
            current = line.split(": #deps")[0]
            headers[current] = []
    return headers


def object_of(entry):
    return re.search(r" -o (\S+)", entry["command"]).group(1)


def hash_of(entry, headers, common):
    digest = hashlib.sha256(common)
    digest.update(entry["command"].replace(str(ROOT), "").encode())
    for path in sorted({pathlib.Path(entry["file"]), *headers}):
        if path.is_relative_to(ROOT):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
        else:  # A system header: its size tells versions of a package apart well enough.
            digest.update(f"{path}\0{path.stat().st_size}".encode())
    return digest.hexdigest()


def tidy(build, file):
    command = ["clang-tidy", "--quiet", "-p", build]
    if file.endswith("_test.cpp"):  # Tests run under sanitizers, which see what the analyzer guesses: a third less time.
        command.append("--checks=-clang-analyzer-*")
    result = subprocess.run([*command, file], capture_output=True, text=True, cwd=ROOT)
    return result.returncode == 0, result.stdout + result.stderr


def main():
    if len(sys.argv) != 2 or not (pathlib.Path(sys.argv[1]) / "compile_commands.json").exists():
        sys.exit("usage: tools/tidy.py BUILD_FOLDER    (one that was configured and built)")
    build = pathlib.Path(sys.argv[1]).resolve()
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    version = subprocess.run(["clang-tidy", "--version"], check=True, capture_output=True).stdout
    common = version + (ROOT / ".clang-tidy").read_bytes() + pathlib.Path(__file__).read_bytes()
    headers = headers_by_object(build)

    waiting = {}
    entries = json.loads((build / "compile_commands.json").read_text())
    for entry in entries:
        if pathlib.Path(entry["file"]).is_relative_to(build):
            continue  # written by the build, not by us
        if object_of(entry) not in headers:
            sys.exit(f"tidy: {entry['file']} is not built, so its headers are unknown; build {build} first")
        stamp = cache / hash_of(entry, headers[object_of(entry)], common)
        if not stamp.exists():
            waiting[entry["file"]] = stamp
    print(f"clang-tidy: {len(waiting)} files to check, {len(entries) - len(waiting)} unchanged", flush=True)

    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {pool.submit(tidy, build, file): file for file in waiting}
        for count, job in enumerate(concurrent.futures.as_completed(jobs), 1):
            clean, output = job.result()
            name = os.path.relpath(jobs[job], ROOT)
            if clean:
                waiting[jobs[job]].touch()
            else:
                failures += 1
                print(output)
            print(f"[{count}/{len(jobs)}] {name}{'' if clean else ': FAILED'}", flush=True)
    if failures:
        sys.exit(f"clang-tidy: {failures} files have findings")


if __name__ == "__main__":
    main()
