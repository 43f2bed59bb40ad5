/* The curves of links: what a message takes, by its size, within a limit of time.
 *
 * Sizes rise while there is time for the next, judged from the two before it. Besides one
 * round trip a size gets at most a part of what is left, since every larger one takes longer: on a
 * slow link the samples become fewer and the repetitions shorter before the curve ends early. Every
 * rank is told the same times, so all decide alike. */
#include "profile/measure.h"

#include <math.h>

static const int64_t link_bytes[] = {8,         64,      512,     4 << 10, 32 << 10,
                                     256 << 10, 2 << 20, 8 << 20, 32 << 20};
enum { LINK_POINTS = sizeof link_bytes / sizeof link_bytes[0], LEAST_POINTS = 2 };

#define SHARE 0.25 /* of the time that is left, for one size */

typedef struct curve {
    const smp_probe *probe;
    const smp_profile_options *options;
    smp_link_kind kind;
    double left_us;
    double *sample; /* [options->samples] scratch */
    int n;          /* points so far */
    int64_t *bytes; /* [LINK_POINTS] */
    double *us;
} curve;

/* More than these add nothing to the accuracy. */
static int most_repeats(int64_t bytes)
{
    return bytes <= 4096 ? 200 : bytes <= 256 << 10 ? 50 : bytes <= 2 << 20 ? 10 : 3;
}

/* A round trip ahead warms up. */
static double sample_us(double us, int repeat)
{
    return 2 * us * (repeat + 1);
}

static smp_status take_sample(curve *c, int64_t bytes, int repeat, double *us)
{
    double spent_us = 0;
    SMP_TRY(c->probe->time_link(c->probe->context, c->kind, bytes, repeat, us, &spent_us));
    c->left_us -= spent_us;
    return SMP_OK;
}

/* So many that a sample is long enough and all samples fit into share_us. */
static int repeats_of(const curve *c, int64_t bytes, double us, double share_us)
{
    const double trip_us = 2 * fmax(us, 1e-3), most = most_repeats(bytes);
    const double wanted = fmin(ceil(c->options->min_sample_us / trip_us), most);
    const double fitting = floor(share_us / c->options->samples / trip_us) - 1;
    return (int)fmax(fmin(wanted, fitting), 1);
}

/* A single round trip says how many there is time for; the least disturbed one is believed. */
static smp_status measure_point(curve *c, int64_t bytes, double *us)
{
    const double begin_us = c->left_us;
    int n = 0;
    SMP_TRY(take_sample(c, bytes, 1, us));
    double least_us = *us;
    while (n < c->options->samples) {
        const int repeat = repeats_of(c, bytes, least_us, SHARE * begin_us);
        if (begin_us - c->left_us + sample_us(least_us, repeat) > SHARE * begin_us)
            break;
        SMP_TRY(take_sample(c, bytes, repeat, &c->sample[n]));
        least_us = fmin(least_us, c->sample[n++]);
    }
    if (n > 0)
        *us = smp__median(c->sample, n);
    return SMP_OK;
}

/* What a message of the next size will take, at the rate between the last two. */
static double expected_us(const curve *c)
{
    const int last = c->n - 1;
    const double slope =
        fmax(0, c->us[last] - c->us[last - 1]) / (double)(c->bytes[last] - c->bytes[last - 1]);
    return c->us[last] + slope * (double)(link_bytes[c->n] - c->bytes[last]);
}

static bool has_time(const curve *c)
{
    if (c->n < LEAST_POINTS)
        return c->n == 0 || c->left_us > 0;
    return sample_us(expected_us(c), 1) <= c->left_us;
}

/* A smaller message is never slower: what a busy moment has added is taken off again. */
static void settle(curve *c)
{
    for (int i = c->n - 2; i >= 0; i--)
        c->us[i] = fmin(c->us[i], c->us[i + 1]);
}

static smp_status measure_curve(curve *c)
{
    while (c->n < LINK_POINTS && has_time(c)) {
        double us;
        if (c->options->link_progress)
            c->options->link_progress(c->options->progress_context, c->kind, link_bytes[c->n],
                                      1e-6 * c->left_us);
        SMP_TRY(measure_point(c, link_bytes[c->n], &us));
        c->bytes[c->n] = link_bytes[c->n];
        c->us[c->n] = smp__to_ns(fmax(us, 1e-3));
        c->n++;
    }
    settle(c);
    return SMP_OK;
}

static smp_link_spec spec_of(const curve *c)
{
    const int last = c->n - 1;
    const double rise_us = c->us[last] - c->us[0];
    const double bytes_us = rise_us > 0 ? rise_us : c->us[last];
    return (smp_link_spec){.latency_us = c->us[0],
                           .bytes_per_s = nearbyint((double)c->bytes[last] / bytes_us * 1e6),
                           .n_point = c->n,
                           .point_bytes = c->bytes,
                           .point_us = c->us};
}

/* What one link leaves of its share is the next one's. */
smp_status smp__measure_links(const smp_probe *probe, const smp_profile_options *options,
                              smp_arena *scratch, smp_profile *profile)
{
    double left_us = 1e6 * options->link_s;
    int links = 0;
    for (int kind = 0; kind < SMP_LINK_KINDS; kind++)
        links += probe->has_link[kind];
    for (int kind = 0; kind < SMP_LINK_KINDS; kind++) {
        if (!probe->has_link[kind])
            continue;
        curve c = {.probe = probe,
                   .options = options,
                   .kind = (smp_link_kind)kind,
                   .sample = SMP_ARENA_NEW(scratch, double, (size_t)options->samples),
                   .bytes = SMP_ARENA_NEW(profile->arena, int64_t, LINK_POINTS),
                   .us = SMP_ARENA_NEW(profile->arena, double, LINK_POINTS)};
        SMP_TRY(smp__sync_ranks(probe, c.sample && c.bytes && c.us ? SMP_OK : SMP_ERR_NO_MEMORY));
        const double share_us = left_us / links--;
        c.left_us = share_us;
        SMP_TRY(smp__sync_ranks(probe, measure_curve(&c)));
        left_us -= share_us - c.left_us;
        profile->link[kind] = spec_of(&c);
    }
    return SMP_OK;
}
