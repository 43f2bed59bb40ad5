"""Makes PyTorch importable without NVIDIA's packages: without_cuda.py SITE_PACKAGES

PyPI's PyTorch for Linux is built with CUDA. Its libraries name those of CUDA (3 GB of packages), and the loader wants each, with
every symbol that is named, though nothing on a CPU calls them. This writes stand-ins of a few kB beside them, whose functions
return cudaErrorNoDevice: PyTorch then finds no GPU. It needs gcc and readelf.
"""

import collections
import os
import re
import subprocess
import sys
import tempfile

NO_DEVICE = 100


def read_elf(path):
    """The libraries that a file needs, the versions of symbols by library, and its symbols: undefined by version, defined."""
    text = subprocess.run(["readelf", "-W", "-d", "-V", "--dyn-syms", path], capture_output=True, text=True, check=True).stdout
    needed, versions, undefined, defined, library = set(), collections.defaultdict(set), collections.defaultdict(set), set(), None
    for line in text.splitlines():
        words = line.split()
        if match := re.search(r"\(NEEDED\).*\[(.*)\]", line):
            needed.add(match[1])
        elif match := re.search(r"Version: \d+  File: (\S+)", line):
            library = match[1]
        elif library and (match := re.search(r"  Name: (\S+)", line)):
            versions[library].add(match[1])
        elif len(words) >= 8 and re.fullmatch(r"\d+:", words[0]):
            name, _, version = words[7].partition("@")
            if words[6] != "UND":
                defined.add(name)
            elif words[4] != "WEAK":
                undefined[version.strip("@")].add(name)
    return needed, versions, undefined, defined


def write_library(path, symbols):
    """symbols: version, "" for none -> names"""
    names = sorted(set().union(*symbols.values())) if symbols else []
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/stand_in.c", "w", encoding="ascii") as file:
            for name in names:
                text = re.search("String|Name", name)
                file.write(f'const char *{name}(void) {{ return ""; }}\n' if text else f"int {name}(void) {{ return {NO_DEVICE}; }}\n")
        with open(f"{folder}/stand_in.map", "w", encoding="ascii") as file:
            for version in sorted(v for v in symbols if v):
                file.write(f"{version} {{ global: {' '.join(name + ';' for name in sorted(symbols[version]))} }};\n")
        command = ["gcc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{os.path.basename(path)}", "-o", path, f"{folder}/stand_in.c"]
        if any(symbols):
            command.append(f"-Wl,--version-script={folder}/stand_in.map")
        subprocess.run(command, check=True)


def main():
    folder = f"{sys.argv[1]}/torch/lib"
    files = {name for name in os.listdir(folder) if ".so" in name}
    wanted, versions, undefined, defined = set(), collections.defaultdict(set), collections.defaultdict(set), set()
    for name in sorted(files):
        needs, version, left, made = read_elf(f"{folder}/{name}")
        wanted |= needs
        defined |= made
        for library, names in version.items():
            versions[library] |= names
        for key, names in left.items():
            undefined[key] |= names
    missing = sorted(name for name in wanted - files if re.match(r"lib(cu|nv|nccl)", name))
    plain = {name for name in undefined[""] - defined if re.match(r"(cu|nv|nccl)", name)}  # of one of them; any will do
    for library in missing:
        symbols = {version: undefined[version] for version in versions[library]}
        if library == missing[0]:
            symbols[""] = plain
        write_library(f"{folder}/{library}", symbols)
    print(f"stand-ins for {len(missing)} libraries of CUDA")


if __name__ == "__main__":
    main()
