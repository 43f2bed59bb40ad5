#!/usr/bin/env python3
"""Hosts of a test on one machine: namespaces of network, names, mounts and processes for each, with memory of
its own as /dev/shm and /tmp, and a bridge between them. Needs root.

    fake_hosts.py up FOLDER N [RATE]    makes h1 .. hN (10.77.0.1 ..); RATE as tc writes it, such as 200mbit
    fake_hosts.py run FOLDER HOST COMMAND...   on a host, from outside; signals go to the command
    fake_hosts.py shell HOST LINE...    from one of the hosts on another: stands for ssh
    fake_hosts.py cut|join FOLDER HOST  its link goes down, or up again
    fake_hosts.py kill FOLDER HOST      loses power: nobody hears of it, its memory is gone
    fake_hosts.py back FOLDER HOST      ... and is started again
    fake_hosts.py down FOLDER

FOLDER is what hosts share, as a file system that all of them have mounted; the sources and the programs, too.
Exit code 77 of `up`: hosts cannot be made here.
"""
import ctypes
import json
import os
import pathlib
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PORT = 22
SKIPPED, NO_CONNECTION = 77, 255  # exit codes; the second as of ssh
NAMESPACES = {"mnt": 0x00020000, "uts": 0x04000000, "ipc": 0x08000000, "pid": 0x20000000, "net": 0x40000000}
MS_REC, MS_PRIVATE, MS_BIND = 0x4000, 0x40000, 0x1000
PR_SET_PDEATHSIG = 1
FRAME = struct.Struct("!BI")  # what it is: descriptor 1 or 2, or 0, an exit code; bytes
libc = ctypes.CDLL(None, use_errno=True)


def check(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def can_be_made():
    with tempfile.TemporaryDirectory() as folder:
        hosts = Hosts(folder)
        try:
            hosts.make(1)
            hosts.remove()
        except (OSError, subprocess.CalledProcessError):
            subprocess.run(["ip", "netns", "del", hosts.switch], check=False, capture_output=True)
            return False
    return True


def mount(source, target, kind, flags=0):
    check(libc.mount(os.fsencode(source), os.fsencode(target), kind.encode(), flags, None))


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Hosts:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        self.state = self.folder / "fake-hosts"
        self.switch = f"smp{zlib.crc32(str(self.folder).encode()):08x}"

    def process(self, host):
        return int((self.state / host).read_text())

    def make(self, count, rate=""):
        self.state.mkdir()
        (self.state / "rate").write_text(rate)
        (self.state / "names").write_text(
            "127.0.0.1 localhost\n" + "".join(f"10.77.0.{n} h{n}\n" for n in range(1, count + 1)))
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")
        for number in range(1, count + 1):
            self.start(f"h{number}")

    def start(self, host):
        """Its first process, which serves `shell`. Returns when it does."""
        told, tell = os.pipe()
        begin, go = os.pipe()
        between = os.fork()
        if between == 0:
            os.setsid()
            for file in (0, 1, 2):
                os.dup2(os.open("/dev/null", os.O_RDWR), file)
            check(libc.unshare(sum(NAMESPACES.values())))
            first = os.fork()
            if first > 0:
                os.write(tell, b"%d\n" % first)
                os._exit(0)
            os.close(go)
            if os.read(begin, 1):
                self.live(host, tell)
            os._exit(1)
        os.close(tell)
        os.close(begin)
        os.waitpid(between, 0)
        first = int(os.read(told, 16).split()[0])
        number = host[1:]
        ip("link", "add", f"v{number}", "netns", self.switch, "type", "veth", "peer", "name", "eth0",
           "address", f"02:00:00:00:00:{int(number):02x}", "netns", str(first))
        ip("-n", self.switch, "link", "set", f"v{number}", "master", "bridge", "up")
        os.write(go, b"g")
        os.close(go)
        if os.read(told, 16) != b"ready":
            raise OSError(f"{host} cannot be made: {(self.state / f'{host}.refused').read_text()}")
        os.close(told)
        (self.state / host).write_text(f"{first}\n")

    def live(self, host, tell):
        """The first process of a host, to its end."""
        try:
            self.furnish(host)
            server = socket.create_server((f"10.77.0.{host[1:]}", PORT))
            os.write(tell, b"ready")
            os.close(tell)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever ends is reaped
            serve(server)
        except BaseException as failure:
            (self.state / f"{host}.refused").write_text(repr(failure))

    def furnish(self, host):
        mount("none", "/", "", MS_REC | MS_PRIVATE)
        mount("proc", "/proc", "proc")
        mount("memory", "/dev/shm", "tmpfs")
        shared = {self.folder, SOURCE, pathlib.Path(os.environ.get("SMP_BIN_DIR", SOURCE)).resolve()}
        temporary = pathlib.Path("/tmp")
        hidden = {path: os.open(path, os.O_PATH) for path in sorted(shared) if temporary in path.parents}
        mount("memory", temporary, "tmpfs")
        os.chmod(temporary, 0o1777)
        for path, file in hidden.items():
            path.mkdir(parents=True, exist_ok=True)
            mount(f"/proc/self/fd/{file}", path, "", MS_REC | MS_BIND)
            os.close(file)
        mount(self.state / "names", "/etc/hosts", "", MS_BIND)
        socket.sethostname(host)
        ip("addr", "add", f"10.77.0.{host[1:]}/24", "dev", "eth0")
        ip("link", "set", "eth0", "up")
        ip("link", "set", "lo", "up")
        rate = (self.state / "rate").read_text()
        if rate:
            subprocess.run(["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "128k",
                            "latency", "400ms"], check=True)
        os.chdir(self.folder)

    def link(self, host, state):
        ip("-n", self.switch, "link", "set", f"v{host[1:]}", state)

    def kill(self, host):
        process = self.process(host)
        self.link(host, "down")
        os.kill(process, signal.SIGKILL)
        end = time.monotonic() + 10
        while time.monotonic() < end and pathlib.Path(f"/proc/{process}/ns/pid").exists():
            time.sleep(0.01)
        (self.state / host).unlink()
        subprocess.run(["ip", "-n", self.switch, "link", "del", f"v{host[1:]}"], check=False, capture_output=True)

    def remove(self):
        for path in sorted(self.state.glob("h[0-9]*")):
            if path.suffix != ".refused":
                self.kill(path.name)
        subprocess.run(["ip", "netns", "del", self.switch], check=False, capture_output=True)
        for path in self.state.glob("*"):
            path.unlink()
        self.state.rmdir()

    def run(self, host, command):
        """On the host, as a child that ends with this process; its exit code."""
        process = self.process(host)
        where = os.getcwd()
        files = {name: os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY) for name in NAMESPACES}
        for name in ("net", "uts", "ipc", "pid", "mnt"):
            check(libc.setns(files[name], NAMESPACES[name]))
        os.chdir(where)
        child = os.fork()
        if child == 0:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            for file in files.values():
                os.close(file)
            try:
                os.execvp(command[0], command)
            finally:
                os._exit(127)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, lambda number, _: os.kill(child, number))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# What stands for ssh: a connection for each command, as its standard streams.


def serve(server):
    while True:
        connection, _ = server.accept()
        if os.fork() == 0:
            server.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            keep_alive(connection)
            try:
                attend(connection)
            except OSError:
                pass
            os._exit(0)
        connection.close()


def keep_alive(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 5000)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def attend(connection):
    """Runs the command of a connection; when that breaks the command's streams are closed."""
    line = b""
    while not line.endswith(b"\n"):
        piece = connection.recv(1)
        if not piece:
            return
        line += piece
    request = json.loads(line)
    os.chdir(request["folder"])
    child = subprocess.Popen(["/bin/sh", "-c", request["command"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, start_new_session=True, env={**os.environ, **request["environment"]})
    streams = {child.stdout.fileno(): 1, child.stderr.fileno(): 2}
    reading = [connection, *streams]
    while set(reading) & set(streams):
        for at in select.select(reading, [], [])[0]:
            if at is connection:
                piece = connection.recv(1 << 16)
                if piece:
                    child.stdin.write(piece)
                    child.stdin.flush()
                else:
                    child.stdin.close()
                    reading.remove(connection)
            else:
                piece = os.read(at, 1 << 16)
                if not piece:
                    reading.remove(at)
                connection.sendall(FRAME.pack(streams[at], len(piece)) + piece)
    connection.sendall(FRAME.pack(0, 1) + bytes([child.wait() % 256]))


def receive(connection, count):
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise OSError("closed")
        data += piece
    return data


def shell(host, command):
    """A client of `attend`: the exit code."""
    names = [name for name in os.environ if name.startswith(("SMP_TRIAL", "FAULT_"))]
    request = {"command": command, "folder": os.getcwd(), "environment": {name: os.environ[name] for name in names}}
    try:
        connection = socket.create_connection((host, PORT), 3)
        connection.settimeout(None)
        keep_alive(connection)
        connection.sendall(json.dumps(request).encode() + b"\n")
        reading = [connection, 0]
        while True:
            ready = select.select(reading, [], [])[0]
            if 0 in ready:
                piece = os.read(0, 1 << 16)
                if piece:
                    connection.sendall(piece)
                else:
                    connection.shutdown(socket.SHUT_WR)
                    reading.remove(0)
            if connection in ready:
                what, count = FRAME.unpack(receive(connection, FRAME.size))
                piece = receive(connection, count)
                if what == 0:
                    return piece[0]
                while piece:
                    piece = piece[os.write(what, piece):]
    except OSError as failure:
        print(f"{host}: {failure}", file=sys.stderr)
        return NO_CONNECTION


def main(words):
    if len(words) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    what, where, *rest = words
    if what == "shell":
        return shell(where, " ".join(rest))
    hosts = Hosts(where)
    if what == "up":
        try:
            hosts.make(int(rest[0]), *rest[1:2])
        except (OSError, subprocess.CalledProcessError) as failure:
            print(f"no hosts can be made here: {getattr(failure, 'stderr', None) or failure}")
            return SKIPPED
    elif what == "run":
        code = hosts.run(rest[0], rest[1:])
        return code if code >= 0 else 128 - code
    elif what == "down":
        hosts.remove()
    else:
        {"kill": hosts.kill, "back": hosts.start, "cut": lambda host: hosts.link(host, "down"),
         "join": lambda host: hosts.link(host, "up")}[what](rest[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
