/* Blocks: what `repeat` and `when` make of them. Counting multiplies: a body whose own counts and
 * conditions do not use the variable of the block around it is counted once. Only bodies that do
 * are counted for each iteration, and the number of iterations is limited too, so a model that is
 * too large is refused at once. */
#include "graph/model/model.h"

/* A repeat may hold nothing but a repeat of 0: iterations are limited as well as ops. The third
 * limit keeps a body of many inputs from being copied many times. */
#define MAX_ITERATIONS ((int64_t)4 * SMP_MAX_OPS)
#define MAX_VALUES ((int64_t)200000000)

typedef struct totals {
    int64_t ops;
    int64_t tensors; /* bounded by values */
    int64_t iterations;
    int64_t values;
} totals;

/* How often an item stands there: as its `when` and `repeat` say. */
static smp_status turns(smp__model *m, const smp__item *item, int64_t *count)
{
    int64_t when = 1;
    if (item->when)
        SMP_TRY(smp__model_eval(m, item->when, NULL, "when", INT64_MIN, INT64_MAX, &when));
    *count = when != 0;
    if (when == 0 || !item->count)
        return SMP_OK;
    return smp__model_eval(m, item->count, NULL, "repeat", 0, INT64_MAX, count);
}

static void enter_loop(smp__model *m, const smp__item *item)
{
    m->loop[m->n_loop].name = item->variable;
    m->loop[m->n_loop].value = 0;
    m->n_loop++; /* at most SMP__MAX_LOOPS: checked when compiled */
}

smp_status smp__model_walk(smp__model *m, const smp__block *block, smp__visit visit, void *context)
{
    for (int32_t i = 0; i < block->n_item; i++) {
        const smp__item *item = &block->item[i];
        int64_t count;
        SMP_TRY(turns(m, item, &count));
        if (item->op) {
            if (count > 0)
                SMP_TRY(visit(m, item->op, context));
            continue;
        }
        enter_loop(m, item);
        for (int64_t k = 0; k < count; k++) {
            m->loop[m->n_loop - 1].value = k;
            SMP_TRY(smp__model_walk(m, item->body, visit, context));
        }
        m->n_loop--;
    }
    return SMP_OK;
}

static bool exceeds(int64_t *sum, int64_t times, int64_t each, int64_t limit)
{
    int64_t product;
    return __builtin_mul_overflow(times, each, &product) ||
           __builtin_add_overflow(*sum, product, sum) || *sum > limit;
}

/* sum += times * part, or fails at `where`. */
static smp_status add(totals *sum, int64_t times, const totals *part, smp_where where)
{
    if (exceeds(&sum->ops, times, part->ops, SMP_MAX_OPS))
        return smp_fail_at(where, "the repeats make more than %d ops, expected at most that many",
                           (int)SMP_MAX_OPS);
    if (exceeds(&sum->iterations, times, part->iterations, MAX_ITERATIONS))
        return smp_fail_at(where, "the repeats take more than %lld turns, expected at most as many",
                           (long long)MAX_ITERATIONS);
    if (exceeds(&sum->values, times, part->values, MAX_VALUES))
        return smp_fail_at(where,
                           "the repeated ops hold more than %lld inputs and values, expected at "
                           "most as many",
                           (long long)MAX_VALUES);
    sum->tensors += times * part->tensors;
    return SMP_OK;
}

static smp_status count_items(smp__model *m, const smp__block *block, totals *sum);

static smp_status count_block(smp__model *m, const smp__item *item, int64_t count, totals *sum)
{
    enter_loop(m, item);
    uint64_t mine = (uint64_t)1 << (m->n_loop - 1);
    for (int64_t k = 0; k < count;) {
        totals body = {.iterations = 1};
        m->loop[m->n_loop - 1].value = k;
        m->loops_used &= ~mine;
        SMP_TRY(count_items(m, item->body, &body));
        int64_t times = m->loops_used & mine ? 1 : count - k;
        SMP_TRY(add(sum, times, &body, item->where));
        k += times;
    }
    m->loops_used &= ~mine;
    m->n_loop--;
    return SMP_OK;
}

static smp_status count_items(smp__model *m, const smp__block *block, totals *sum)
{
    for (int32_t i = 0; i < block->n_item; i++) {
        const smp__item *item = &block->item[i];
        const smp__op_template *op = item->op;
        int64_t count;
        SMP_TRY(turns(m, item, &count));
        if (!op || count == 0) /* what is left out takes time too */
            SMP_TRY(add(sum, 1, &(totals){.iterations = 1}, item->where));
        if (!op)
            SMP_TRY(count_block(m, item, count, sum));
        else if (count > 0)
            SMP_TRY(add(sum, 1, &(totals){.ops = 1, .tensors = op->n_out, .values = op->values},
                        item->where));
    }
    return SMP_OK;
}

smp_status smp__model_count(smp__model *m, int64_t *ops, int64_t *tensors)
{
    totals sum = {0};
    SMP_TRY(count_items(m, &m->ops, &sum));
    *ops = sum.ops;
    *tensors = sum.tensors;
    return SMP_OK;
}
