#!/usr/bin/env python3
"""How well do the tests hold a C file? Changes it in one place at a time and runs the tests.

A mutant is the file with one seeded change: a comparison or an arithmetic operator swapped, &&
and || exchanged, a constant one off, a condition negated, a statement or an early return left
out. It is *killed* when a test fails, *survives* when none does. Mutants that do not compile, or
compile to the same object code, say nothing and do not count. Survivors are printed as
differences: each is a test that is missing, or a change that cannot be seen from outside.

Nothing happens in the tree itself: DIR gets a copy and its build, in which the mutants are made,
and another copy built with gcov that tells which tests run which lines (measured when it is not
known yet or the test changed). The tests of a mutant are those of the ordinary run, without the
emulator of CUDA, that run its line, the quickest and deadliest first, one more at a time than there
are cores. DIR may be kept: later runs reuse it.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import difflib
import fcntl
import filecmp
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:\\.|[^\n\\])*)
    |(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<number>(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[uUlLfF]*)
    |(?P<word>\w+)
    |(?P<sign><<=|>>=|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|.)""",
    re.S | re.M | re.X)

SWAPS = {"<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",),
         "!=": ("==",), "&&": ("||",), "||": ("&&",), "+": ("-",), "-": ("+",), "*": ("/",),
         "/": ("*",), "%": ("/",), "&": ("|",), "|": ("&",), "<<": (">>",), ">>": ("<<",),
         "+=": ("-=",), "-=": ("+=",), "*=": ("/=",), "/=": ("*=",), "|=": ("&=",), "&=": ("|=",),
         "++": ("--",), "--": ("++",), "true": ("false",), "false": ("true",)}
UNARY = {"-", "+", "*", "&"}  # as binary operators they stand between spaces
CONTROL = {"if", "for", "while", "switch"}
NOT_A_TYPE = {"return", "goto", "else", "do", "case", "sizeof", "break", "continue"}

Mutant = collections.namedtuple("Mutant", "begin end text")
Test = collections.namedtuple("Test", "name command environment folder target alone")


def tokens_of(source):
    """Tokens (kind, text, begin, end) without blanks, comments and preprocessor lines."""
    return [(m.lastgroup, m.group(), m.start(), m.end()) for m in TOKEN.finditer(source)
            if m.lastgroup != "skip"]


class Reader:
    """Walks the bodies of functions, statement by statement, and collects mutants."""

    def __init__(self, source):
        self.source, self.tokens = source, tokens_of(source)
        self.closing = self.match_brackets()
        self.mutants = []

    def match_brackets(self):
        stack, closing = [], {}
        for i, token in enumerate(self.tokens):
            if token[1] in "([{":
                stack.append(i)
            elif token[1] in ")]}":
                closing[stack.pop()] = i
        return closing

    def text(self, i):
        return self.tokens[i][1] if 0 <= i < len(self.tokens) else ""

    def add(self, first, last, text):
        self.mutants.append(Mutant(self.tokens[first][2], self.tokens[last][3], text))

    def read(self):
        i = 0
        while i < len(self.tokens):
            if self.text(i) == "{" and self.text(i - 1) == ")":
                self.read_block(i, outermost=True)
            i = self.closing.get(i, i) + 1 if self.text(i) == "{" else i + 1
        return sorted(set(self.mutants))

    def read_block(self, open_brace, outermost=False):
        i, end = open_brace + 1, self.closing[open_brace]
        while i < end:
            i = self.read_statement(i, end if outermost else None)

    def read_statement(self, i, end_of_function):
        """Reads the statement at i; returns the index after it."""
        word = self.text(i)
        if word == "{":
            self.read_block(i)
            return self.closing[i] + 1
        if word in CONTROL:
            return self.read_statement(self.read_head(i), None)
        if word in ("else", "do"):
            return self.read_statement(i + 1, None)
        if word in ("case", "default"):
            while self.text(i) != ":":
                i += 1
            return i + 1
        end = i
        while self.text(end) != ";":
            end = self.closing.get(end, end) + 1
        declaration = self.is_declaration(i)
        final = word == "return" and end + 1 == end_of_function
        if end > i and not declaration and not final and word != "goto":
            self.add(i, end - 1, "")
        self.read_expression(i, end, declaration)
        return end + 1

    def read_head(self, i):
        """if, for, while or switch with its parentheses; returns the index after them."""
        word, first, last = self.text(i), i + 2, self.closing[i + 1]
        if word in ("if", "while"):
            self.add(first, last - 1, "!(" + self.source_of(first, last - 1) + ")")
        self.read_expression(first, last, word == "for" and self.is_declaration(first))
        return last + 1

    def source_of(self, first, last):
        return self.source[self.tokens[first][2]:self.tokens[last][3]]

    def is_declaration(self, i):
        if self.tokens[i][0] != "word" or self.text(i) in NOT_A_TYPE:
            return False
        i += 1
        while self.text(i) == "*":
            i += 1
        return self.tokens[i][0] == "word"

    def read_expression(self, i, end, declaration):
        """Operators and constants; what declares a name stays as it is."""
        declaring = declaration
        while i < end:
            if self.text(i) == "=":
                declaring = False
            elif self.text(i) == ";":
                declaration = declaring = False
            elif self.text(i) == "," and declaration:
                declaring = True
            elif not declaring:
                self.mutate_token(i)
                if declaration and i in self.closing:  # commas inside belong to the value
                    self.read_expression(i + 1, self.closing[i], False)
                    i = self.closing[i]
            i += 1

    def mutate_token(self, i):
        kind, text, begin, end = self.tokens[i]
        spaced = self.source[begin - 1].isspace() and self.source[end:end + 1].isspace()
        if kind == "number":
            for other in one_off(text):
                self.add(i, i, other)
        elif text == "!":
            self.add(i, i, "")
        elif text == "?":
            self.add(i, i, "== 0 ?")
        elif text not in UNARY or spaced:
            for other in SWAPS.get(text, ()):
                self.add(i, i, other)


def one_off(number):
    if re.fullmatch(r"\d+[uUlL]*", number):
        digits = re.match(r"\d+", number).group()
        value, suffix = int(digits), number[len(digits):]
        return [f"{other}{suffix}" for other in (value + 1, value - 1) if other >= 0]
    return [f"({number} + 1)", f"({number} - 1)"]


def changed(source, mutant):
    return source[:mutant.begin] + mutant.text + source[mutant.end:]


def line_of(source, mutant):
    return source.count("\n", 0, mutant.begin) + 1


def copy_tree(source, target):
    """Makes target a copy, without builds; what is the same already keeps its time."""
    keep = set()
    for folder, names, files in os.walk(source):
        names[:] = [n for n in names if n != ".git" and not n.startswith("build")
                    and Path(folder, n).resolve() != target.parent]
        for name in files:
            path = Path(folder, name)
            copy = target / path.relative_to(source)
            keep.add(copy)
            if not copy.exists() or not filecmp.cmp(path, copy, shallow=False):
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
                shutil.copymode(path, copy)
    for folder, _, files in os.walk(target):
        for name in files:
            if Path(folder, name) not in keep:
                Path(folder, name).unlink()


def quiet(command):
    """Runs a command that must succeed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"mutate: {shlex.join(map(str, command))}:\n{done.stdout[-4000:]}")


def configure(tree, build, *options):
    if not (build / "CTestTestfile.cmake").exists():
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        quiet(["cmake", "-S", tree, "-B", build, *generator, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
               "-DSMP_WITH_CUDA=OFF", "-DSMP_BUILD_EMULATOR=OFF", "-DSMP_BUILD_BENCH=OFF",
               "-DSMP_WERROR=OFF", *options])


def make(build, targets, must=True):
    command = ["cmake", "--build", build, "-j", str(os.cpu_count()), "--target", *targets]
    if must:
        return quiet(command)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return done.returncode == 0


def tests_of(build, pattern):
    """The tests of a build whose names match, built. A program of the build is made by the target
    of its name, what scripts run by `for_scripts`."""
    make(build, ["run_test"], must=False)  # ctest knows no command of a program that is not there
    tests = list_tests(build, pattern)
    if tests:
        make(build, {test.target for test in tests.values()})
    return list_tests(build, pattern)


def list_tests(build, pattern):
    listing = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"],
                             stdout=subprocess.PIPE, check=True).stdout
    tests = {}
    for entry in json.loads(listing)["tests"]:
        if not re.search(pattern, entry["name"]):
            continue
        properties = {p["name"]: p["value"] for p in entry["properties"]}
        if "long" in properties.get("LABELS", []):
            continue
        environment = dict(e.split("=", 1) for e in properties.get("ENVIRONMENT", []))
        command = entry.get("command", [f"{build}/{entry['name']}"])
        if "--" in command:  # without run_test: its budget is not that of a build with counters
            command = command[command.index("--") + 1:]
        programs = [Path(word).name for word in command
                    if word.startswith(f"{build}/") and "." not in Path(word).name]
        tests[entry["name"]] = Test(entry["name"], command, environment,
                                    properties.get("WORKING_DIRECTORY", str(build)),
                                    programs[-1] if programs else "for_scripts",
                                    bool(properties.get("RUN_SERIAL")))
    return tests


def limits():
    """No core files, no file larger than 8 GiB. (Memory: the shadow of ASan forbids a limit.)"""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 30, 8 << 30))


def run_test(test, limit_s, stop=None, **environment):
    """Exit code (None: out of time, or ended by the event `stop`) and seconds."""
    began = time.monotonic()
    process = subprocess.Popen(test.command, cwd=test.folder, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env={**os.environ, **test.environment, **environment},
                               start_new_session=True, preexec_fn=limits)
    code = None
    try:
        while code is None and time.monotonic() - began < limit_s and not (stop and stop.is_set()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(0.2)
    finally:
        if code is None:
            end_group(process)
    return code, time.monotonic() - began


def session_of(leader):
    """Processes of a session, whatever groups they are in: `timeout` makes one of its own."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rsplit(")", 1)[1].split()[3]) == leader:
                found.append(int(path.parent.name))
    return found


def end_group(process):
    """Politely first: mpirun then ends its ranks."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in session_of(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)


class Coverage:
    """Which tests run which lines. In `data` a folder per test: counters, and result.json."""

    def __init__(self, source, work):
        self.tree, self.build, self.data = work / "cover-tree", work / "cover", work / "cover-data"
        copy_tree(source, self.tree)

    def measure(self, pattern, file):
        """Counters mean something to the object that they were written by."""
        flags = "-O2 --coverage"
        configure(self.tree, self.build, "-DCMAKE_BUILD_TYPE=Debug",
                  f"-DCMAKE_C_FLAGS_DEBUG={flags}", f"-DCMAKE_CXX_FLAGS_DEBUG={flags}")
        tests = tests_of(self.build, pattern)
        objects = list(self.build.rglob(f"{file}.gcno"))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as several:
            list(several.map(lambda test: self.measure_test(test, objects), tests.values()))

    def measure_test(self, test, objects):
        result = self.data / test.name / "result.json"
        files = [Path(word) for word in test.command
                 if word.startswith((f"{self.build}/", f"{self.tree}/"))]
        newest = max((f.stat().st_mtime for f in files + objects if f.exists()), default=0)
        if result.exists() and result.stat().st_mtime >= newest:
            return
        shutil.rmtree(result.parent, ignore_errors=True)
        result.parent.mkdir(parents=True)
        code, seconds = run_test(test, 1800, GCOV_PREFIX=str(result.parent))
        failed = "" if code == 0 else f", code {code}"
        # In one piece: others print at the same time.
        print(f"measured {test.name}: {seconds:.1f} s{failed}\n", end="", file=sys.stderr, flush=True)
        result.write_text(json.dumps({"code": code, "seconds": seconds}))

    def seconds(self, name):
        """Of a test that passed; None for others."""
        result = self.data / name / "result.json"
        if not result.exists():
            return None
        result = json.loads(result.read_text())
        return result["seconds"] if result["code"] == 0 else None

    def lines(self, name, file):
        """{line: count} of the file in a test, empty where the test does not use it."""
        counts = {}
        for counters in (self.data / name).rglob(f"{file.name}.gcda"):
            if not str(counters.with_suffix("")).endswith(f"/{file}"):
                continue
            notes = Path("/", counters.relative_to(self.data / name)).with_suffix(".gcno")
            shutil.copyfile(notes, counters.with_suffix(".gcno"))
            report = subprocess.run(["gcov", "--json-format", "--stdout", counters],
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
            for entry in (e for text in report.splitlines() for e in json.loads(text)["files"]):
                if entry["file"].endswith(str(file)):
                    for line in entry["lines"]:
                        number = line["line_number"]
                        counts[number] = counts.get(number, 0) + line["count"]
        return counts


class Session:
    """The builds in which mutants of one file are made and tried."""

    def __init__(self, source, work, options, coverage):
        tree, self.build = work / "mutant-tree", work / "mutant"
        self.path = tree / options.file
        copy_tree(source, tree)
        configure(tree, self.build, "-DCMAKE_BUILD_TYPE=Release")
        self.source = self.path.read_text()
        self.object = self.build / "one.o"
        self.compile = self.compile_command()
        self.original = self.compiled()
        tests = tests_of(self.build, options.tests)
        self.tried = [(self.build, tests)]
        if options.sanitize:
            sanitized = work / "sanitized"
            configure(tree, sanitized, "-DCMAKE_BUILD_TYPE=Debug",
                      "-DCMAKE_C_FLAGS_DEBUG=-O1 -g", "-DSMP_SANITIZE=ON")
            self.tried.append((sanitized, tests_of(sanitized, options.tests)))
        self.seconds = {name: coverage.seconds(name) for name in tests}
        self.covered = {name: coverage.lines(name, options.file) for name in tests
                        if self.seconds[name] is not None}
        self.known = sorted({line for counts in self.covered.values() for line in counts})
        self.kills = collections.Counter()

    def compile_command(self):
        for entry in json.loads((self.build / "compile_commands.json").read_text()):
            if entry["file"] == str(self.path):
                words = shlex.split(entry["command"])
                words[words.index("-o") + 1] = str(self.object)
                return words, entry["directory"]
        return sys.exit(f"mutate: no target compiles {self.path}")

    def compiled(self):
        """The object code, None where the file does not compile."""
        words, folder = self.compile
        done = subprocess.run([*words, "-w"], cwd=folder, stderr=subprocess.DEVNULL)
        return self.object.read_bytes() if done.returncode == 0 else None

    def tests_at(self, line):
        """Those that run the line; gcov gives a statement of several lines to its first."""
        line = max((known for known in self.known if known <= line), default=line)
        names = [name for name, counts in self.covered.items() if counts.get(line, 0) > 0]
        return sorted(names, key=lambda name: self.seconds[name] / (1 + self.kills[name]))

    def attempt(self, mutant):
        """(killed, survived, same code or no code; why)"""
        self.path.write_text(changed(self.source, mutant))
        try:
            code = self.compiled()
            if code is None:
                return "no code", "does not compile"
            if code == self.original:
                return "same code", "the same object code"
            return self.try_tests(self.tests_at(line_of(self.source, mutant)))
        finally:
            self.path.write_text(self.source)

    def try_tests(self, names):
        for build, tests in self.tried:
            there = [tests[name] for name in names if name in tests]
            for group, workers in (([t for t in there if not t.alone], os.cpu_count() + 1),
                                   ([t for t in there if t.alone], 1)):
                why = self.try_together(build, group, workers)
                if why:
                    return "killed", why
        return "survived", f"{len(names)} tests" if names else "no test runs the line"

    def try_together(self, build, tests, workers):
        """Runs tests until one fails; what that one said, or None."""
        killed, stop, made = [], threading.Event(), set()

        def run(test):
            if stop.is_set():
                return
            code, seconds = run_test(test, 10 + 5 * self.seconds[test.name], stop)
            if code not in (0, 77) and not stop.is_set():
                stop.set()
                self.kills[test.name] += 1
                hangs = ", hangs" if code is None else ""
                killed.append(f"{test.name} in {build.name}, {seconds:.1f} s{hangs}")

        try:
            with concurrent.futures.ThreadPoolExecutor(workers) as several:
                for test in tests:
                    if test.target not in made and not make(build, [test.target], must=False):
                        stop.set()
                        killed.append(f"{test.target} does not build")
                    made.add(test.target)
                    if stop.is_set():
                        break
                    several.submit(run, test)
        finally:  # also where this run is ended
            stop.set()
        return killed[0] if killed else None


def difference(file, source, mutant):
    lines = difflib.unified_diff(source.splitlines(), changed(source, mutant).splitlines(),
                                 n=0, lineterm="")
    shown = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    return f"{file}:{line_of(source, mutant)}:\n" + "\n".join(shown)


def mutants_of(source, options):
    lines = source.splitlines()
    mutants = [m for m in Reader(source).read()
               if not options.skip or not re.search(options.skip, lines[line_of(source, m) - 1])]
    if options.lines:
        first, last = options.lines
        mutants = [m for m in mutants if first <= line_of(source, m) <= last]
    count = min(options.count, len(mutants))
    return random.Random(options.seed).sample(mutants, count), len(mutants)


def report(file, source, found, possible, seconds):
    survivors = [mutant for mutant, kind in found if kind == "survived"]
    for mutant in survivors:
        print(difference(file, source, mutant))
    counts = collections.Counter(kind for _, kind in found)
    valid = counts["killed"] + counts["survived"]
    share = 100 * counts["killed"] / valid if valid else 100
    print(f"{file}: {len(found)} of {possible} mutants: {counts['killed']} killed, "
          f"{counts['survived']} survived, {counts['same code']} same code, "
          f"{counts['no code']} do not compile: {share:.1f} % of {valid}, {seconds:.0f} s")
    return share


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the C file, relative to the tree")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=50, help="mutants to try (50)")
    parser.add_argument("--lines", type=lambda text: tuple(map(int, text.split("-"))),
                        metavar="A-B", help="only change these lines")
    parser.add_argument("--skip", metavar="REGEX", help="change no line that matches")
    parser.add_argument("--tests", default="", metavar="REGEX",
                        help="only tests whose name matches")
    parser.add_argument("--sanitize", action="store_true",
                        help="what survives runs once more under ASan and UBSan")
    parser.add_argument("--build", type=Path, required=True, metavar="DIR", help="where to work")
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parents[2],
                        metavar="TREE", help="the tree (the one this script lies in)")
    parser.add_argument("--at-least", type=float, default=0, metavar="PERCENT",
                        help="exit 1 when fewer are killed")
    parser.add_argument("--list", action="store_true", help="print the mutants and try none")
    return parser.parse_args()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a running test is ended
    options = parse_arguments()
    source = (options.source / options.file).read_text()
    mutants, possible = mutants_of(source, options)
    if options.list:
        print("\n".join(difference(options.file, source, mutant) for mutant in mutants))
        return 0
    work = options.build.resolve()
    work.mkdir(parents=True, exist_ok=True)
    with open(work / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        began = time.monotonic()
        coverage = Coverage(options.source.resolve(), work)
        coverage.measure(options.tests, options.file)
        session = Session(options.source.resolve(), work, options, coverage)
        found = []
        try:
            for mutant in mutants:
                kind, why = session.attempt(mutant)
                found.append((mutant, kind))
                print(f"{kind}: line {line_of(source, mutant)}: {why}", file=sys.stderr, flush=True)
        finally:  # also of a run that is ended early
            share = report(options.file, source, found, possible, time.monotonic() - began)
    return int(share < options.at_least)


if __name__ == "__main__":
    sys.exit(main())
