#!/usr/bin/env python3
"""Runs clang-tidy over every source file of a build folder and remembers which ones passed.

A file is skipped when nothing that could change the answer did: its compile command, its text, the text of each
Tidepool header it includes, .clang-tidy and the version of clang-tidy go into one hash, and the hash of a clean file
is kept as an empty file in the cache folder. Delete that folder to check everything again, say after an upgrade of a
library, whose headers are not looked at.

Nothing needs to be compiled before, but for the headers that the folder's compile commands have precompiled.

A plugin (own_code_scope.cpp) keeps the checks out of system headers, which halves the time a file takes.
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
PRECOMPILED = r" (-Winvalid-pch|-Xclang -include(-pch)? -Xclang \S+)"


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "tidepool" / "tidy"


class Includes:
    """What a file includes of this repository, directly and by way of others. All of that is in quotes."""

    def __init__(self):
        self._direct = {}

    def of(self, file, folders):
        seen, waiting = {file}, [file]
        while waiting:
            for header in self._direct_of(waiting.pop(), folders) - seen:
                seen.add(header)
                waiting.append(header)
        return seen

    def _direct_of(self, file, folders):
        if file not in self._direct:
            names = re.findall(r'^\s*#\s*include\s*"([^"]+)"', file.read_text(), re.MULTILINE)
            places = [[folder / name for folder in (file.parent, *folders)] for name in names]
            self._direct[file] = {next(path for path in paths if path.exists()).resolve()
                                  for paths in places if any(path.exists() for path in paths)}
        return self._direct[file]


def hash_of(entry, headers, common):
    digest = hashlib.sha256(common)
    digest.update(entry["command"].replace(str(ROOT), "").encode())
    for path in sorted(headers):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def build_plugin(build, version):
    """Compiles the plugin against the headers of the clang-tidy that will load it."""
    major = re.search(r"version (\d+)", version)[1]
    include = pathlib.Path(f"/usr/lib/llvm-{major}/include")
    if not (include / "clang-tidy").exists() or not (include / "llvm").exists():
        sys.exit(f"tidy: {include} lacks the headers of clang-tidy's plugins; run tools/install_dependencies.sh check")
    source, plugin = ROOT / "tools/own_code_scope.cpp", build / "own_code_scope.so"
    if not plugin.exists() or plugin.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["g++", "-std=c++17", "-O1", "-fPIC", "-fno-rtti", "-shared", "-isystem", include, source, "-o",
                        plugin], check=True)
    return plugin


def tidy(commands, plugin, file):
    checks = "own-code-scope"
    if file.endswith("_test.cpp"):  # Tests run under sanitizers, which see what the analyzer guesses.
        checks += ",-clang-analyzer-*"
    command = ["clang-tidy", "--quiet", "--load", plugin, f"--checks={checks}", "-p", commands, file]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return result.returncode == 0, result.stdout + result.stderr


def main():
    if len(sys.argv) != 2 or not (pathlib.Path(sys.argv[1]) / "compile_commands.json").exists():
        sys.exit("usage: tools/tidy.py BUILD_FOLDER    (that of the preset tidy, configured and built)")
    build = pathlib.Path(sys.argv[1]).resolve()
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    version = subprocess.run(["clang-tidy", "--version"], check=True, capture_output=True, text=True).stdout
    plugin = build_plugin(build, version)
    rules = [ROOT / ".clang-tidy", ROOT / "tools/own_code_scope.cpp", pathlib.Path(__file__)]
    common = version.encode() + b"".join(path.read_bytes() for path in rules)

    entries = json.loads((build / "compile_commands.json").read_text())
    for entry in entries:
        if not entry["file"].endswith("_test.cpp"):  # A file that names less than it uses is found here.
            entry["command"] = re.sub(PRECOMPILED, "", entry["command"])
    commands = build / "tidy"
    commands.mkdir(exist_ok=True)
    (commands / "compile_commands.json").write_text(json.dumps(entries))

    waiting, includes = {}, Includes()
    for entry in entries:
        file = pathlib.Path(entry["file"])
        if file.is_relative_to(build):
            continue  # written by the build, not by us
        folders = [pathlib.Path(folder) for folder in re.findall(r" -I(\S+)", entry["command"])]
        stamp = cache / hash_of(entry, includes.of(file, folders), common)
        if not stamp.exists():
            waiting[entry["file"]] = stamp
    print(f"clang-tidy: {len(waiting)} files to check, {len(entries) - len(waiting)} unchanged", flush=True)

    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {pool.submit(tidy, commands, plugin, file): file for file in waiting}
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
