/* Ops are sorted into classes by their forward time per byte, each twice as dear as the one before;
 * within a class the mean counts. O(n) without a sort, and exact enough for what is a model
 * anyway. */
#include "partition/problem/recompute_price.h"

#include <math.h>

/* 0: less than an eighth of the model's mean time per byte; the last one: eight times that and
 * more. */
static int class_of(double us_per_byte, double mean)
{
    double piece = floor(log2(us_per_byte / mean)) + SMP__PRICE_PIECES / 2;
    return us_per_byte <= 0.0 ? 0 : (int)fmin(fmax(piece, 0.0), SMP__PRICE_PIECES - 1);
}

void smp__price_make(const smp_problem *problem, smp__price *out)
{
    double stash = 0.0, us = 0.0;
    *out = (smp__price){.saved = {1.0}, .forward = {1.0}};
    if (!problem->graph->training || problem->recompute != SMP_RECOMPUTE_AUTO)
        return;
    for (int32_t op = 0; op < problem->graph->n_op; op++) {
        double bytes = (double)problem->costs->op[op].stash_bytes;
        stash += bytes;
        us += bytes > 0.0 ? problem->costs->op[op].forward_us : 0.0;
    }
    if (!(stash > 0.0) || !(us > 0.0))
        return;
    *out = (smp__price){0};
    for (int32_t op = 0; op < problem->graph->n_op; op++) {
        double bytes = (double)problem->costs->op[op].stash_bytes;
        double op_us = problem->costs->op[op].forward_us;
        if (!(bytes > 0.0))
            continue;
        int i = class_of(op_us / bytes, us / stash);
        out->saved[i] += bytes / stash;
        out->forward[i] += op_us / us;
    }
    for (int i = 1; i < SMP__PRICE_PIECES; i++) {
        out->saved[i] += out->saved[i - 1];
        out->forward[i] += out->forward[i - 1];
    }
    out->saved[SMP__PRICE_PIECES - 1] = out->forward[SMP__PRICE_PIECES - 1] = 1.0;
}
