#!/bin/sh
# Runs a compiler, and writes what it took to FILE: time_compile.sh RUN_TEST FILE COMMAND...
run_test=$1
export SMP_TEST_TIMES="$2"
shift 2
object=
for argument; do
    [ "${before-}" != -o ] || object=$argument
    before=$argument
done
case $object in
*.o) exec "$run_test" "${object##*/CMakeFiles/}" compile 0 1 -- "$@" ;;
*) exec "$@" ;; # configuring
esac
