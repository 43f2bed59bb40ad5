/* What the file says of an op that is only planned: its outputs one by one, its weights by name and
 * whether gradients pass it. Ops with kernels say all that themselves. */
#include <stdio.h>
#include <string.h>

#include "graph/model/model.h"

enum { WHAT_BYTES = SMP_MAX_NAME + 128 };

const char *const smp__declared_keys[SMP__N_DECLARED_KEY] = {"outputs", "weights", "grad"};

/* "op 'a': outputs" into `what`. */
static void set_what(char what[WHAT_BYTES], const smp__op_template *t, const char *key)
{
    snprintf(what, WHAT_BYTES, "op '%.*s': %s", (int)SMP_MAX_NAME, t->name.source, key);
}

static smp_status fail_dtype(const smp_yaml_node *node, const char *what, const char *text)
{
    smp_text names = {0};
    for (int i = 0; smp_dtype_names[i]; i++)
        smp_text_append(&names, "%s%s", i > 0 ? ", " : "", smp_dtype_names[i]);
    smp_status status =
        names.failed ? SMP_ERR_NO_MEMORY
                     : smp_fail_at(smp_yaml_where(node), "%s: got '%.60s', expected one of %s",
                                   what, text, names.data);
    smp_text_free(&names);
    return status;
}

smp_status smp__dtype_read(const smp_yaml_node *node, const char *what, smp_dtype *out)
{
    const char *text;
    SMP_TRY(smp_yaml_string(node, what, &text));
    return smp_dtype_find(text, out) ? SMP_OK : fail_dtype(node, what, text);
}

/* Exactly one of the keys `shape` and `bytes`. */
static smp_status read_size(const smp_yaml_node *entry, const char *what,
                            const smp_yaml_node **shape, int64_t *bytes)
{
    const smp_yaml_node *size = smp_yaml_get(entry, "bytes");
    *shape = smp_yaml_get(entry, "shape");
    *bytes = 0;
    if (*shape && size)
        return smp_fail_at(smp_yaml_where(size), "%s: got both shape and bytes, expected one",
                           what);
    if (*shape)
        return smp_yaml_list(*shape, what);
    return size ? smp_yaml_bytes(size, what, bytes) : SMP_OK;
}

static smp_status compile_output(smp__model *m, const smp_yaml_node *entry, const char *what,
                                 smp__op_template *t, int32_t i)
{
    static const char *const keys[] = {"name", "dtype", "shape", "bytes", "batched"};
    smp__declared_output *output = &t->declared->output[i];
    SMP_TRY(smp_yaml_map(entry, what));
    SMP_TRY(smp_yaml_known_keys(entry, what, keys, sizeof keys / sizeof keys[0]));
    const smp_yaml_node *name = smp_yaml_get(entry, "name");
    const smp_yaml_node *dtype = smp_yaml_get(entry, "dtype");
    const smp_yaml_node *batched = smp_yaml_get(entry, "batched");
    if (!name)
        return smp_fail_at(smp_yaml_where(entry), "%s: no 'name', expected the tensor's", what);
    SMP_TRY(smp__pattern_compile(m, name, what, SMP__NAME_TEXT, &t->out[i]));
    *output = (smp__declared_output){.batched = true};
    if (dtype)
        SMP_TRY(smp__dtype_read(dtype, what, &output->dtype));
    if (batched)
        SMP_TRY(smp_yaml_bool(batched, what, &output->batched));
    SMP_TRY(read_size(entry, what, &output->shape, &output->bytes));
    if (batched && !output->shape)
        return smp_fail_at(smp_yaml_where(batched),
                           "%s: batched: it says how often a shape is there: give a shape", what);
    t->values +=
        1 + smp__text_values(&t->out[i]) + (output->shape ? smp_yaml_list_size(output->shape) : 0);
    return SMP_OK;
}

static smp_status compile_outputs(smp__model *m, const smp_yaml_node *outputs, smp__op_template *t)
{
    char what[WHAT_BYTES];
    set_what(what, t, "outputs");
    SMP_TRY(smp_yaml_list(outputs, what));
    int32_t n = smp_yaml_list_size(outputs);
    if (n < 1 || n > SMP_OP_MAX_OUT)
        return smp_fail_at(smp_yaml_where(outputs), "%s: got %d, expected 1 to %d", what, (int)n,
                           (int)SMP_OP_MAX_OUT);
    t->out = smp_arena_alloc_aligned(m->scratch, (size_t)n, sizeof *t->out, 8);
    t->declared->output = SMP_ARENA_NEW(m->scratch, smp__declared_output, (size_t)n);
    if (!t->out || !t->declared->output)
        return SMP_ERR_NO_MEMORY;
    t->n_out = n;
    for (int32_t i = 0; i < n; i++)
        SMP_TRY(compile_output(m, smp_yaml_list_at(outputs, i), what, t, i));
    return SMP_OK;
}

/* A map, or just the name of a weight that an earlier op has. */
static smp_status compile_weight(smp__model *m, const smp_yaml_node *entry, const char *what,
                                 smp__op_template *t, smp__declared_weight *weight)
{
    static const char *const keys[] = {"name", "shape", "bytes"};
    const smp_yaml_node *name = entry;
    if (!smp_yaml_text(entry)) {
        SMP_TRY(smp_yaml_map(entry, what));
        SMP_TRY(smp_yaml_known_keys(entry, what, keys, sizeof keys / sizeof keys[0]));
        name = smp_yaml_get(entry, "name");
        if (!name)
            return smp_fail_at(smp_yaml_where(entry), "%s: no 'name', expected the weight's", what);
        SMP_TRY(read_size(entry, what, &weight->shape, &weight->bytes));
    }
    SMP_TRY(smp__pattern_compile(m, name, what, SMP__NAME_TEXT, &weight->name));
    t->values += 1 + smp__text_values(&weight->name) +
                 (weight->shape ? smp_yaml_list_size(weight->shape) : 0);
    return SMP_OK;
}

static smp_status compile_weights(smp__model *m, const smp_yaml_node *weights, smp__op_template *t)
{
    char what[WHAT_BYTES];
    set_what(what, t, "weights");
    SMP_TRY(smp_yaml_list(weights, what));
    smp__declared *declared = t->declared;
    declared->n_weight = smp_yaml_list_size(weights);
    declared->weight =
        SMP_ARENA_NEW(m->scratch, smp__declared_weight, (size_t)declared->n_weight + 1);
    if (!declared->weight)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < declared->n_weight; i++)
        SMP_TRY(compile_weight(m, smp_yaml_list_at(weights, i), what, t, &declared->weight[i]));
    return SMP_OK;
}

static smp_status fail_twice(const smp_yaml_node *node, const char *key, const char *by)
{
    const smp_yaml_node *twice = smp_yaml_get(node, key);
    return twice ? smp_fail_at(smp_yaml_where(twice), "%s: '%s' says that already: leave it out",
                               key, by)
                 : SMP_OK;
}

smp_status smp__declared_compile(smp__model *m, const smp_yaml_node *node, smp__op_template *t)
{
    const smp_yaml_node *outputs = smp_yaml_get(node, "outputs");
    const smp_yaml_node *weights = smp_yaml_get(node, "weights");
    const smp_yaml_node *grad = smp_yaml_get(node, "grad");
    bool passes = true;
    t->declared = SMP_ARENA_NEW(m->scratch, smp__declared, 1);
    if (!t->declared)
        return SMP_ERR_NO_MEMORY;
    if (outputs) {
        SMP_TRY(fail_twice(node, "out", "outputs"));
        SMP_TRY(fail_twice(node, "shape", "outputs"));
        SMP_TRY(fail_twice(node, "dtype", "outputs"));
        SMP_TRY(compile_outputs(m, outputs, t));
        t->values--; /* an op's first output is part of it */
    }
    if (weights)
        SMP_TRY(compile_weights(m, weights, t));
    if (grad) {
        char what[WHAT_BYTES];
        set_what(what, t, "grad");
        SMP_TRY(smp_yaml_bool(grad, what, &passes));
    }
    t->declared->no_gradient = !passes;
    return SMP_OK;
}

smp_status smp__declared_check_cost(const smp__op_template *t, const smp_infer *infer)
{
    const smp_op_cost_override *cost = infer->op->cost;
    const bool output = cost && t->declared->output && cost->output_bytes >= 0;
    const bool weight = cost && t->declared->weight && cost->weight_bytes >= 0;
    if (!output && !weight)
        return SMP_OK;
    return smp_infer_fail(infer, "cost: %s: '%s' says that already: leave it out",
                          output ? "output_bytes" : "weight_bytes", output ? "outputs" : "weights");
}

smp_status smp__declared_tensor(smp__model *m, const smp__op_template *t, const smp_op *op,
                                int32_t k, smp_tensor *out)
{
    const smp__declared_output *output = &t->declared->output[k];
    *out = (smp_tensor){.dtype = output->dtype,
                        .batched = output->batched,
                        .known = output->shape != NULL,
                        .planned = !smp_dtype_runs(output->dtype),
                        .bytes = output->bytes};
    return output->shape ? smp__model_shape(m, output->shape, op->name, "outputs", &out->shape)
                         : SMP_OK;
}

/* By its shape or its bytes; of no elements where nothing says. */
static smp_status declared_shape(smp__model *m, const smp_op *op,
                                 const smp__declared_weight *weight, smp_shape *shape)
{
    *shape = (smp_shape){.n_dim = 1, .dim = {(weight->bytes + 3) / 4}};
    return weight->shape ? smp__model_shape(m, weight->shape, op->name, "weights", shape) : SMP_OK;
}

/* The weight of that name, or a new one. */
static smp_status declare(smp__model *m, const smp_infer *infer, const smp__declared_weight *weight,
                          int32_t *out)
{
    const char *name;
    smp_shape shape;
    SMP_TRY(declared_shape(m, infer->op, weight, &shape));
    SMP_TRY(smp__pattern_expand(m, &weight->name, SMP_MAX_NAME, &name));
    *out = smp__name_index_find(&m->store->param_index, m->store->param, name);
    if (*out < 0 && smp_shape_elements(&shape) <= 0)
        return smp_fail_at(weight->name.where,
                           "op '%s': weights: '%s' has no size, expected shape or bytes (at most "
                           "2^40 elements), or the name of a weight of an op before it",
                           infer->op->name, name);
    if (*out < 0)
        return smp__model_add_param(m, infer, name, &shape, out);
    const smp_param *param = &m->store->param[*out];
    int64_t elements = smp_shape_elements(&shape);
    if ((weight->shape || weight->bytes > 0) && elements != param->elements)
        return smp_fail_at(
            weight->name.where,
            "op '%s': weights: '%s' has %lld values of 4 bytes, an op before it says "
            "%lld",
            infer->op->name, name, (long long)elements, (long long)param->elements);
    return SMP_OK;
}

/* Until uses are counted use_begin is free: it holds the last op that declared the weight, + 1. */
static smp_status check_once(smp__model *m, const smp__pattern *name, const smp_op *op,
                             int32_t index)
{
    smp_param *param = &m->store->param[index];
    const int32_t mark = (int32_t)(op - m->op) + 1;
    if (param->use_begin == mark)
        return smp_fail_at(name->where, "op '%s': weights: got '%s' twice", op->name, param->name);
    param->use_begin = mark;
    return SMP_OK;
}

smp_status smp__declared_params(smp__model *m, const smp__op_template *t, const smp_infer *infer,
                                int32_t *param)
{
    for (int32_t i = 0; i < t->declared->n_weight; i++) {
        SMP_TRY(declare(m, infer, &t->declared->weight[i], &param[i]));
        SMP_TRY(check_once(m, &t->declared->weight[i].name, infer->op, param[i]));
    }
    return SMP_OK;
}
