/* Runs a fuzz target, with any compiler: once on every file that is given, or lies in a folder that
 * is given, the corpus as an ordinary test; then, with --made N, on N inputs that are made of them.
 * That finds what lies near at hand in seconds; libFuzzer searches (SMP_BUILD_FUZZ).
 *
 * An input is one of the corpus with one to four changes: a bit, a byte or a number of its text
 * replaced, a range left out, doubled, or taken from another one. Input i of a seed is a function
 * of both (SMP_FUZZ_SEED, 1); what breaks is left in the working folder. */
#include "tests/fuzz/fuzz.h"

#include <ctype.h>
#include <dirent.h>
#include <sys/stat.h>

#include "graph/base/random.h"

enum { MAX_INPUTS = 4096, MAX_BYTES = 16384, MAX_CHANGES = 4 };

typedef struct input {
    uint8_t *data;
    size_t size;
} input;

static input known[MAX_INPUTS];
static int n_known;

static void replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    FUZZ_REQUIRE(file && fseek(file, 0, SEEK_END) == 0);
    const long size = ftell(file);
    FUZZ_REQUIRE(size >= 0 && fseek(file, 0, SEEK_SET) == 0);
    uint8_t *data = malloc((size_t)size + (size == 0)); /* no byte more: reading past it is seen */
    FUZZ_REQUIRE(data && fread(data, 1, (size_t)size, file) == (size_t)size);
    fclose(file);
    fprintf(stderr, "%s\n", path);
    LLVMFuzzerTestOneInput(data, (size_t)size);
    FUZZ_REQUIRE(n_known < MAX_INPUTS);
    known[n_known++] = (input){data, (size_t)size};
}

static void replay_folder(const char *path)
{
    char inside[4096];
    DIR *folder = opendir(path);
    FUZZ_REQUIRE(folder != NULL);
    for (struct dirent *entry; (entry = readdir(folder));)
        if (entry->d_name[0] != '.') {
            snprintf(inside, sizeof inside, "%.2000s/%s", path, entry->d_name);
            replay_file(inside);
        }
    closedir(folder);
}

/* Numbers of one made input. */
typedef struct source {
    uint64_t state;
} source;

static size_t below(source *s, size_t n)
{
    s->state = smp_random_mix(s->state);
    return n > 0 ? (size_t)(s->state % n) : 0;
}

/* Puts n bytes in the place of `gone` ones at `at`. */
static void splice(input *in, size_t at, size_t gone, const void *bytes, size_t n)
{
    if (in->size - gone + n > MAX_BYTES)
        return;
    memmove(in->data + at + n, in->data + at + gone, in->size - at - gone);
    memcpy(in->data + at, bytes, n);
    in->size = in->size - gone + n;
}

/* A number of a text, from `at` on or the first one, becomes one that readers do not expect. */
static void replace_number(input *in, size_t at, source *s)
{
    static const char *const odd[] = {"-1",    "0",   "9223372036854775807", "18446744073709551616",
                                      "1e400", "nan", "2147483648",          "1e-320"};
    while (at < in->size && !isdigit(in->data[at]))
        at++;
    size_t end = at;
    while (end < in->size && isdigit(in->data[end]))
        end++;
    const char *with = odd[below(s, sizeof odd / sizeof *odd)];
    if (end > at)
        splice(in, at, end - at, with, strlen(with));
}

static void change(input *in, source *s)
{
    const size_t at = below(s, in->size), length = 1 + below(s, 32);
    const size_t n = length < in->size - at ? length : in->size - at;
    uint8_t copy[32];
    switch (below(s, 6)) {
    case 0:
        in->data[at] ^= (uint8_t)(1u << below(s, 8));
        break;
    case 1:
        in->data[at] = (uint8_t)below(s, 256);
        break;
    case 2:
        splice(in, at, n, "", 0);
        break;
    case 3:
        memcpy(copy, in->data + at, n);
        splice(in, at, 0, copy, n);
        break;
    case 4: {
        const input *other = &known[below(s, (size_t)n_known)];
        const size_t from = below(s, other->size);
        const size_t taken = length < other->size - from ? length : other->size - from;
        splice(in, at, n, other->data + from, taken);
        break;
    }
    default:
        replace_number(in, at, s);
    }
}

/* Keeps the input until the target has taken or refused it. */
static void run_made(const input *in, const char *path)
{
    FILE *file = fopen(path, "wb");
    FUZZ_REQUIRE(file && fwrite(in->data, 1, in->size, file) == in->size && fclose(file) == 0);
    uint8_t *exact = malloc(in->size + (in->size == 0));
    FUZZ_REQUIRE(exact != NULL);
    memcpy(exact, in->data, in->size);
    LLVMFuzzerTestOneInput(exact, in->size);
    free(exact);
    remove(path);
}

static void run_made_ones(const char *program, int n)
{
    char path[4096];
    const char *seed = getenv("SMP_FUZZ_SEED");
    const uint64_t key = smp_random_mix(seed ? strtoull(seed, NULL, 10) : 1);
    const char *slash = strrchr(program, '/');
    snprintf(path, sizeof path, "%s.broken", slash ? slash + 1 : program);
    fprintf(stderr, "%d inputs of seed %s; one that breaks is in %s\n", n, seed ? seed : "1", path);
    input made = {.data = malloc(MAX_BYTES)};
    FUZZ_REQUIRE(made.data != NULL);
    for (int i = 0; i < n; i++) {
        source s = {smp_random_mix(key + (uint64_t)i)};
        const input *from = &known[below(&s, (size_t)n_known)];
        made.size = from->size < MAX_BYTES ? from->size : MAX_BYTES;
        memcpy(made.data, from->data, made.size);
        for (size_t k = 1 + below(&s, MAX_CHANGES); k > 0 && made.size > 0; k--)
            change(&made, &s);
        run_made(&made, path);
    }
    free(made.data);
}

int main(int argc, char **argv)
{
    struct stat info;
    int made = 0, first = 1;
    if (argc > 2 && strcmp(argv[1], "--made") == 0) {
        made = atoi(argv[2]);
        first = 3;
    }
    for (int i = first; i < argc; i++) {
        FUZZ_REQUIRE(stat(argv[i], &info) == 0);
        if (S_ISDIR(info.st_mode))
            replay_folder(argv[i]);
        else
            replay_file(argv[i]);
    }
    FUZZ_REQUIRE(n_known > 0);
    run_made_ones(argv[0], made);
    while (n_known > 0)
        free(known[--n_known].data);
    return 0;
}
