/* Layers by names; see the header. */
#include "schedule/plan/layer_names.h"

#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

size_t smp_layer_length(const char *name)
{
    const char *dot = strchr(name, '.');
    if (dot && dot > name && is_digit(dot[-1]))
        return (size_t)(dot - name);
    for (; dot; dot = strchr(dot + 1, '.')) {
        const size_t digits = strspn(dot + 1, "0123456789");
        if (digits > 0 && dot[1 + digits] == '.')
            return (size_t)(dot - name) + 1 + digits;
    }
    return 0;
}

size_t smp_layer_kind_length(const char *name)
{
    size_t length = smp_layer_length(name);
    while (length > 0 && is_digit(name[length - 1]))
        length--;
    return length;
}

static bool same_head(const char *a, size_t a_length, const char *b, size_t b_length)
{
    return a_length == b_length && strncmp(a, b, a_length) == 0;
}

bool smp_same_layer(const char *a, const char *b)
{
    return same_head(a, smp_layer_length(a), b, smp_layer_length(b));
}

bool smp_same_layer_kind(const char *a, const char *b)
{
    return same_head(a, smp_layer_kind_length(a), b, smp_layer_kind_length(b));
}

int32_t smp_layers_begin(const smp_graph *graph, bool *begins)
{
    const char *layer = "";
    int32_t last = -1, n = 0;
    for (int32_t op = 0; op < graph->n_op; op++) {
        const char *name = graph->op[op].name;
        if (smp_layer_length(name) == 0)
            continue;
        if (!smp_same_layer(layer, name)) {
            begins[op] = true;
            n++;
        }
        layer = name;
        last = op;
    }
    if (last >= 0 && last + 1 < graph->n_op)
        begins[last + 1] = true;
    return n;
}
