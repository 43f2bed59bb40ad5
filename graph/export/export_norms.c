/* Norms, and softmax. */
#include "graph/export/export_table.h"

void smp__export_layernorm(smp__node_out *x)
{
    const char *out = SMP__NODE(x, "LayerNormalization", smp__node_in(x, 0), smp__node_weight(x, 0),
                                smp__node_weight(x, 1));
    smp__node_int(x, "axis", -1);
    smp__node_float(x, "epsilon", smp__node_attr(x, "eps")->f);
    smp__node_is(x, out);
}

void smp__export_rmsnorm(smp__node_out *x)
{
    const char *in = smp__node_in(x, 0);
    const char *mean = SMP__NODE(x, "ReduceMean", SMP__NODE(x, "Mul", in, in));
    SMP__INTS(x, "axes", -1);
    const char *eps = smp__node_number(x, smp__node_attr(x, "eps")->f);
    const char *root = SMP__NODE(x, "Sqrt", SMP__NODE(x, "Add", mean, eps));
    const char *normal = SMP__NODE(x, "Div", in, root);
    const char *weight = smp__node_weight(x, 0);
    if (smp__node_attr(x, "offset")->i)
        weight = SMP__NODE(x, "Add", weight, smp__node_number(x, 1));
    smp__node_is(x, SMP__NODE(x, "Mul", normal, weight));
}

/* [size], all of them `value`. */
static const char *filled(smp__node_out *x, int64_t size, float value)
{
    void *fill;
    const char *key = smp__node_text_of(x, "%lld times %g", (long long)size, (double)value);
    const char *name = smp__node_table(x, key, (smp_shape){1, {size}}, false, &fill);
    for (int64_t i = 0; fill && i < size; i++)
        ((float *)fill)[i] = value;
    return name;
}

/* A group is one long row of InstanceNormalization; the weights of channels come after it, since
 * GroupNormalization had one for each group until opset 21. */
void smp__export_groupnorm(smp__node_out *x)
{
    const smp_shape *shape = smp__node_in_shape(x, 0);
    const int64_t groups = smp__node_attr(x, "groups")->i;
    const int64_t places = smp_shape_elements(shape) / groups;
    const char *rows = SMP__RESHAPE(x, smp__node_in(x, 0), groups, places);
    const char *normal =
        SMP__NODE(x, "InstanceNormalization", rows, filled(x, groups, 1), filled(x, groups, 0));
    smp__node_float(x, "epsilon", smp__node_attr(x, "eps")->f);
    int64_t behind[SMP_MAX_DIMS];
    for (int d = 1; d < shape->n_dim; d++)
        behind[d - 1] = d;
    const char *part[2];
    for (int i = 0; i < 2; i++) {
        part[i] = smp__node_weight(x, i);
        if (shape->n_dim > 1)
            part[i] =
                SMP__NODE(x, "Unsqueeze", part[i], smp__node_list(x, behind, shape->n_dim - 1));
    }
    const char *scaled = SMP__NODE(x, "Mul", smp__node_reshape(x, normal, shape), part[0]);
    smp__node_is(x, SMP__NODE(x, "Add", scaled, part[1]));
}

/* By its running statistics. */
void smp__export_batchnorm(smp__node_out *x)
{
    const char *out =
        SMP__NODE(x, "BatchNormalization", smp__node_in(x, 0), smp__node_weight(x, 0),
                  smp__node_weight(x, 1), smp__node_weight(x, 2), smp__node_weight(x, 3));
    smp__node_float(x, "epsilon", smp__node_attr(x, "eps")->f);
    smp__node_is(x, out);
}

void smp__export_softmax(smp__node_out *x)
{
    const char *out = SMP__NODE(x, "Softmax", smp__node_in(x, 0));
    smp__node_int(x, "axis", -1);
    smp__node_is(x, out);
}
