#!/usr/bin/env bash
# The bar, seen through a pseudo-terminal behind mpirun: it stands while the run goes on, no line of
# output has a part of it in it, and nothing of it is left, also behind an error. Without a terminal
# nothing is written that was not before.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
command -v python3 >/dev/null || exit 77
python3 -c 'import os; os.openpty()' 2>/dev/null || { echo "no pseudo-terminal here"; exit 77; }
write_text text.txt 3000
write_good_model model.yaml
expect_exit 0 smp-partition model.yaml -n 2 --stages 2 --ddp 1 --microbatches 4 --microbatch-size 1 -o two.yaml

# Runs a command on a terminal of 90 columns; says how often a bar was drawn, how wide at most, and what is
# left on the screen.
cat >watch.py <<'WATCH'
import fcntl, os, pty, re, struct, sys, termios
pid, terminal = pty.fork()
if pid == 0:
    fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 90, 0, 0))
    os.execvp(sys.argv[1], sys.argv[1:])
data = b""
while True:
    try:
        got = os.read(terminal, 65536)
    except OSError:
        break
    if not got:
        break
    data += got
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
screen, row, x, bars = [""], 0, 0, 0
for part in re.findall(r"\r|\n|\033\[K|[^\r\n\033]+|.", data.decode(), re.S):
    if part == "\r":
        x = 0
    elif part == "\n":
        row, x = row + 1, 0
        screen.append("")
    elif part == "\033[K":
        screen[row] = screen[row][:x]
    else:
        screen[row] = screen[row][:x] + part + screen[row][x + len(part):]
        x += len(part)
        assert len(screen[row]) < 90 or "[" not in screen[row], screen[row]
        bars += bool(re.fullmatch(r"\[[#.]+\] step \d+/\d+  loss [\d.e+-]+  \d+ tokens/s  \d+:\d\d left", screen[row]))
print("exit", status)
print("bars", bars)
print("\n".join(screen))
WATCH

expect_exit 0 python3 watch.py mpirun -n 2 smp-run two.yaml --data text.txt --steps 12000 --log-every 1000
expect_match out '^exit 0$'
expect_match out '^bars ([2-9]|[1-9][0-9]+)$'
expect_no_match out '#|\.\.\.|left'
expect_equal "whole lines" "$(grep -cE '^step [0-9]+  loss [0-9.]+  [0-9]+ tokens/s  .*predicted .*\)$' out)" 13
expect_match out '^median step'

# An error behind some thousand steps: the losses get infinite at once, and the job ends.
expect_exit 0 python3 watch.py mpirun -n 2 smp-run two.yaml --data text.txt --steps 1000000 --lr 1e6 --weight-decay 1000 --clip 0 \
    --max-skipped 2000 --log-every 500
expect_match out '^exit 1$'
expect_no_match out '#|\.\.\.\.|left$'
expect_match out 'smp-run: .*2000 steps in a row changed nothing'

expect_exit 0 python3 watch.py mpirun -n 2 smp-run two.yaml --data text.txt --steps 500 --progress no
expect_match out '^bars 0$'
expect_exit 0 mpirun -n 2 smp-run two.yaml --data text.txt --steps 200
expect_equal "bytes of a bar" "$(cat out err | tr -cd '\033\r' | wc -c | tr -d ' ')" 0
expect_exit 0 mpirun -n 2 smp-run two.yaml --data text.txt --steps 500 --progress yes
expect_match err '\[[#.]+\] step [0-9]+/500'
finish
