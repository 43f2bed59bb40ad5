/* What decides the bits of a training run, of all that a plan says: the graph, and which numbers
 * are added in which order and format. Pipelines, chunks, schedules, recomputation, offload and
 * placement do not; nor do replicas and shards, whose sums are one tree for a number of gradient
 * blocks (schedule/plan/gradient_blocks.h), unless they are rounded on the wire
 * (exec/transport/README.md) or operators add up over replicas (smp_op_joint). */
#include "schedule/check/same_bits.h"

#include <inttypes.h>
#include <string.h>

typedef struct comparison {
    const smp_plan *a, *b;
    bool training;
    smp_text *reason;
} comparison;

static bool trains(const smp_plan *plan)
{
    for (int64_t i = 0; i < plan->program[0].n; i++)
        if (plan->program[0].action[i].kind == SMP_ACTION_OPTIMIZE)
            return true;
    return false;
}

/* Without a reason so far, and both are the same. */
static bool same_numbers(comparison *c, const char *what, int64_t a, int64_t b)
{
    if (a != b)
        smp_text_append(c->reason, "%s: %" PRId64 " and %" PRId64, what, a, b);
    return a == b;
}

static bool same_words(comparison *c, const char *what, const char *a, const char *b)
{
    const bool same = strcmp(a, b) == 0;
    if (!same)
        smp_text_append(c->reason, "%s: %s and %s", what, a, b);
    return same;
}

static bool same_model(comparison *c)
{
    const bool same = c->a->fingerprint == c->b->fingerprint;
    if (!same)
        smp_text_append(c->reason, "model: %s (%016" PRIx64 ") and %s (%016" PRIx64 ")",
                        c->a->model_name, c->a->fingerprint, c->b->model_name, c->b->fingerprint);
    return same;
}

static bool same_frozen(comparison *c)
{
    const smp_freezing *a = &c->a->freezing, *b = &c->b->freezing;
    for (int32_t i = 0; i < a->n && i < b->n; i++)
        if (!same_words(c, "frozen weights", a->entry[i].text, b->entry[i].text))
            return false;
    return same_numbers(c, "number of frozen weights", a->n, b->n);
}

static int64_t all_samples(const smp_plan *plan)
{
    return plan->microbatch_size * smp_plan_microbatches(plan);
}

/* Without training, samples meet in the products of a micro-batch alone. */
static bool same_batch(comparison *c)
{
    return (!c->training ||
            same_numbers(c, "global batch", all_samples(c->a), all_samples(c->b))) &&
           same_numbers(c, "micro-batch size", c->a->microbatch_size, c->b->microbatch_size) &&
           (!c->training ||
            same_numbers(c, "gradient blocks", smp_plan_blocks(c->a), smp_plan_blocks(c->b)));
}

/* Where groups differ. */
static bool same_groups(comparison *c, const smp_splitting *a, const smp_splitting *b)
{
    for (int32_t i = 0; i < a->n_fewer && i < b->n_fewer; i++)
        if (strcmp(a->fewer[i].op, b->fewer[i].op) != 0 ||
            a->fewer[i].devices != b->fewer[i].devices) {
            smp_text_append(c->reason, "devices: %s by %d and %s by %d", a->fewer[i].op,
                            a->fewer[i].devices, b->fewer[i].op, b->fewer[i].devices);
            return false;
        }
    return same_numbers(c, "number of ops of smaller groups", a->n_fewer, b->n_fewer);
}

static bool same_splitting(comparison *c)
{
    const smp_splitting *a = &c->a->splitting, *b = &c->b->splitting;
    if (!same_numbers(c, "tensor", smp_plan_tensor(c->a), smp_plan_tensor(c->b)))
        return false;
    for (int32_t i = 0; i < a->n_entry && i < b->n_entry; i++)
        if (strcmp(a->entry[i].op, b->entry[i].op) != 0 ||
            strcmp(a->entry[i].as, b->entry[i].as) != 0) {
            smp_text_append(c->reason, "split: %s:%s and %s:%s", a->entry[i].op, a->entry[i].as,
                            b->entry[i].op, b->entry[i].as);
            return false;
        }
    return same_numbers(c, "number of ops that are split", a->n_entry, b->n_entry) &&
           same_groups(c, a, b);
}

/* Where the plan says nothing the library chooses, by what it finds. */
static bool same_products(comparison *c)
{
    const smp_gemm_choices *a = &c->a->products, *b = &c->b->products;
    const bool chosen = smp_backend_of(c->a->target)->picks_gemms;
    bool same = !chosen || (!a->device == !b->device && a->n == b->n &&
                            (!a->device || (strcmp(a->device, b->device) == 0 &&
                                            strcmp(a->library, b->library) == 0)));
    for (int i = 0; same && chosen && i < a->n; i++)
        same = strcmp(a->choice[i].product, b->choice[i].product) == 0 &&
               strcmp(a->choice[i].algorithm, b->choice[i].algorithm) == 0;
    if (!same)
        smp_text_append(c->reason, "products: other algorithms are chosen");
    return same;
}

static bool same_formats(comparison *c)
{
    const smp_target a = c->a->target, b = c->b->target;
    return same_words(c, "device", smp_backend_name(a.backend), smp_backend_name(b.backend)) &&
           same_words(c, "precision", smp_precision_name(a.precision),
                      smp_precision_name(b.precision)) &&
           (!c->training || same_words(c, "state precision", a.bf16_states ? "bf16" : "fp32",
                                       b.bf16_states ? "bf16" : "fp32")) &&
           same_products(c);
}

static bool rounds_sums(const smp_plan *plan)
{
    return plan->ddp > 1 && smp_wire_is_bf16(plan->sharding);
}

/* Replicas of a group whose sums are rounded by themselves. */
static int group_of(const smp_plan *plan)
{
    const int shard = plan->sharding.shard;
    return shard > 1 && shard < plan->ddp ? shard : plan->ddp;
}

static bool same_wire(comparison *c)
{
    const bool a = rounds_sums(c->a), b = rounds_sums(c->b);
    if (!same_words(c, "gradient wire", a ? "bf16" : "fp32", b ? "bf16" : "fp32"))
        return false;
    return !a ||
           (same_numbers(c, "gradient wire bf16, ddp", c->a->ddp, c->b->ddp) &&
            same_numbers(c, "gradient wire bf16, shard group", group_of(c->a), group_of(c->b)) &&
            same_numbers(c, "gradient wire bf16, node replicas", c->a->sharding.node_replicas,
                         c->b->sharding.node_replicas));
}

smp_status smp_same_bits(const smp_plan *a, const smp_plan *b, bool *same, smp_text *reason)
{
    comparison c = {.a = a, .b = b, .training = trains(a), .reason = reason};
    /* A fingerprint is that of the graph split. */
    const bool found = same_splitting(&c) && same_model(&c) && same_frozen(&c) && same_batch(&c) &&
                       same_formats(&c) && (!c.training || same_wire(&c));
    if (reason->failed)
        return smp_fail_memory(reason->length);
    *same = found;
    return SMP_OK;
}

smp_status smp_same_joint_bits(const smp_plan *a, const smp_plan *b, const smp_graph *graph,
                               bool *same, smp_text *reason)
{
    const smp_op *op = a->ddp != b->ddp && trains(a) ? smp_joint_op(graph) : NULL;
    if (op)
        smp_text_append(reason, "op '%s' adds up over replicas, ddp: %d and %d", op->name, a->ddp,
                        b->ddp);
    if (reason->failed)
        return smp_fail_memory(reason->length);
    *same = !op;
    return SMP_OK;
}

/* A model that is not there says nothing. */
static smp_status compare_joint(const smp_plan *a, const char *path, const smp_plan *b, bool *same,
                                smp_text *reason)
{
    smp_graph *graph = NULL;
    if (smp_plan_open_model(a, path, 0, &graph) != SMP_OK)
        return SMP_OK;
    const smp_status status = smp_same_joint_bits(a, b, graph, same, reason);
    smp_graph_destroy(graph);
    return status;
}

static void report(const char *path, const char *other, bool json, bool same, const char *reason,
                   smp_text *text)
{
    if (json) {
        smp_text_append(text, "{\"same_bits\": %s, \"reason\": ", same ? "true" : "false");
        smp_text_append_quoted(text, reason);
        smp_text_append(text, "}\n");
    } else if (same) {
        smp_text_append(text, "%s and %s: the same bits\n", path, other);
    }
}

smp_status smp_same_bits_report(const char *path, const char *other, bool json, smp_text *text)
{
    smp_plan *a = NULL, *b = NULL;
    smp_text reason = {0};
    bool same = false;
    smp_status status = smp_plan_read(path, &a);
    if (status == SMP_OK)
        status = smp_plan_read(other, &b);
    if (status == SMP_OK)
        status = smp_same_bits(a, b, &same, &reason);
    if (status == SMP_OK && same)
        status = compare_joint(a, path, b, &same, &reason);
    if (status == SMP_OK) {
        report(path, other, json, same, same ? "" : reason.data, text);
        if (text->failed)
            status = smp_fail_memory(text->length);
        else if (!same)
            status =
                smp_fail(SMP_ERR_FAILED, "%s and %s: other bits: %s", path, other, reason.data);
    }
    smp_text_free(&reason);
    smp_plan_destroy(b);
    smp_plan_destroy(a);
    return status;
}
