"""Packs an installed prefix (components programs and finds_libtorch) as a wheel: the programs as they are, and a
dependency on torch, whose libraries they load. No Python runs in them.

usage: make_wheel.py PREFIX VERSION TORCH_VERSION FOLDER; prints the wheel's path."""
import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile

prefix, version, torch, folder = sys.argv[1:]
name = f"tessera-{version}"
major, minor = torch.split(".")


def newest_glibc():
    """(2, minor) that the programs ask for: older systems are not told to install this."""
    newest = 0
    for program in os.listdir(f"{prefix}/bin"):
        text = subprocess.run(["objdump", "-T", f"{prefix}/bin/{program}"], capture_output=True, text=True, check=True).stdout
        newest = max([newest, *(int(found) for found in re.findall(r"GLIBC_2\.(\d+)", text))])
    return newest


tag = f"py3-none-manylinux_2_{newest_glibc()}_{os.uname().machine}"
files = {}  # by their names in the wheel: contents and mode
for place, _, names in os.walk(prefix):
    for each in names:
        path = os.path.join(place, each)
        below = os.path.relpath(path, prefix)
        program = below.startswith("bin" + os.sep)
        target = f"{name}.data/scripts/{each}" if program else f"{name}.data/data/{below}"
        with open(path, "rb") as file:
            files[target] = (file.read(), 0o755 if program else 0o644)
files[f"{name}.dist-info/METADATA"] = (
    f"""Metadata-Version: 2.1
Name: tessera
Version: {version}
Summary: Scales model training from one device to many, without Python
License: see share/doc/tessera/LICENSE
Requires-Dist: torch >={torch}, <{major}.{int(minor) + 1}
""".encode(), 0o644)
files[f"{name}.dist-info/WHEEL"] = (
    f"Wheel-Version: 1.0\nGenerator: make_wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), 0o644)

record = ""
for target, (content, _) in sorted(files.items()):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    record += f"{target},sha256={digest},{len(content)}\n"
files[f"{name}.dist-info/RECORD"] = (f"{record}{name}.dist-info/RECORD,,\n".encode(), 0o644)

wheel = f"{folder}/{name}-{tag}.whl"
with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as packed:
    for target, (content, mode) in files.items():
        info = zipfile.ZipInfo(target, (2020, 1, 1, 0, 0, 0))  # the same files, the same wheel
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        packed.writestr(info, content)
print(wheel)
