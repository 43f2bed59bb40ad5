/* A convolution as a graph of one cuDNN operation, or of two where a bias is added. Any failure
 * means that there is no plan, which is no error: products of ours do it. */
#include "graph/ops/convolution/cuda_conv2d_dnn.h"
#include "graph/cuda/cuda_dnn.h"

#if defined(SMP_HAVE_CUDNN) && !defined(SMP_EMULATED)
#include <stdlib.h>

typedef smp__dnn_descriptor descriptor;
typedef smp__dnn_shape shape;

struct smp__dnn_convolution {
    descriptor plan;
    bool bias;
};

/* (n, channels, height, width), channels last. */
static shape image_shape(int64_t n, int64_t channels, int64_t height, int64_t width)
{
    return (shape){{n, channels, height, width},
                   {channels * height * width, 1, channels * width, channels}};
}

/* Binds x, y, filters, and the bias. Gradients of filters are fp32 in the kernel; no engine writes
 * them so but those that a second operation follows in, which here changes nothing. */
static void build(smp__dnn_graph *g, const smp_convolution_shape *s, cudnnDataType_t half,
                  smp_op_part part, bool bias)
{
    const bool weight = part == SMP_OP_BACKWARD_WEIGHT;
    const int64_t channels = s->out[SMP_CHANNELS];
    const shape x = image_shape(s->batch, s->in[SMP_CHANNELS], s->in[SMP_HEIGHT], s->in[SMP_WIDTH]);
    const shape y = image_shape(s->batch, channels, s->out[SMP_HEIGHT], s->out[SMP_WIDTH]);
    const shape of_channels = image_shape(1, channels, 1, 1);
    const shape filters =
        image_shape(channels, s->in[SMP_CHANNELS] / s->groups, s->kernel[0], s->kernel[1]);
    smp__dnn_convolution_op op = {.part = part,
                                  .stride = {s->stride[0], s->stride[1]},
                                  .padding = {s->padding[0], s->padding[1]},
                                  .dilation = {s->dilation[0], s->dilation[1]}};
    op.x = smp__dnn_array(g, half, &x);
    descriptor result = smp__dnn_array(g, half, &y);
    descriptor last = smp__dnn_array(g, weight ? CUDNN_DATA_FLOAT : half, &filters);
    op.filters = weight ? smp__dnn_inner(g, CUDNN_DATA_FLOAT, &filters) : last;
    op.y = bias ? smp__dnn_inner(g, CUDNN_DATA_FLOAT, &y) : result;
    smp__dnn_convolve(g, &op);
    if (bias)
        smp__dnn_pointwise(g, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, -1, op.y,
                           smp__dnn_array(g, half, &of_channels), NULL, result);
    if (weight)
        smp__dnn_pointwise(g, CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, -1, op.filters, NULL,
                           NULL, last);
}

smp__dnn_convolution *smp__dnn_convolution_create(const smp_cuda *cuda,
                                                  const smp_convolution_shape *s, smp_op_part part,
                                                  bool bias)
{
    smp__dnn_graph graph;
    smp__dnn_convolution *made = malloc(sizeof *made);
    bias = bias && part == SMP_OP_FORWARD;
    smp__dnn_graph_open(&graph, cuda->dnn, cuda->dnn_device);
    build(&graph, s, cuda->precision == SMP_PRECISION_FP16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16,
          part, bias);
    descriptor plan = smp__dnn_graph_plan(&graph, made ? cuda->workspace_bytes : -1);
    if (!plan) {
        free(made);
        return NULL;
    }
    *made = (smp__dnn_convolution){plan, bias};
    return made;
}

void smp__dnn_convolution_destroy(smp__dnn_convolution *plan)
{
    if (!plan)
        return;
    smp__dnn.cudnnBackendDestroyDescriptor(plan->plan);
    free(plan);
}

int64_t smp__dnn_convolution_workspace(const smp__dnn_convolution *plan)
{
    return smp__dnn_plan_workspace(plan->plan);
}

smp_status smp__dnn_convolution_run(const smp__dnn_convolution *plan, const smp_cuda *cuda,
                                    const smp__dnn_convolution_data *data)
{
    void *const address[] = {data->x, data->y, data->filters, (void *)data->bias};
    return smp__dnn_plan_run(plan->plan, cuda->dnn, plan->bias ? 4 : 3, address, cuda->workspace,
                             "convolution by cuDNN");
}

#elif !defined(SMP_EMULATED) /* the emulator has one of its own */

smp__dnn_convolution *smp__dnn_convolution_create(const smp_cuda *cuda,
                                                  const smp_convolution_shape *shape,
                                                  smp_op_part part, bool bias)
{
    (void)cuda, (void)shape, (void)part, (void)bias;
    return NULL;
}

void smp__dnn_convolution_destroy(smp__dnn_convolution *plan)
{
    (void)plan;
}

int64_t smp__dnn_convolution_workspace(const smp__dnn_convolution *plan)
{
    (void)plan;
    return 0;
}

smp_status smp__dnn_convolution_run(const smp__dnn_convolution *plan, const smp_cuda *cuda,
                                    const smp__dnn_convolution_data *data)
{
    (void)plan, (void)cuda, (void)data;
    return smp_fail(SMP_ERR_FAILED, "this library was built without cuDNN");
}

#endif
