#!/usr/bin/env bash
# What texts point at is there: relative links of every *.md and their anchors, source files and folders
# of the tree that stand in backticks, and *.md files that comments name.
set -euo pipefail
cd "${SMP_SOURCE_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}"

failures=0
fail() {
    echo "links: $*" >&2
    failures=$((failures + 1))
}

mapfile -t tree < <(find . -name '.git' -prune -o -name 'build*' -type d -prune -o -type f -print |
    sed 's|^\./||' | LC_ALL=C sort)
mapfile -t texts < <(printf '%s\n' "${tree[@]}" | grep '\.md$')
[ "${#texts[@]}" -gt 0 ] || fail "found no text"
declare -A base_names system_headers
for path in "${tree[@]}"; do base_names[${path##*/}]=1; done
while IFS= read -r header; do
    system_headers[$header]=1
done < <(printf '%s\n' "${tree[@]}" | grep -E '\.(c|h|cu|cuh)$' | xargs sed -nE 's/^ *# *include <([^>]*)>.*/\1/p')

prose() { # file: its lines outside fenced blocks, each as "number:line"
    awk '/^ *```/ {fenced = !fenced; next} !fenced {print FNR ":" $0}' "$1"
}

anchors() { # file: of its headings, as they are made where the text is shown
    prose "$1" | sed -nE 's/^[0-9]+:#+ +//p' | tr '[:upper:]' '[:lower:]' | sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}

check_link() { # where, folder of the text, target
    local path=${3%%#*} anchor=
    case $3 in *'#'*) anchor=${3#*#} ;; esac
    path=${path:+$2/$path}
    path=${path:-${1%%:*}}
    if [ ! -e "$path" ]; then
        fail "$1: link to '$3', which is not there"
    elif [ -n "$anchor" ] && ! anchors "$path" | grep -qxF -- "$anchor"; then
        fail "$1: link to '$3', and $path has no such heading"
    fi
}

# A name with a folder of the tree or of the text's own in front, or a bare source file.
check_name() { # where, folder of the text, name
    case $3 in
    */*)
        [ -d "${3%%/*}" ] || [ -d "$2/${3%%/*}" ] || return 0
        [ "${3%%/*}" != build ] || return 0
        [ -e "$3" ] || [ -e "$2/$3" ] || fail "$1: names '$3', which is not there"
        ;;
    *)
        [ -n "${base_names[$3]-}${system_headers[$3]-}" ] || fail "$1: names '$3', which is nowhere"
        ;;
    esac
}

sources='c|h|cu|cuh|sh|js|css|cmake'
for text in "${texts[@]}"; do
    folder=$(dirname "$text")
    while IFS=: read -r line target; do
        case $target in
        http://* | https://* | mailto:*) ;;
        *) check_link "$text:$line" "$folder" "$target" ;;
        esac
    done < <(prose "$text" | grep -F '](' |
        awk -F: '{n = $1; while (match($0, /\]\([^) ]+/)) {print n ":" substr($0, RSTART + 2, RLENGTH - 2)
            $0 = substr($0, RSTART + RLENGTH)}}')
    while IFS=: read -r line name; do
        check_name "$text:$line" "$folder" "$name"
    done < <(prose "$text" | awk '{n = $0; sub(/:.*/, "", n); k = split($0, part, "`")
            for (i = 2; i < k; i += 2) print n ":" part[i]}' |
        grep -E "^[0-9]+:([A-Za-z0-9_.-]+/)+([A-Za-z0-9_.-]+\.($sources|md|yaml|py|txt|svg|html))?\$|^[0-9]+:[a-z][A-Za-z0-9_-]*\.($sources)\$" || true)
done

while IFS=: read -r file line name; do
    [ -e "$name" ] || [ -e "$(dirname "$file")/$name" ] || fail "$file:$line: names '$name', which is not there"
done < <(printf '%s\n' "${tree[@]}" | grep -E '\.(c|h|cu|cuh)$' |
    xargs grep -onE '\b([A-Za-z_]+/)*[A-Za-z_]+\.md\b' || true)

[ "$failures" -eq 0 ] || exit 1
echo "links: ${#texts[@]} texts point at what is there"
