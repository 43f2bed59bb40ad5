/* The table of exports, and the operators that treat every element by itself. */
#include "graph/export/export_table.h"

#include <math.h>
#include <string.h>

static void same(smp__node_out *x)
{
    smp__node_is(x, smp__node_in(x, 0));
}

static void relu(smp__node_out *x)
{
    smp__node_is(x, SMP__NODE(x, "Relu", smp__node_in(x, 0)));
}

static void tanh_of(smp__node_out *x)
{
    smp__node_is(x, SMP__NODE(x, "Tanh", smp__node_in(x, 0)));
}

static void sigmoid(smp__node_out *x)
{
    smp__node_is(x, SMP__NODE(x, "Sigmoid", smp__node_in(x, 0)));
}

static void silu(smp__node_out *x)
{
    const char *in = smp__node_in(x, 0);
    smp__node_is(x, SMP__NODE(x, "Mul", in, SMP__NODE(x, "Sigmoid", in)));
}

/* x / 2 * (1 + f), f being erf(x / sqrt(2)) or tanh(sqrt(2 / pi) (x + 0.044715 x^3)). */
static void gelu(smp__node_out *x)
{
    const char *in = smp__node_in(x, 0), *f;
    if (smp__node_attr(x, "approximate")->i == 0) {
        const char *cube = SMP__NODE(x, "Mul", in, SMP__NODE(x, "Mul", in, in));
        const char *small = SMP__NODE(x, "Mul", cube, smp__node_number(x, 0.044715));
        const char *sum = SMP__NODE(x, "Add", in, small);
        f = SMP__NODE(x, "Tanh", SMP__NODE(x, "Mul", sum, smp__node_number(x, sqrt(2 / acos(-1)))));
    } else {
        f = SMP__NODE(x, "Erf", SMP__NODE(x, "Mul", in, smp__node_number(x, sqrt(0.5))));
    }
    const char *share = SMP__NODE(x, "Add", f, smp__node_number(x, 1));
    const char *half = SMP__NODE(x, "Mul", in, smp__node_number(x, 0.5));
    smp__node_is(x, SMP__NODE(x, "Mul", half, share));
}

static void scale(smp__node_out *x)
{
    const char *factor = smp__node_number(x, smp__node_attr(x, "factor")->f);
    smp__node_is(x, SMP__NODE(x, "Mul", smp__node_in(x, 0), factor));
}

/* By rising input, as here. */
static void add(smp__node_out *x)
{
    const char *sum = smp__node_in(x, 0);
    for (int i = 1; i < x->op->n_in; i++)
        sum = SMP__NODE(x, "Add", sum, smp__node_in(x, i));
    smp__node_is(x, sum);
}

static void sub(smp__node_out *x)
{
    smp__node_is(x, SMP__NODE(x, "Sub", smp__node_in(x, 0), smp__node_in(x, 1)));
}

static void mul(smp__node_out *x)
{
    smp__node_is(x, SMP__NODE(x, "Mul", smp__node_in(x, 0), smp__node_in(x, 1)));
}

/* A line for each operator that has a meaning in ONNX. dropout and load_balance are themselves in
 * inference. */
static const struct export
{
    const char *kind;
    smp__export_rule *write;
}
exports[] = {
    {"embedding", smp__export_embedding},
    {"position_embedding", smp__export_position_embedding},
    {"parameter", smp__export_parameter},
    {"rope", smp__export_rope},
    {"linear", smp__export_linear},
    {"conv2d", smp__export_conv2d},
    {"layernorm", smp__export_layernorm},
    {"batchnorm", smp__export_batchnorm},
    {"rmsnorm", smp__export_rmsnorm},
    {"groupnorm", smp__export_groupnorm},
    {"gelu", gelu},
    {"silu", silu},
    {"relu", relu},
    {"tanh", tanh_of},
    {"sigmoid", sigmoid},
    {"softmax", smp__export_softmax},
    {"attention", smp__export_attention},
    {"add", add},
    {"sub", sub},
    {"mul", mul},
    {"mul_rows", mul},
    {"scale", scale},
    {"dropout", same},
    {"flatten", smp__export_reshape},
    {"reshape", smp__export_reshape},
    {"concat", smp__export_concat},
    {"split", smp__export_split},
    {"slice", smp__export_slice},
    {"transpose", smp__export_transpose},
    {"sum", smp__export_sum},
    {"mean", smp__export_mean},
    {"upsample", smp__export_upsample},
    {"global_avg_pool", smp__export_global_avg_pool},
    {"max_pool", smp__export_max_pool},
    {"avg_pool", smp__export_avg_pool},
    {"patchify", smp__export_patchify},
    {"mean_pool", smp__export_mean_pool},
    {"load_balance", same},
    {"expert_dispatch", smp__export_expert_dispatch},
    {"expert_linear", smp__export_expert_linear},
    {"expert_combine", smp__export_expert_combine},
    {"bias", smp__export_bias},
};
enum { N_EXPORT = sizeof exports / sizeof *exports };

const char *const *smp__export_kinds(void)
{
    static const char *names[N_EXPORT + 1];
    for (int i = 0; i < N_EXPORT; i++)
        names[i] = exports[i].kind;
    return names;
}

/* Why a kind has no line. */
static const char *reason_of(const smp__node_out *x)
{
    const smp_op_kind *kind = x->op->kind;
    if (kind->registered)
        return "an operator of a plugin, which only its own code can compute";
    if (!kind->cpu.forward)
        return "it is only planned, nothing says what it computes";
    if (!x->model->tensor[x->op->out].batched)
        return "a loss; expected a tensor that it reads";
    if (smp_op_attr_index(kind, "devices") >= 0)
        return "what devices exchange while they compute an operator together";
    return "nobody has written how";
}

smp_status smp__export_op(smp__node_out *x)
{
    for (int i = 0; i < N_EXPORT; i++)
        if (strcmp(exports[i].kind, x->op->kind->name) == 0) {
            exports[i].write(x);
            return x->status;
        }
    smp__node_refuse(x, reason_of(x));
    return x->status;
}
