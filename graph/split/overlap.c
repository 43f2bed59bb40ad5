/* See overlap.h. Megatron-LM hides the sum of a layer's input gradients after that layer's weight
 * gradient; here what the block before has left is hidden behind too, and with sequence parallelism
 * the gather of the next block's gradients gets half. */
#include "graph/split/overlap.h"

typedef enum duty {
    NOTHING,
    PRODUCT, /* a weight gradient that may be put off */
    HALVES,  /* an exchange that may be begun and ended */
    CALL     /* one that waits for the others in the middle */
} duty;

static bool passes_gradient(const smp_graph *graph, const smp_op *op)
{
    for (int32_t i = 0; i < op->n_in; i++)
        if (graph->tensor[op->in[i]].needs_grad)
            return true;
    return false;
}

static duty duty_of(const smp_graph *graph, const smp_op *op, int64_t batch)
{
    smp_op_work work;
    if (!smp_op_has_gradient(graph, op))
        return NOTHING;
    smp_op_work_get(graph, op, batch, &work);
    if (work.backward_input_exchange.messages > 0 && passes_gradient(graph, op))
        return op->kind->cpu.backward_input_begin ? HALVES : CALL;
    /* what is made at once with the input's gradient takes longer alone */
    return smp_op_has_trained(graph, op) && work.kind != SMP_OP_PLAIN && op->kind->cpu.forward &&
                   !op->kind->cpu.backward
               ? PRODUCT
               : NOTHING;
}

/* Exchanges from op[i] down that what is left has to be shared among. */
static int32_t count_takers(const smp_graph *graph, const int32_t *op, int32_t i, int64_t batch)
{
    int32_t n = 0;
    for (; i >= 0; i--) {
        const duty duty = duty_of(graph, &graph->op[op[i]], batch);
        if (duty == PRODUCT || duty == CALL)
            break;
        n += duty == HALVES;
    }
    return n;
}

/* What is put off keeps the gradient of its output, which should not be the largest of all. */
static bool is_large(const smp_graph *graph, const smp_op *product, const smp_op *exchange)
{
    enum { TIMES = 4 };
    return smp_tensor_bytes(graph, product->out, 1) >
           TIMES * smp_tensor_bytes(graph, exchange->out, 1);
}

void smp_overlap_find(const smp_graph *graph, const int32_t *op, int32_t n, int64_t batch,
                      int32_t *beside)
{
    int32_t left = 0, takers = 0, next = n; /* `next`: above the first of those that are left */
    for (int32_t i = 0; i < n; i++)
        beside[i] = -1;
    for (int32_t i = n - 1; i >= 0 && graph->training && graph->overlap; i--) {
        const duty duty = duty_of(graph, &graph->op[op[i]], batch);
        if (duty == PRODUCT && left++ == 0)
            next = i + 1;
        if (duty == CALL)
            left = 0;
        if (duty != HALVES)
            continue;
        takers = takers > 0 ? takers : count_takers(graph, op, i, batch);
        for (int32_t take = (left + takers - 1) / takers; take > 0; take--, left--) {
            while (duty_of(graph, &graph->op[op[--next]], batch) != PRODUCT)
                continue;
            if (!is_large(graph, &graph->op[op[next]], &graph->op[op[i]]))
                beside[next] = i;
        }
        takers--;
    }
}
