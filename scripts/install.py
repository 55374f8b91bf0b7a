# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Installs the dependencies of a checkout, builds the package and installs it.

The versions are those of pyproject.toml's groups; versions that fit are kept. Only the
group "wheels" is left out: scripts/wheels.py installs it elsewhere. The package itself
is installed editable, after the build of its native artefacts.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def groups() -> dict[str, list[str]]:
    """The packages of each group. Older versions of pip know no groups."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    subprocess.run(command, cwd=ROOT, check=True)


def uv_environment() -> dict[str, str]:
    """The environment in which uv has pip's settings. It does not read them itself."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    text = subprocess.run(command, capture_output=True, text=True).stdout
    settings = dict(re.findall(r"^\S*\.([\w-]+)='(.*)'$", text, re.M))
    own = {
        "UV_DEFAULT_INDEX": settings.get("index-url", ""),
        "UV_INDEX": settings.get("extra-index-url", ""),
        "UV_FIND_LINKS": ",".join(settings.get("find-links", "").split()),
        "SSL_CERT_FILE": settings.get("cert", ""),
        "UV_HTTP_TIMEOUT": "300",
    }
    return {**{name: value for name, value in own.items() if value}, **os.environ}


def uv(*arguments: str) -> None:
    pip("install", "--quiet", "uv")
    command = [sys.executable, "-m", "uv", *arguments]
    subprocess.run(command, check=True, env=uv_environment())


def install(*packages: str) -> None:
    """Installs packages with uv, which links their files from its cache, else with pip.

    pip unpacks and compiles 5 GB each time, which takes three minutes.
    """
    try:
        uv("pip", "install", "--python", sys.executable, *packages)
    except subprocess.CalledProcessError:
        print("install: uv has failed; pip may have other settings", flush=True)
        pip("install", "--quiet", *packages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", required=True, help="version of PyTorch")
    parser.add_argument("--cuda-crt", required=True, help="of nvidia-cuda-crt")
    args = parser.parse_args()
    wanted = [f"torch=={args.torch}", f"nvidia-cuda-crt=={args.cuda_crt}"]
    print(f"install: torch {args.torch} and tools, up to 5 GB", flush=True)
    others = [rs for name, rs in groups().items() if name != "wheels"]
    install(*wanted, *(r for rs in others for r in rs))
    print("install: the package; its C++ takes minutes the first time", flush=True)
    # pip would also build, but would not show the output.
    subprocess.run([sys.executable, ROOT / "scripts" / "build.py"], check=True)
    pip("install", "--quiet", "--no-build-isolation", "--no-deps", "-e", ".")


if __name__ == "__main__":
    main()
