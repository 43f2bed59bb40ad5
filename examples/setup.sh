# Sourced by examples/quickstart.sh and tests/run.sh: Debian packages that SMP needs.
# shellcheck shell=bash

smp_packages=(cmake gcc libc6-dev make pkg-config libopenmpi-dev openmpi-bin libmetis-dev
    libyaml-dev libdnnl-dev libjansson-dev libpng-dev libjpeg62-turbo-dev
    libprotobuf-c-dev protobuf-c-compiler libonnx-dev bible-kjv bible-kjv-text)

# smp_setup [package...]: installs what is missing of smp_packages and the arguments. Touches
# neither apt nor the network when nothing is. Needs root or sudo; without them it prints the
# command to run and fails.
smp_setup() {
    local package missing=() as_root=()
    for package in "${smp_packages[@]}" "$@"; do
        if ! dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed; then
            missing+=("$package")
        fi
    done
    [ "${#missing[@]}" -gt 0 ] || return 0

    local install=(apt-get install -y --no-install-recommends "${missing[@]}")
    if ! command -v apt-get >/dev/null; then
        echo "These Debian packages are missing and there is no apt-get: ${missing[*]}" >&2
        return 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null || ! sudo -v; then
            echo "Packages are missing. Run this as root, then start again:" >&2
            echo "  apt-get update && ${install[*]}" >&2
            return 1
        fi
        as_root=(sudo)
    fi
    echo "installing ${missing[*]}"
    local quiet=(env DEBIAN_FRONTEND=noninteractive)
    # Package lists may be fresh already; fetch them only if the install fails without.
    "${as_root[@]}" "${quiet[@]}" "${install[@]}" -qq >/dev/null 2>&1 </dev/null && return 0
    "${as_root[@]}" "${quiet[@]}" apt-get update -qq </dev/null &&
        "${as_root[@]}" "${quiet[@]}" "${install[@]}" -qq >/dev/null </dev/null
}
