/* Initial values by counters: Philox words of the place, uniform or as Box-Muller pairs. */
#include "exec/parts/initial_values.h"

#include <math.h>

#include "exec/parts/weight_runs.h"
#include "graph/base/random.h"

enum { WORDS = 4 };

static const double two_pi = 6.283185307179586;

/* Values 4 index .. 4 index + 3: uniform words, or two Box-Muller pairs. */
static void draw(const smp_param *param, uint64_t key, int64_t index, float value[WORDS])
{
    smp_random4 word = smp_random_philox(key, (uint64_t)index, 0);
    if (param->init == SMP_INIT_UNIFORM) {
        for (int k = 0; k < WORDS; k++)
            value[k] = (2.0f * smp_random_uniform(word.v[k]) - 1.0f) * param->init_scale;
        return;
    }
    for (int k = 0; k < WORDS; k += 2) {
        double radius = sqrt(-2.0 * log(1.0 - (double)smp_random_uniform(word.v[k])));
        double angle = two_pi * (double)smp_random_uniform(word.v[k + 1]);
        value[k] = (float)(radius * cos(angle)) * param->init_scale;
        value[k + 1] = (float)(radius * sin(angle)) * param->init_scale;
    }
}

/* n values of the whole weight from `first` on. */
static void fill(const smp_param *param, uint64_t key, int64_t first, int64_t n, float *values)
{
    float value[WORDS];
    for (int64_t i = 0; i < n; i++) {
        const int64_t place = first + i;
        if (i == 0 || place % WORDS == 0)
            draw(param, key, place / WORDS, value);
        values[i] = value[place % WORDS];
    }
}

void smp__initial_values(const smp_param *param, uint64_t seed, int64_t begin, int64_t end,
                         float *values)
{
    const uint64_t key = smp_random_mix(seed ^ smp_random_mix((uint64_t)param->number));
    const smp__runs runs = smp__runs_of(param);
    if (param->init == SMP_INIT_ZERO || param->init == SMP_INIT_ONE) {
        for (int64_t i = begin; i < end; i++)
            *values++ = param->init == SMP_INIT_ONE ? 1.0f : 0.0f;
        return;
    }
    for (int64_t i = begin, n; i < end; i += n, values += n) {
        const int64_t left = smp__runs_left(runs, i);
        n = end - i < left ? end - i : left;
        fill(param, key, smp__runs_place(runs, i), n, values);
    }
}
