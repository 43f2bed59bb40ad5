/* Rows of a table that are asked for by numbers which the file computes from its integer inputs:
 * RoBERTa's and OPT's positions, which count what is no padding. They depend on no weight, so they
 * are data, and become an input of the model under the name that ONNX has for them. */
#include "graph/import/importing.h"

#include <string.h>

static bool is_whole(int type)
{
    return type == ONNX__TENSOR_PROTO__DATA_TYPE__INT64 ||
           type == ONNX__TENSOR_PROTO__DATA_TYPE__INT32;
}

/* Nodes are before their readers, so one pass back from the value finds all that it needs. */
static bool is_computed(smp_import *im, const smp_onnx_value *value, bool *needed)
{
    const smp_onnx_model *m = im->model;
    bool computes = false;
    memset(needed, 0, sizeof(*needed) * (size_t)m->n_value);
    needed[value - m->value] = true;
    for (int32_t i = value->producer; i >= 0; i--) {
        const smp_onnx_node *node = &m->node[i];
        bool is_needed = false;
        for (int k = 0; k < node->n_out; k++)
            is_needed |= node->out[k] >= 0 && needed[node->out[k]];
        for (int k = 0; is_needed && k < node->n_in; k++) {
            const smp_onnx_value *v = smp__onnx_in(m, node, k);
            if (!v || smp_onnx_constant(v))
                continue;
            if (v->input ? !is_whole(v->type) : v->producer < 0)
                return false;
            needed[node->in[k]] = !v->input;
        }
        computes |= is_needed && !smp__only_moves(node->op);
    }
    return computes;
}

/* Nodes that nothing reads any more. */
static void release(smp_onnx_model *m, int32_t last)
{
    for (int32_t i = last; i >= 0; i--) {
        smp_onnx_node *node = &m->node[i];
        bool read = !node->live;
        for (int k = 0; k < node->n_out; k++) {
            const smp_onnx_value *v = smp__onnx_out(m, node, k);
            read |= v && !v->input && (v->n_use > 0 || v->output);
        }
        if (read)
            continue;
        node->live = false;
        for (int k = 0; k < node->n_in; k++)
            if (node->in[k] >= 0)
                m->value[node->in[k]].n_use--;
    }
}

smp_status smp__take_indices(smp_import *im)
{
    smp_onnx_model *m = im->model;
    bool *needed = SMP_ARENA_NEW(im->arena, bool, m->n_value);
    if (!needed)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < m->n_node; i++) {
        const smp_onnx_node *node = &m->node[i];
        const smp_onnx_value *table = smp__onnx_in(m, node, 0);
        smp_onnx_value *v = smp__onnx_in(m, node, 1);
        if (!node->live || strcmp(node->op, "Gather") != 0 || !table || !table->floats || !v ||
            smp_onnx_constant(v) || v->input || v->producer < 0 || !is_whole(v->type) ||
            v->n_dim < 1 || v->dim[0] != m->batch || smp__onnx_int(node, "axis", 0) != 0 ||
            !smp__onnx_work(m, m->n_value) || !is_computed(im, v, needed))
            continue;
        v->input = v->batched = true;
        release(m, v->producer);
    }
    return SMP_OK;
}
