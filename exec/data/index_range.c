/* Bounds of an int32 input; see the header. */
#include "exec/data/index_range.h"

#include <stdio.h>

#include "graph/model/op.h"

smp__index_range smp__index_range_of(const smp_graph *graph, int input)
{
    smp__index_range range = {
        .input = graph->tensor[input].name, .min = INT32_MIN, .max = INT32_MAX};
    for (int64_t c = graph->consumer_begin[input]; c < graph->consumer_begin[input + 1]; c++) {
        const smp_op *op = &graph->op[graph->consumer[c].op];
        int64_t min, max;
        if (!op->kind->index_range ||
            !op->kind->index_range(graph, op, graph->consumer[c].slot, &min, &max))
            continue;
        if (min > range.min) {
            range.min = min;
            range.min_op = op;
        }
        if (max < range.max) {
            range.max = max;
            range.max_op = op;
        }
    }
    return range;
}

char *smp__index_range_format(char *buffer, size_t size, const smp__index_range *range,
                              int64_t value)
{
    const smp_op *op = value < range->min ? range->min_op : range->max_op;
    if (op)
        snprintf(buffer, size, "input '%s' takes %lld to %lld (%s '%s')", range->input,
                 (long long)range->min, (long long)range->max, op->kind->name, op->name);
    else
        snprintf(buffer, size, "input '%s' is int32", range->input);
    return buffer;
}
