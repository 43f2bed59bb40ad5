/* Operators that move elements or add up what lies together: shapes, parts, pools. */
#include "graph/export/export_table.h"

void smp__export_reshape(smp__node_out *x)
{
    smp__node_is(x, smp__node_reshape(x, smp__node_in(x, 0), smp__node_out_shape(x)));
}

void smp__export_concat(smp__node_out *x)
{
    const char *in[SMP_OP_MAX_IN + 1] = {NULL};
    for (int i = 0; i < x->op->n_in; i++)
        in[i] = smp__node_in(x, i);
    const char *out = smp__node_add(x, "Concat", in);
    smp__node_int(x, "axis", smp__node_axis(x));
    smp__node_is(x, out);
}

void smp__export_split(smp__node_out *x)
{
    const int64_t axis = smp__node_axis(x);
    int64_t sizes[SMP_OP_MAX_OUT];
    for (int i = 0; i < x->op->n_out; i++)
        sizes[i] = x->model->tensor[x->op->out + i].shape.dim[axis - 1];
    const char *in[] = {smp__node_in(x, 0), smp__node_list(x, sizes, x->op->n_out), NULL};
    smp__node_node_many(x, "Split", in, x->op->n_out, &x->value[x->op->out]);
    smp__node_int(x, "axis", axis);
}

void smp__export_slice(smp__node_out *x)
{
    const int64_t axis = smp__node_axis(x), size = smp__node_in_shape(x, 0)->dim[axis - 1];
    int64_t begin = smp__node_attr(x, "begin")->i, end = smp__node_attr(x, "end")->i;
    begin += begin < 0 ? size : 0;
    end += end <= 0 ? size : 0;
    smp__node_is(x, SMP__NODE(x, "Slice", smp__node_in(x, 0), SMP__LIST(x, begin),
                              SMP__LIST(x, end), SMP__LIST(x, axis)));
}

void smp__export_transpose(smp__node_out *x)
{
    const smp_attr_value *axes = smp__node_attr(x, "axes");
    int64_t perm[SMP_MAX_DIMS + 1] = {0};
    const int n = (int)axes->list.count;
    for (int i = 0; i < n; i++)
        perm[i + 1] = axes->list.items[i] + 1;
    smp__node_is(x, smp__node_permute(x, smp__node_in(x, 0), perm, n + 1));
}

void smp__export_sum(smp__node_out *x)
{
    const char *axes = SMP__LIST(x, smp__node_axis(x));
    const char *out = SMP__NODE(x, "ReduceSum", smp__node_in(x, 0), axes);
    smp__node_int(x, "keepdims", 0);
    smp__node_is(x, out);
}

/* The mean over n dimensions from `first` on. */
static void mean_over(smp__node_out *x, int64_t first, int n)
{
    const int64_t axes[] = {first, first + 1};
    const char *out = SMP__NODE(x, "ReduceMean", smp__node_in(x, 0));
    smp__node_ints(x, "axes", axes, n);
    smp__node_int(x, "keepdims", 0);
    smp__node_is(x, out);
}

void smp__export_mean(smp__node_out *x)
{
    mean_over(x, smp__node_axis(x), 1);
}

void smp__export_mean_pool(smp__node_out *x)
{
    mean_over(x, 1, 1);
}

void smp__export_global_avg_pool(smp__node_out *x)
{
    mean_over(x, 2, 2);
}

static void windows(smp__node_out *x, const char *type)
{
    const int64_t kernel = smp__node_attr(x, "kernel")->i, given = smp__node_attr(x, "stride")->i;
    const int64_t stride = given > 0 ? given : kernel, padding = smp__node_attr(x, "padding")->i;
    smp__node_is(x, SMP__NODE(x, type, smp__node_in(x, 0)));
    SMP__INTS(x, "kernel_shape", kernel, kernel);
    SMP__INTS(x, "strides", stride, stride);
    SMP__INTS(x, "pads", padding, padding, padding, padding);
}

void smp__export_max_pool(smp__node_out *x)
{
    windows(x, "MaxPool");
}

void smp__export_avg_pool(smp__node_out *x)
{
    windows(x, "AveragePool");
    smp__node_int(x, "count_include_pad", 1);
}

void smp__export_upsample(smp__node_out *x)
{
    void *fill;
    const float factor = (float)smp__node_attr(x, "factor")->i;
    const char *key = smp__node_text_of(x, "upsample %g", (double)factor);
    const char *scales = smp__node_table(x, key, (smp_shape){1, {4}}, false, &fill);
    for (int i = 0; fill && i < 4; i++)
        ((float *)fill)[i] = i < 2 ? 1 : factor;
    const char *out = SMP__NODE(x, "Resize", smp__node_in(x, 0), "", scales);
    smp__node_text(x, "mode", "nearest");
    smp__node_text(x, "coordinate_transformation_mode", "asymmetric");
    smp__node_text(x, "nearest_mode", "floor");
    smp__node_is(x, out);
}

/* [C, H / p, p, W / p, p] by lines of patches. */
void smp__export_patchify(smp__node_out *x)
{
    const smp_shape *in = smp__node_in_shape(x, 0);
    const int64_t patch = smp__node_attr(x, "patch")->i, channels = in->n_dim == 3 ? in->dim[0] : 1;
    const int64_t height = in->dim[in->n_dim - 2] / patch, width = in->dim[in->n_dim - 1] / patch;
    const char *cut = SMP__RESHAPE(x, smp__node_in(x, 0), channels, height, patch, width, patch);
    const char *rows = SMP__PERMUTE(x, cut, 0, 2, 4, 1, 3, 5);
    smp__node_is(x, smp__node_reshape(x, rows, smp__node_out_shape(x)));
}
