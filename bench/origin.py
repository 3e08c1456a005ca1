"""Where a figure comes from."""
import os
import pathlib
import platform
import subprocess


def processor():
    if platform.system() == "Linux":
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores"
    return platform.processor()


def origin(what):
    """What ran, on which machine, at which commit."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {"what": what, "machine": processor(), "commit": commit}
