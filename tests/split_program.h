/* Splits the backwards of a program, for tests of what runs or plans split ones. */
#ifndef SMP_TESTS_SPLIT_PROGRAM_H
#define SMP_TESTS_SPLIT_PROGRAM_H

#include <stdlib.h>

#include "graph/base/random.h"
#include "schedule/rules/program.h"

static inline bool split_chance(uint64_t *random, int percent)
{
    *random += 0x9e3779b97f4a7c15u;
    return smp_random_mix(*random) % 100 < (uint64_t)percent;
}

/* Backwards of about `chunk_percent` of the chunks, of these about `whole_percent` left whole where
 * that keeps the order. I takes the place of B; W follows at any later place before the reduction,
 * in micro-batch order: the more likely soon the larger `soon_percent` is. */
static inline smp_status split_program(uint64_t *random, int chunks, int microbatches,
                                       int chunk_percent, int whole_percent, int soon_percent,
                                       smp_program *program)
{
    smp_program made = {0};
    smp_status status = SMP_OK;
    int *done = calloc((size_t)chunks, sizeof *done), *due = calloc((size_t)chunks, sizeof *due);
    bool *split = calloc((size_t)chunks, sizeof *split);
    if (!done || !due || !split)
        status = SMP_ERR_NO_MEMORY;
    for (int c = 0; status == SMP_OK && c < chunks; c++)
        split[c] = split_chance(random, chunk_percent);
    for (int64_t i = 0; status == SMP_OK && i < program->n; i++) {
        smp_action a = program->action[i];
        int c = a.chunk;
        bool b = a.kind == SMP_ACTION_B && split[c];
        if (b && (done[c] < due[c] || !split_chance(random, whole_percent)))
            a.kind = SMP_ACTION_I;
        while (status == SMP_OK && a.kind == SMP_ACTION_REDUCE && split[c] &&
               done[c] < microbatches)
            status = smp_program_push(&made, SMP_ACTION_W, done[c]++, c);
        if (status == SMP_OK)
            status = smp_program_push(&made, a.kind, a.microbatch, c);
        if (b) {
            due[c]++;
            done[c] += a.kind == SMP_ACTION_B;
        }
        for (c = 0; c < chunks && status == SMP_OK; c++)
            if (done[c] < due[c] && split_chance(random, soon_percent))
                status = smp_program_push(&made, SMP_ACTION_W, done[c]++, c);
    }
    smp_program_free(program);
    *program = made;
    free(done);
    free(due);
    free(split);
    return status;
}

#endif
