/* Integer expressions of model files: decimal numbers, names, items of lists, + - * / ( ), unary
 * minus, comparisons, which are 1 or 0; 64-bit with overflow checks; division truncates toward
 * zero. Recursive descent with a depth limit. */
#ifndef SMP_GRAPH_MODEL_EXPR_H
#define SMP_GRAPH_MODEL_EXPR_H

#include <stdbool.h>

#include "graph/base/status.h"

/* What a name stands for: an integer, or a list of them. */
typedef struct smp_expr_name {
    const int64_t *item;
    int64_t count; /* of a list, at least 1; 0: an integer, item[0] */
} smp_expr_name;

/* Looks a name up; false if unknown. */
typedef bool (*smp_expr_lookup)(void *context, const char *name, size_t length, smp_expr_name *out);

/* Evaluates `text`. `where` is the place of the scalar; errors (syntax, unknown name, division by
 * zero, overflow, an index that is none) add the offset to its column. */
smp_status smp_expr_eval(const char *text, smp_where where, smp_expr_lookup lookup, void *context,
                         int64_t *out);

#endif
