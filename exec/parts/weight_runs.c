/* Runs of a part in the whole; see the header. A tensor of shape (a, d, z), row by row, split along
 * d in blocks: a block of a device's part has d / (count * blocks) * z elements that follow each
 * other in the whole, then come those of the next device. */
#include "exec/parts/weight_runs.h"

#include <string.h>

smp__runs smp__runs_of(const smp_param *param)
{
    const smp_spread spread = param->part.spread;
    int64_t run = param->elements;
    if (spread.way != SMP_SPLIT)
        return (smp__runs){run > 0 ? run : 1, 0, 1, 1};
    for (int d = 0; d <= spread.dim; d++)
        run /= param->shape.dim[d];
    return (smp__runs){run * (param->shape.dim[spread.dim] / spread.blocks), param->part.index,
                       param->part.count, spread.blocks};
}

int64_t smp__runs_whole(const smp_param *param)
{
    return param->elements * smp__runs_of(param).count;
}

/* Which run of the whole is run `turn` of the part. */
static int64_t run_of(smp__runs runs, int64_t turn)
{
    const int64_t block = turn % runs.blocks;
    return (turn - block) * runs.count + smp_split_part(runs.blocks, runs.count, block, runs.index);
}

int64_t smp__runs_place(smp__runs runs, int64_t at)
{
    return run_of(runs, at / runs.run) * runs.run + at % runs.run;
}

int64_t smp__runs_left(smp__runs runs, int64_t at)
{
    return runs.run - at % runs.run;
}

int64_t smp__runs_before(smp__runs runs, int64_t place)
{
    const int64_t turn = place / (runs.run * runs.count);
    const int64_t in_run = place - run_of(runs, turn) * runs.run;
    return turn * runs.run + (in_run < 0 ? 0 : in_run < runs.run ? in_run : runs.run);
}

/* How many elements from `at` on are one copy. */
static int64_t copied(smp__runs runs, int64_t at, int64_t end)
{
    const int64_t left = smp__runs_left(runs, at);
    return end - at < left ? end - at : left;
}

void smp__runs_put(smp__runs runs, const float *part, int64_t first, int64_t n, float *whole,
                   int64_t begin)
{
    for (int64_t at = first, end = first + n, m; at < end; at += m, part += m) {
        m = copied(runs, at, end);
        memcpy(whole + (smp__runs_place(runs, at) - begin), part, (size_t)m * sizeof *part);
    }
}

void smp__runs_take(smp__runs runs, float *part, int64_t first, int64_t n, const float *whole,
                    int64_t begin)
{
    for (int64_t at = first, end = first + n, m; at < end; at += m, part += m) {
        m = copied(runs, at, end);
        memcpy(part, whole + (smp__runs_place(runs, at) - begin), (size_t)m * sizeof *part);
    }
}
