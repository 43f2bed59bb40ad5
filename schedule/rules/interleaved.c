/* The interleaved schedule: one forward, one backward (PipeDream-Flush; Narayanan et al., ICML
 * 2021), over virtual stages when a rank holds several chunks (Narayanan et al., SC 2021).
 *
 * A rank walks its (micro-batch, chunk) pairs in groups of g micro-batches (g = p unless asked for
 * otherwise): the group through chunk 0, then through chunk 1, and so on; backwards the same with
 * the chunks reversed. After the warm-up forwards, one forward and one backward alternate. With
 * g < p - 1 a forward of rank 0 would wait, by way of the last rank, for a backward that rank 0
 * runs later. Groups longer than the step are one group of all micro-batches.
 *
 * If g does not divide the micro-batches, the last group is filled up with micro-batches that do
 * not exist, and their actions are left out. What remains waits for less than the full order does,
 * so it cannot deadlock; a shorter last group that keeps the warm-up can (4 ranks, 3 chunks, 5
 * micro-batches: the tail's forward and the gradients before it wait for each other). Linear. */
#include <limits.h>

#include "schedule/rules/schedule.h"

/* Without chunks groups make no difference, without backwards none deadlocks. */
static smp_status check(const smp_schedule_shape *shape)
{
    if (shape->chunks == 1 || !shape->training || shape->group == 0 ||
        shape->group >= shape->pipeline)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT,
                    "schedule interleaved: groups of %d micro-batches, expected at least %d, the "
                    "number of pipeline ranks: a smaller group would wait for itself",
                    shape->group, shape->pipeline);
}

static int64_t group_size(const smp_schedule_shape *shape)
{
    int64_t longest = shape->microbatches > shape->pipeline ? shape->microbatches : shape->pipeline;
    int64_t asked = shape->chunks > 1 && shape->group > 0 ? shape->group : shape->pipeline;
    return asked < longest ? asked : longest;
}

/* Pairs of all groups, the filled-up one included. */
static int64_t filled_count(const smp_schedule_shape *shape)
{
    int64_t g = group_size(shape), groups = (shape->microbatches + g - 1) / g;
    return groups * g * shape->chunks;
}

/* Forwards before the first backward. The downstream ranks need p-1-r of them; with chunks, all
 * groups before the last chunk's come first, and a gradient takes twice as long to come around. */
static int64_t warmup_count(const smp_schedule_shape *shape, int rank)
{
    int64_t behind = shape->pipeline - 1 - rank;
    int64_t warmup =
        shape->chunks == 1 ? behind : (shape->chunks - 1) * group_size(shape) + 2 * behind;
    int64_t filled = filled_count(shape);
    return warmup < filled ? warmup : filled;
}

/* Appends pair number `index` of the walk, unless its micro-batch does not exist. */
static smp_status push_pair(const smp_schedule_shape *shape, smp_action_kind kind, int64_t index,
                            smp_program *program)
{
    int64_t g = group_size(shape), pairs = g * shape->chunks;
    int64_t mb = index / pairs * g + index % g;
    int chunk = (int)(index % pairs / g);
    if (mb >= shape->microbatches)
        return SMP_OK;
    if (kind == SMP_ACTION_B)
        chunk = shape->chunks - 1 - chunk;
    return smp_program_push(program, kind, (int)mb, chunk);
}

static smp_status order(const smp_schedule_shape *shape, int rank, smp_program *program)
{
    int64_t n = filled_count(shape);
    int64_t warmup = shape->training ? warmup_count(shape, rank) : n;
    for (int64_t i = 0; i < warmup; i++)
        SMP_TRY(push_pair(shape, SMP_ACTION_F, i, program));
    for (int64_t i = warmup; i < n; i++) {
        SMP_TRY(push_pair(shape, SMP_ACTION_F, i, program));
        SMP_TRY(push_pair(shape, SMP_ACTION_B, i - warmup, program));
    }
    for (int64_t i = n - warmup; shape->training && i < n; i++)
        SMP_TRY(push_pair(shape, SMP_ACTION_B, i, program));
    return SMP_OK;
}

/* Existing pairs among the first `count` of the walk. */
static int64_t existing_count(const smp_schedule_shape *shape, int64_t count)
{
    int64_t g = group_size(shape), tail = shape->microbatches % g;
    int64_t full = (shape->microbatches - tail) * shape->chunks; /* pairs of the full groups */
    if (count <= full)
        return count;
    int64_t in_run = (count - full) % g;
    return full + (count - full) / g * tail + (in_run < tail ? in_run : tail);
}

/* The warm-up and one forward more. Pairs get sparser towards the end of the walk and a run of g
 * begins with those that exist, so no later window of that length holds more. */
static int live(const smp_schedule_shape *shape, int rank)
{
    if (!shape->training)
        return 1;
    int64_t window = warmup_count(shape, rank) + 1, filled = filled_count(shape);
    int64_t pairs = existing_count(shape, window < filled ? window : filled);
    return pairs < INT_MAX ? (int)pairs : INT_MAX;
}

const smp_schedule_kind smp__schedule_interleaved = {
    .name = "interleaved",
    .alias = "1f1b",
    .summary = "one forward, one backward; with chunks, over virtual stages",
    .check = check,
    .order = order,
    .live = live,
    .even_costs = 1,
};
