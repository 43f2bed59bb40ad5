/* bench_bigram FILE: how well a bigram model of a text predicts that same text.
 *
 * The model gives each byte the probability (pairs + 1) / (occurrences + 256) after the byte before
 * it (add-one smoothing), with the counts of the whole file; printed is the mean of -log p over all
 * pairs, in nats per byte: "bigram loss 2.4526". A language model over bytes whose loss is lower
 * has learned more than pairs. Linear in the file, 0.5 MB of counts. */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SYMBOLS = 256 };

typedef struct bigram {
    uint64_t pair[SYMBOLS][SYMBOLS]; /* [before][after] */
    uint64_t pairs;
} bigram;

/* 0, or the errno of the failure. */
static int count_pairs(bigram *model, FILE *file)
{
    int before = getc(file);
    int after;
    while (before != EOF && (after = getc(file)) != EOF) {
        model->pair[before][after]++;
        model->pairs++;
        before = after;
    }
    return ferror(file) ? errno : 0;
}

/* Nats per byte, summed over kinds of pairs: rounding does not grow with the text. */
static double loss(const bigram *model)
{
    double sum = 0;
    for (int before = 0; before < SYMBOLS; before++) {
        uint64_t total = 0;
        for (int after = 0; after < SYMBOLS; after++)
            total += model->pair[before][after];
        for (int after = 0; after < SYMBOLS; after++) {
            uint64_t n = model->pair[before][after];
            if (n)
                sum -= (double)n * log((double)(n + 1) / (double)(total + SYMBOLS));
        }
    }
    return sum / (double)model->pairs;
}

int main(int argc, char **argv)
{
    if (argc != 2 || !strcmp(argv[1], "--help")) {
        fprintf(argc == 2 ? stdout : stderr, "usage: bench_bigram FILE\n");
        return argc == 2 ? 0 : 2;
    }
    int exit_code = 2;
    int error = 0;
    bigram *model = calloc(1, sizeof *model);
    FILE *file = fopen(argv[1], "rb");
    if (!file)
        error = errno;
    else if (!model)
        error = ENOMEM;
    else
        error = count_pairs(model, file);

    if (error) {
        fprintf(stderr, "bench_bigram: %s: %s\n", argv[1], strerror(error));
    } else if (!model->pairs) {
        fprintf(stderr, "bench_bigram: %s: fewer than two bytes\n", argv[1]);
    } else {
        printf("bigram loss %.6f\n", loss(model));
        exit_code = 0;
    }
    if (file)
        fclose(file);
    free(model);
    return exit_code;
}
