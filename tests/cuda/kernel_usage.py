#!/usr/bin/env python3
"""What the kernels for GPUs take, against kernels.txt: registers, spilled bytes, shared memory.

  kernel_usage.py BUILD [--file FILE] [--update]

BUILD: a folder in which the kernels were compiled with tests; its compiler's words are read, so
nothing is compiled again. It fails if a kernel spills more than its line says, needs so many more
registers that fewer warps fit a multiprocessor, needs more static shared memory, or is gone. A
kernel that spills must have a line, whatever it is called. --update writes the lines anew, of all
kernels that match one of the file's `key` expressions, and of those that spill. Exit code 77:
compiled by another nvcc, or for none of the file's architectures.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)'")
SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def warps(registers):
    """That fit one of the four parts of a multiprocessor: of 16,384 registers, given out by 8."""
    return min(16, 512 // (-(-max(registers, 1) // 8) * 8))


def read_usage(path):
    """(arch, mangled name) -> [registers, spilled, shared] of one source."""
    found, key, spilled = {}, None, 0
    for line in path.read_text().splitlines():
        if match := ENTRY.search(line):
            key, spilled = (match[2], match[1]), 0
        elif match := SPILL.search(line):
            spilled = int(match[1]) + int(match[2])
        elif key and (match := USED.search(line)):
            shared = SHARED.search(line)
            found[key] = [int(match[1]), spilled, int(shared[1]) if shared else 0]
            key = None
    return found


def plain(name):
    """Without the type of the result, arguments and namespaces that have no name."""
    name = name.replace("(anonymous namespace)::", "")
    name = re.sub(r"^void ", "", name)
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return name[:at]
    return name


def read_build(build):
    """(arch, source, kernel) -> [registers, spilled, shared]"""
    found = {}
    for path in sorted(build.rglob("*.cu.o.usage")):
        if path.with_suffix("").exists():
            source = path.name.removesuffix(".o.usage")
            for (arch, name), numbers in read_usage(path).items():
                found[arch, source, name] = numbers
    names = sorted({name for _, _, name in found})
    said = subprocess.run(["c++filt"], input="\n".join(names), text=True, check=True,
                          capture_output=True).stdout.splitlines()
    short = {name: plain(text) for name, text in zip(names, said)}
    return {(arch, source, short[name]): numbers for (arch, source, name), numbers in found.items()}


def read_file(path):
    head, keys, expected = [], [], {}
    for line in path.read_text().splitlines():
        words = line.split(maxsplit=5)
        if not words or words[0] in ("#", "nvcc", "key"):
            head.append(line)
            keys += [re.compile(line[4:])] if line.startswith("key ") else []
        else:
            arch, registers, spilled, shared, source, kernel = words
            expected[arch, source, kernel] = [int(registers), int(spilled), int(shared)]
    return head, keys, expected


def nvcc_of(build):
    """ "13.0" """
    for path in build.glob("CMakeFiles/*/CMakeCUDACompiler.cmake"):
        return re.search(r'COMPILER_VERSION "(\d+\.\d+)', path.read_text())[1]
    return "?"


def compare(kernel, is_now, expected):
    """What is worse, as texts."""
    registers, spilled, shared = is_now
    worse = []
    if spilled > expected[1]:
        worse.append(f"spills {spilled} bytes, expected at most {expected[1]}")
    if warps(registers) < warps(expected[0]):
        worse.append(f"{registers} registers, {4 * warps(registers)} warps to a multiprocessor; "
                     f"expected {expected[0]}, {4 * warps(expected[0])} warps")
    if shared > expected[2]:
        worse.append(f"{shared} bytes of shared memory, expected at most {expected[2]}")
    return [f"sm_{kernel[0]} {kernel[1]} {kernel[2]}: {text}" for text in worse]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--file", type=pathlib.Path,
                        default=pathlib.Path(__file__).with_name("kernels.txt"))
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()

    head, keys, expected = read_file(options.file)
    built = read_build(options.build)
    release = nvcc_of(options.build)
    if options.update:
        head = [f"nvcc {release}" if line.startswith("nvcc ") else line for line in head]
        rows = [f"{arch} {numbers[0]:3d} {numbers[1]:3d} {numbers[2]:5d} {source} {kernel}"
                for (arch, source, kernel), numbers in sorted(built.items())
                if numbers[1] > 0 or any(key.fullmatch(kernel) for key in keys)]
        options.file.write_text("\n".join(head + rows) + "\n")
        return 0
    of_file = next(line.split()[1] for line in head if line.startswith("nvcc "))
    arches = {arch for arch, _, _ in built} & {arch for arch, _, _ in expected}
    if release != of_file or not arches:
        print(f"compiled by nvcc {release} for {sorted({a for a, _, _ in built})}, "
              f"{options.file.name} is of {of_file}")
        return 77
    worse = []
    for kernel, numbers in sorted(expected.items()):
        if kernel[0] in arches and kernel not in built:
            worse.append(f"sm_{kernel[0]} {kernel[1]} {kernel[2]}: is gone")
    for kernel, numbers in sorted(built.items()):
        if kernel[0] in arches and (kernel in expected or numbers[1] > 0):
            worse += compare(kernel, numbers, expected.get(kernel, [numbers[0], 0, numbers[2]]))
    print("\n".join(worse) if worse else f"{len(built)} kernels, {len(expected)} lines: as before")
    if worse:
        print(f"if that is meant: {sys.argv[0]} {options.build} --update")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
