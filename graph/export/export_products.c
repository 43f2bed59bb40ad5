/* Operators with a matrix or a table of weights. A matrix stays as it is, [features, in], so that a
 * table and an output layer may share it; a runtime transposes it once, when it loads the file. */
#include "graph/export/export_table.h"

void smp__export_linear(smp__node_out *x)
{
    const char *in = smp__node_in(x, 0), *weight = smp__node_weight(x, 0);
    const char *bias = x->op->n_param > 1 ? smp__node_weight(x, 1) : NULL;
    if (smp__node_in_shape(x, 0)->n_dim == 1) {
        const char *out = SMP__NODE(x, "Gemm", in, weight, bias);
        smp__node_int(x, "transB", 1);
        smp__node_is(x, out);
        return;
    }
    const char *key = smp__node_text_of(x, "%s transposed", weight);
    const char *turned = smp__node_known(x, key);
    if (!turned)
        turned = smp__node_keep(x, key, SMP__PERMUTE(x, weight, 1, 0));
    const char *product = SMP__NODE(x, "MatMul", in, turned);
    smp__node_is(x, bias ? SMP__NODE(x, "Add", product, bias) : product);
}

void smp__export_expert_linear(smp__node_out *x)
{
    const char *turned = SMP__PERMUTE(x, smp__node_weight(x, 0), 0, 2, 1);
    smp__node_is(x, SMP__NODE(x, "MatMul", smp__node_in(x, 0), turned));
}

/* [height, width] of an attribute that has one number, two or none. */
static void pair_of(const smp__node_out *x, const char *name, int64_t otherwise, int64_t pair[2])
{
    const smp_attr_value *attr = smp__node_attr(x, name);
    const int64_t n = attr->list.count, *items = attr->list.items;
    for (int i = 0; i < 2; i++)
        pair[i] = n == 0 ? otherwise : items[n == 2 ? i : 0];
}

void smp__export_conv2d(smp__node_out *x)
{
    const char *bias = x->op->n_param > 1 ? smp__node_weight(x, 1) : NULL;
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    pair_of(x, "kernel", 1, kernel);
    pair_of(x, "stride", 1, stride);
    pair_of(x, "padding", 0, padding);
    pair_of(x, "dilation", 1, dilation);
    const char *out = SMP__NODE(x, "Conv", smp__node_in(x, 0), smp__node_weight(x, 0), bias);
    smp__node_ints(x, "kernel_shape", kernel, 2);
    smp__node_ints(x, "strides", stride, 2);
    SMP__INTS(x, "pads", padding[0], padding[1], padding[0], padding[1]);
    smp__node_ints(x, "dilations", dilation, 2);
    smp__node_int(x, "group", smp__node_attr(x, "groups")->i);
    smp__node_is(x, out);
}

void smp__export_embedding(smp__node_out *x)
{
    smp__node_is(x, SMP__NODE(x, "Gather", smp__node_weight(x, 0), smp__node_in(x, 0)));
}

void smp__export_position_embedding(smp__node_out *x)
{
    smp__node_is(x, SMP__NODE(x, "Add", smp__node_in(x, 0), smp__node_weight(x, 0)));
}

void smp__export_parameter(smp__node_out *x)
{
    smp__node_is(x, smp__node_spread(x, smp__node_weight(x, 0), smp__node_out_shape(x)));
}

/* Along the last dimension it goes by itself. */
void smp__export_bias(smp__node_out *x)
{
    const smp_shape *shape = smp__node_in_shape(x, 0);
    int64_t behind[SMP_MAX_DIMS];
    int n = 0;
    for (int64_t d = smp__node_axis(x); d < shape->n_dim; d++, n++)
        behind[n] = n + 1;
    const char *bias = smp__node_weight(x, 0);
    if (n > 0)
        bias = SMP__NODE(x, "Unsqueeze", bias, smp__node_list(x, behind, n));
    smp__node_is(x, SMP__NODE(x, "Add", smp__node_in(x, 0), bias));
}
