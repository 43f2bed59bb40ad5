#!/usr/bin/env bash
# The installed package from a user's side: pkg-config alone builds examples/embed.c, find_package
# works, the program trains on two processes, and nothing refers to the build folder.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
build=${SMP_BUILD_DIR:-$SMP_SOURCE_DIR/build/test}

prefix=$scratch/prefix
expect_exit 0 cmake --install "$build" --prefix "$prefix"
for file in include/smp.h bin/smp-profile bin/smp-partition bin/smp-run bin/smp-import bin/smp-export \
    share/man/man1/smp-run.1 share/bash-completion/completions/smp-partition share/smp/examples/embed.c share/smp/examples/gpt-tiny.yaml; do
    [ -e "$prefix/$file" ] || fail "not installed: $file"
done
# Texts must not name the folders they were made in.
expect_equal "files that name the build or source folder" \
    "$(grep -rlIF -e "$build/" -e "$SMP_SOURCE_DIR/" "$prefix" || true)" ''

pc=$(find "$prefix" -name smp.pc -printf '%h\n')
export PKG_CONFIG_PATH=$pc
version=$(sed -nE 's/^#define SMP_VERSION_STRING "(.*)"/\1/p' "$SMP_SOURCE_DIR/smp.h")
expect_equal "version of smp.pc" "$(pkg-config --modversion smp)" "$version"

cp "$prefix/share/smp/examples/embed.c" "$prefix/share/smp/examples/gpt-tiny.yaml" .
# shellcheck disable=SC2046 # the flags are several words
expect_exit 0 cc -std=c11 -Wall -Wextra -Werror embed.c -o embed $(pkg-config --cflags --libs smp)

# C++ programs may include the header.
if command -v c++ >/dev/null; then
    printf '#include <smp.h>\nint main() { return smp_version() == nullptr; }\n' >header.cc
    # shellcheck disable=SC2046
    expect_exit 0 c++ header.cc -o header $(pkg-config --cflags --libs smp)
    expect_exit 0 ./header
fi

mkdir project
cat >project/CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C)
find_package(smp 0.1 REQUIRED)
add_executable(embed2 ../embed.c)
target_link_libraries(embed2 PRIVATE smp::smp)
CMAKE
expect_exit 0 cmake -S project -B project/build -DCMAKE_PREFIX_PATH="$prefix"
expect_exit 0 cmake --build project/build

write_text text.txt 60000
expect_exit 0 "$prefix/bin/smp-partition" gpt-tiny.yaml -n 2 --stages 2 --microbatches 4 -o plan.yaml
for program in ./embed project/build/embed2; do
    expect_exit 0 mpirun -n 2 "$program" plan.yaml text.txt 30
    expect_equal "$program: steps" "$(grep -cE '^step [0-9]+  loss [0-9.]+' out || true)" 30
    expect_equal "$program: loss falls" "$(awk '/^step/ { if (!first) first = $4; last = $4 }
        END { print (last < first - 0.5) ? "yes" : first " " last }' out)" yes
done
# An operator of one's own, in the installed programs and in a program that uses libsmp.so.
cp "$prefix"/share/smp/examples/plugin/snake.* .
cat >planner.c <<'C'
#include <smp.h>
int main(void)
{
    const char *plugin = "snake.so";
    smp_options options = smp_options_default();
    options.model = "snake.yaml";
    options.runtime.plugins = &plugin;
    options.runtime.n_plugins = 1;
    return smp_status_exit_code(smp_plan_write(&options, "written.yaml"));
}
C
# shellcheck disable=SC2046
expect_exit 0 cc -shared -fPIC snake.c -o snake.so $(pkg-config --cflags smp) -lm
# shellcheck disable=SC2046
expect_exit 0 cc planner.c -o planner $(pkg-config --cflags --libs smp)
expect_exit 0 ./planner
expect_exit 0 "$prefix/bin/smp-partition" check written.yaml --plugin snake.so

expect_exit 1 mpirun -n 2 ./embed plan.yaml absent.txt 2
expect_match err 'absent\.txt'
finish
