#!/bin/sh
# Runs the compiler of CUDA, which -Xptxas=-v makes say what every kernel takes, and keeps that beside
# the object: FILE.o.usage, for kernel_usage.py.
object=
for argument; do
    [ "$before" != -o ] || object=$argument
    before=$argument
done
[ -n "$object" ] || exec "$@"
"$@" 2>"$object.said"
status=$?
grep -E '^ptxas info|^ +[0-9]+ bytes stack frame' "$object.said" >"$object.usage"
grep -vE '^ptxas info|^ +[0-9]+ bytes stack frame' "$object.said" >&2
rm -f "$object.said"
exit "$status"
