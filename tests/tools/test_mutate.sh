#!/usr/bin/env bash
# mutate.py on a toy: what a test holds is killed, what none holds survives and is shown, what changes
# nothing does not count, comments, strings, preprocessor lines and declarations stay as they are.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
for tool in python3 gcov; do
    command -v "$tool" >/dev/null || { echo "mutate: $tool not found"; exit 77; }
done
limit_s=120

mkdir toy
cat >toy/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.25)
project(toy C)
set(CMAKE_C_FLAGS_RELEASE "-O2")
if(SMP_SANITIZE)
  add_compile_options(-fsanitize=address)
  add_link_options(-fsanitize=address)
endif()
enable_testing()
foreach(name test_quick test_other)
  add_executable(${name} ${name}.c toy.c)
  add_test(NAME ${name} COMMAND ${name})
endforeach()
END
cat >toy/toy.c <<'END'
/* A toy < b, c + 1. */
#define ONE (2 - 1)
struct pair { int a[3]; };
static const int table[2] = {4, 5};
int sum(int a, int b)
{
    return a + b; // a - b
}
int large(int n)
{
    char text[8] = "a < b";
    if (n > 100)
        return ONE;
    return text[0] == 'b';
}
int same(int n)
{
    n = n * 1;
    return n;
}
long between(const char *begin, const char *end)
{
    return end - begin;
}
int unused(int n)
{
    return table[n & 1];
}
int third(const int *array, int n)
{
    return n > 2 ? array[2] : 0;
}
END
cat >toy/test_quick.c <<'END'
#include <stdlib.h>
int sum(int, int), large(int), same(int), third(const int *, int);
long between(const char *, const char *);
int main(void)
{
    const char *text = "text";
    int *two = calloc(2, sizeof *two), three[4] = {1, 2, 3};
    int wrong = third(two, 2) != 0 || third(three, 3) != 3;
    free(two);
    return wrong || sum(3, 4) != 7 || large(5) != 0 || large(1000) != 1 || same(3) != 3 ||
           between(text, text + 4) != 4;
}
END
echo 'int main(void) { return 0; }' >toy/test_other.c
find toy -type f -exec cksum {} + >before

mutate() { # expected exit code, options...
    expect_exit "$1" python3 "$SMP_SOURCE_DIR/tests/tools/mutate.py" --source toy --build work toy.c "${@:2}"
}

mutate 0 --list --count 100
sed -n 's/^toy.c:\([0-9]*\):$/\1/p' out | sort -n | uniq -c | awk '{print $2 "x" $1}' >lines
expect_equal "mutants by line" "$(paste -sd' ' lines)" "7x1 12x5 13x1 14x2 18x4 23x1 27x3 31x8"
cp out all
mutate 0 --list --count 5 --seed 7
cp out five
mutate 0 --list --count 5 --seed 7
expect_equal "the same seed" "$(cmp out five && echo same)" same
mutate 0 --list --count 5 --seed 8
expect_equal "another seed" "$(cmp -s out five || echo other)" other

# Killed: the sum, and of `n > 100` the turned and the negated one. Survivors: >=, 99, 101.
mutate 0 --count 100 --lines 7-12
expect_match out '6 of 6 mutants: 3 killed, 3 survived, 0 same code, 0 do not compile: 50.0 % of 6'
expect_match err '^killed: line 7: test_quick in mutant, '
expect_match err '^survived: line 12: 1 tests$' # the other test does not run the line
expect_match out '^\+    if \(n >= 100\)$'
expect_match out '^\+    if \(n > 99\)$'
expect_no_match out '^\+    if \(n <= 100\)$'
expect_no_match err '^measured test_quick: .* code' # it passes
cp err measured

# Neither `n / 1` nor nothing at all changes the code; pointers cannot be added; no test runs line 27.
mutate 0 --count 100 --lines 18-23
expect_match out '5 of 5 mutants: 2 killed, 0 survived, 2 same code, 1 do not compile: 100.0 % of 2'
expect_match err '^no code: line 23: '
expect_equal "measured once" "$(grep -c '^measured' measured; grep -c '^measured' err || true)" "$(printf '2\n0')"
mutate 1 --count 100 --lines 27-27 --at-least 95
expect_match out '3 of 3 mutants: 0 killed, 3 survived'
expect_match err '^survived: line 27: no test runs the line$'
mutate 0 --count 100 --lines 27-27 --skip table
expect_match out '0 of 0 mutants'

# What reads too far is seen under ASan alone.
mutate 0 --count 100 --lines 31-31 --sanitize
expect_match out '8 of 8 mutants: 8 killed, 0 survived'
expect_equal "killed without it" "$(grep -c '^killed: line 31: test_quick in mutant, ' err)" 6
expect_equal "killed under it alone" "$(grep -c '^killed: line 31: test_quick in sanitized, ' err)" 2
if [ -n "${SMP_TEST_LONG-}" ]; then
    mutate 0 --count 100 --lines 31-31
    expect_match out '8 of 8 mutants: 6 killed, 2 survived'
fi
mutate 0 --count 1 --lines 7-7 --tests other
expect_match err '^survived: line 7: no test runs the line$'

find toy -type f -exec cksum {} + >after
expect_equal "the tree" "$(cmp before after && echo untouched)" untouched
finish
