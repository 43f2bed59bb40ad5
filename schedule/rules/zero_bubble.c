/* Zero-bubble schedules: a backward is split into I (input gradients, which the stage before waits
 * for) and W (weight gradients, which nobody waits for), and W fills what would be idle. How much
 * it can fill depends on how many micro-batches may be alive: shape.active, p by default.
 *
 * One chunk (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024): rank r runs w forwards ahead
 * of its first I and holds d weight gradients back, w + d + 1 = active. active p is H1 (w = p-1-r,
 * d = r), 2p-1 is H2 (w = 2(p-1-r), d = 2r); between them the surplus goes to w first; below p
 * w shrinks in proportion, active-1 on the first rank. Every rank runs at least as far ahead as the
 * next one, so the order cannot deadlock. More than 2p-1 is of no use. What W waits for, inputs and
 * gradients of weights, can be more than what a forward keeps, and to recompute does not save it:
 * shape.lag bounds d. With lag 1 every W follows its I, and with active p a rank keeps what 1F1B
 * does beside what the W at hand reads, while gradients leave half a backward earlier. Whole
 * backwards, where not even that fits, are 1F1B.
 *
 * Two chunks (Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024): rank r holds
 * stage r and stage 2p-1-r. All ranks repeat one building block every `period` slots of unit time:
 * the four steps F0, F1, I1, I0 of a micro-batch travel along the V with a constant number of slots
 * from rank to rank, and turn at its ends. Blocks whose slots collide on no rank make a schedule,
 * and its live pairs are the lifespans divided by the period. The smaller the steps, the shorter
 * the lifespans and the longer the warm-up: 3,3,3,3 keeps p micro-batches (V-ZB), 1,2,1,2 about
 * half (V-Half), 1,1,1,1 about a third (V-Min); longer periods keep still fewer, at the price of
 * idle slots. The order of a rank is the order of its slots: as these are a valid timing of all
 * ranks, it cannot deadlock. Choosing a block is O(p), an order linear. */
#include <limits.h>

#include "schedule/rules/schedule.h"

enum { SPLIT_PERIOD = 6, N_KIND = 3, MAX_SLACK = 5 };

/* A building block. Slot of the first micro-batch on rank r: F0 at step[0] r, F1 at turn[0] -
 * step[1] r, I1 at turn[1] + step[2] r, I0 at turn[2] - step[3] r. */
typedef struct building_block {
    int64_t period;
    int64_t step[4];
    int64_t turn[3];
} building_block;

/* Slots of one rank, by chunk and kind of action (F, I, W). */
typedef struct slots {
    int64_t at[2][N_KIND];
} slots;

static const smp_action_kind kinds[N_KIND] = {SMP_ACTION_F, SMP_ACTION_I, SMP_ACTION_W};

static smp_status check(const smp_schedule_shape *shape)
{
    if (shape->chunks > 2)
        return smp_fail(SMP_ERR_INPUT,
                        "schedule zero-bubble: chunks %d, expected 1, or 2 in a V (stages 0 to "
                        "p-1, then folded back to rank 0)",
                        shape->chunks);
    if (shape->active < 0)
        return smp_fail(SMP_ERR_INPUT,
                        "schedule zero-bubble: %d live micro-batches, expected at least 1, or 0 "
                        "for the default: as many as ranks",
                        shape->active);
    return SMP_OK;
}

static int stage_rank(const smp_schedule_shape *shape, int stage)
{
    return shape->chunks == 2 && stage >= shape->pipeline ? 2 * shape->pipeline - 1 - stage : stage;
}

static int64_t minimum(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t maximum(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- one chunk */

static int64_t active_split(const smp_schedule_shape *shape)
{
    int64_t most = 2 * (int64_t)shape->pipeline - 1;
    return minimum(shape->active > 0 ? shape->active : shape->pipeline, most);
}

/* Forwards ahead of the first I. */
static int64_t warmup_split(const smp_schedule_shape *shape, int rank)
{
    int64_t p = shape->pipeline, behind = p - 1 - rank, active = active_split(shape);
    if (active >= p)
        return behind + minimum(active - p, behind);
    return ((active - 1) * behind + p - 2) / (p - 1); /* rounded up */
}

/* Weight gradients held back. */
static int64_t held_split(const smp_schedule_shape *shape, int rank)
{
    int64_t held = active_split(shape) - 1 - warmup_split(shape, rank);
    if (shape->lag == SMP_LAG_WHOLE)
        return 0;
    return shape->lag > 0 ? minimum(held, shape->lag - 1) : held;
}

static int most_lag(const smp_schedule_shape *shape)
{
    return shape->chunks == 2 ? 0 : (int)active_split(shape);
}

static smp_status order_split(const smp_schedule_shape *shape, int rank, smp_program *program)
{
    int64_t m = shape->microbatches, w = warmup_split(shape, rank);
    int64_t held_back = held_split(shape, rank), weights = 0;
    const bool whole = shape->lag == SMP_LAG_WHOLE;
    for (int64_t mb = 0; mb < minimum(w, m); mb++)
        SMP_TRY(smp_program_push(program, SMP_ACTION_F, (int)mb, 0));
    for (int64_t mb = 0; mb < m; mb++) {
        if (mb + w < m)
            SMP_TRY(smp_program_push(program, SMP_ACTION_F, (int)(mb + w), 0));
        SMP_TRY(smp_program_push(program, whole ? SMP_ACTION_B : SMP_ACTION_I, (int)mb, 0));
        bool drains = mb + w + 1 >= m; /* one I, one W: an I comes every second slot */
        if (!whole && (drains || mb + 1 - weights > held_back))
            SMP_TRY(smp_program_push(program, SMP_ACTION_W, (int)weights++, 0));
    }
    while (!whole && weights < m)
        SMP_TRY(smp_program_push(program, SMP_ACTION_W, (int)weights++, 0));
    return SMP_OK;
}

/* ---- two chunks */

/* The rank's slots; W takes the first that is free in every period. false: slots collide. */
static bool slots_of(const building_block *b, int64_t rank, slots *s)
{
    int64_t used[6] = {b->step[0] * rank, b->turn[0] - b->step[1] * rank,
                       b->turn[1] + b->step[2] * rank, b->turn[2] - b->step[3] * rank};
    int n = 4;
    s->at[0][0] = used[0];
    s->at[1][0] = used[1];
    s->at[1][1] = used[2];
    s->at[0][1] = used[3];
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if ((used[i] - used[k]) % b->period == 0)
                return false;
    for (int chunk = 1; chunk >= 0; chunk--) {
        int64_t at = s->at[chunk][1] + 1;
        for (int i = 0; i < n; i++)
            if ((at - used[i]) % b->period == 0) {
                at++;
                i = -1;
            }
        s->at[chunk][2] = used[n++] = at;
    }
    return true;
}

/* How many micro-batches below `m` have a slot at or before t, the first one at `first`. */
static int64_t begun(int64_t first, int64_t period, int64_t t, int64_t m)
{
    return t < first ? 0 : minimum((t - first) / period + 1, m);
}

/* Pairs alive in slot t, one of F. */
static int64_t alive(const slots *s, int64_t period, int64_t t, int64_t m)
{
    int64_t count = 0;
    for (int chunk = 0; chunk < 2; chunk++)
        count += begun(s->at[chunk][0], period, t, m) - begun(s->at[chunk][2], period, t - 1, m);
    return count;
}

/* Most pairs alive with m micro-batches. Beyond the last lifespan begun in the first period every
 * period is the same. */
static int64_t peak_alive(const slots *s, int64_t period, int64_t m)
{
    int64_t peak = 0, steady = maximum(s->at[0][2], s->at[1][2]) + period;
    for (int chunk = 0; chunk < 2; chunk++)
        for (int64_t mb = 0; mb < m; mb++) {
            int64_t t = s->at[chunk][0] + mb * period;
            peak = maximum(peak, alive(s, period, t, m));
            if (t > steady)
                break;
        }
    return peak;
}

/* Do the slots of all ranks differ, with at most `pairs` alive on each? Slots and lifespans change
 * evenly between ranks that are a period apart: only the ends can be worst. */
static bool block_fits(const building_block *b, int64_t p, int64_t pairs)
{
    for (int64_t rank = 0; rank < p; rank++) {
        slots s;
        if (rank == b->period && p - b->period > rank)
            rank = p - b->period;
        if (!slots_of(b, rank, &s))
            return false;
        int64_t first = maximum(s.at[0][2], s.at[1][2]) / b->period + 2; /* steady */
        for (int chunk = 0; chunk < 2; chunk++)
            if (alive(&s, b->period, s.at[chunk][0] + first * b->period, INT64_MAX) > pairs)
                return false;
    }
    return true;
}

/* Delays the turns as little as is needed for the block to fit. */
static bool turn_block(building_block *b, int64_t p, int64_t pairs)
{
    for (int total = 0; total <= 3 * MAX_SLACK; total++)
        for (int i = 0; i <= minimum(total, MAX_SLACK); i++)
            for (int k = 0; k <= minimum(total - i, MAX_SLACK); k++) {
                int last = total - i - k;
                if (last > MAX_SLACK)
                    continue;
                b->turn[0] = (b->step[0] + b->step[1]) * (p - 1) + 1 + i;
                b->turn[1] = b->turn[0] + 1 + k;
                b->turn[2] = b->turn[1] + (b->step[2] + b->step[3]) * (p - 1) + 1 + last;
                if (block_fits(b, p, pairs))
                    return true;
            }
    return false;
}

/* The block with the shortest warm-up that keeps at most the active micro-batches alive. */
static building_block find_block(const smp_schedule_shape *shape)
{
    static const building_block known[] = {
        {SPLIT_PERIOD, {3, 3, 3, 3}, {0}}, {SPLIT_PERIOD, {3, 3, 1, 3}, {0}},
        {SPLIT_PERIOD, {1, 3, 1, 3}, {0}}, {SPLIT_PERIOD, {1, 2, 1, 2}, {0}},
        {SPLIT_PERIOD, {1, 1, 1, 1}, {0}},
    };
    int64_t p = shape->pipeline, pairs = 2 * (int64_t)shape->active;
    building_block b;
    if (pairs == 0 || pairs > 2 * p)
        pairs = 2 * p;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        b = known[i];
        if (turn_block(&b, p, pairs))
            return b;
    }
    /* With an even period the parities alone keep most slots apart. Once it covers the lifespans,
     * one micro-batch is alive at a time: that always fits. */
    b.period = maximum(SPLIT_PERIOD + 2, 4 * p / pairs / 2 * 2);
    while (!turn_block(&b, p, pairs))
        b.period += 2;
    return b;
}

static smp_status order_folded(const smp_schedule_shape *shape, int rank, smp_program *program)
{
    building_block b = find_block(shape);
    slots s;
    slots_of(&b, rank, &s);
    int next[2][N_KIND] = {{0}};
    for (int64_t left = 2 * N_KIND * (int64_t)shape->microbatches; left > 0; left--) {
        int chunk = -1, kind = -1;
        int64_t earliest = INT64_MAX;
        for (int c = 0; c < 2; c++)
            for (int k = 0; k < N_KIND; k++) {
                int64_t at = s.at[c][k] + next[c][k] * b.period;
                if (next[c][k] < shape->microbatches && at < earliest) {
                    earliest = at;
                    chunk = c;
                    kind = k;
                }
            }
        SMP_TRY(smp_program_push(program, kinds[kind], next[chunk][kind]++, chunk));
    }
    return SMP_OK;
}

static int live_folded(const smp_schedule_shape *shape, int rank)
{
    building_block b = find_block(shape);
    slots s;
    slots_of(&b, rank, &s);
    return (int)peak_alive(&s, b.period, shape->microbatches);
}

static smp_status order(const smp_schedule_shape *shape, int rank, smp_program *program)
{
    return (shape->chunks == 2 ? order_folded : order_split)(shape, rank, program);
}

static int live(const smp_schedule_shape *shape, int rank)
{
    if (shape->chunks == 2)
        return live_folded(shape, rank);
    return (int)minimum(shape->microbatches,
                        warmup_split(shape, rank) + held_split(shape, rank) + 1);
}

const smp_schedule_kind smp__schedule_zero_bubble = {
    .name = "zero-bubble",
    .summary = "backwards in two halves, the second fills idle time; as much memory as it is given",
    .check = check,
    .stage_rank = stage_rank,
    .order = order,
    .live = live,
    .no_inference = true,
    .takes_active = true,
    .tries_active = true,
    .most_lag = most_lag,
    .even_costs = 2,
};
