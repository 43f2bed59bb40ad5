/* Random damage to a good model: it is read, or refused with one message; nothing else. Meant to
 * run under the sanitizers too. Fixed seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/random.h"
#include "tests/graph/model/model_text.h"

enum { ROUNDS = 6000, ROOM = 256 };

static uint64_t random_state = 20240229;

static size_t below(size_t n)
{
    random_state = smp_random_mix(random_state);
    return (size_t)((random_state >> 16) % n);
}

/* Pieces that mean something in a model, so that damage gets past the YAML parser. */
static const char *const words[] = {"{i}",
                                    "{",
                                    "}",
                                    "[",
                                    "]",
                                    ": ",
                                    ", ",
                                    "\n",
                                    "  - ",
                                    "repeat: 3",
                                    "0",
                                    "-1",
                                    "1/0",
                                    "d",
                                    "i",
                                    "9999",
                                    "4294967296",
                                    "*x",
                                    "&x ",
                                    "op: opaque",
                                    "'",
                                    "\"",
                                    "null",
                                    "as: i, ",
                                    "in: ",
                                    "loss: ",
                                    "stage: 2, ",
                                    "!!s ",
                                    "# ",
                                    "cost: {}, ",
                                    "x",
                                    "wte",
                                    "| ",
                                    "---\n",
                                    "%TAG",
                                    "\\0",
                                    "group: 'g', ",
                                    "w[1]",
                                    "[0]",
                                    " < ",
                                    "== 1",
                                    "when: i, ",
                                    "when: 0, "};
enum { N_WORDS = sizeof words / sizeof words[0] };

static size_t replace(char *text, size_t length, size_t at, size_t cut, const char *with, size_t n)
{
    if (cut > length - at)
        cut = length - at;
    memmove(text + at + n, text + at + cut, length - at - cut);
    memcpy(text + at, with, n);
    return length - cut + n;
}

static size_t damage(char *text, size_t length)
{
    size_t at = below(length);
    switch (below(6)) {
    case 0: /* one bit */
        text[at] = (char)(text[at] ^ (1 << below(8)));
        return length;
    case 1: { /* one byte */
        char byte = (char)below(256);
        return replace(text, length, at, below(2), &byte, 1);
    }
    case 2: /* a piece lost */
        return replace(text, length, at, 1 + below(20), "", 0);
    case 3: { /* a piece copied elsewhere */
        char piece[20];
        size_t n = 1 + below(sizeof piece);
        size_t from = below(length);
        if (n > length - from)
            n = length - from;
        memcpy(piece, text + from, n);
        return replace(text, length, at, below(2) * n, piece, n);
    }
    default: {
        const char *word = words[below(N_WORDS)];
        return replace(text, length, at, below(3) * below(8), word, strlen(word));
    }
    }
}

static void test_model_fuzz_damaged_text(void **state)
{
    size_t size = strlen(gpt_text);
    int good = 0;
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        char text[sizeof gpt_text + ROOM];
        memcpy(text, gpt_text, size);
        size_t length = size;
        for (size_t n = 1 + below(4) / 3; n > 0 && length > 0; n--)
            length = damage(text, length);
        /* In a block of its own size: a sanitizer sees reads past the end. */
        char *exact = malloc(length + 1);
        assert_non_null(exact);
        memcpy(exact, text, length);
        smp_graph *graph = NULL;
        smp_fail(SMP_ERR_FAILED, "stale");
        smp_status status = smp_graph_parse("m.yaml", exact, length, &graph);
        free(exact);
        if (status == SMP_OK) {
            good++;
            smp_graph_destroy(graph);
            continue;
        }
        assert_int_equal(status, SMP_ERR_INPUT);
        if (strncmp(smp_last_error(), "m.yaml:", 7) != 0)
            fail_msg("round %d: no place in '%s'", round, smp_last_error());
    }
    /* Both ends are exercised: the reader, and its refusals. */
    assert_in_range(good, ROUNDS / 100, ROUNDS / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_fuzz_damaged_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
