/* Integer expressions of model files: decimal numbers, names, + - * / ( ), unary minus, 64-bit with
 * overflow checks; division truncates toward zero. Recursive descent with a depth limit. */
#ifndef SMP_GRAPH_MODEL_EXPR_H
#define SMP_GRAPH_MODEL_EXPR_H

#include <stdbool.h>

#include "graph/base/status.h"

/* Looks a name up; false if unknown. */
typedef bool (*smp_expr_lookup)(void *context, const char *name, size_t length, int64_t *value);

/* Evaluates `text`. `where` is the place of the scalar; errors (syntax, unknown name, division by
 * zero, overflow) add the offset to its column. */
smp_status smp_expr_eval(const char *text, smp_where where, smp_expr_lookup lookup, void *context,
                         int64_t *out);

#endif
