/* cuDNN's convolutions (graph/ops/convolution/cuda_conv2d_dnn.h) in double, rounded once;
 * good or bad, as SMP_EMULATE_DNN says: absent (empty), conv-wrong, half of the last values;
 * conv-fails, conv-no-plan; right with anything else. What its own descriptors say, tests/dnn asks
 * cuDNN itself. */
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "emulate.h"

#include "graph/ops/convolution/cuda_conv2d_dnn.h"

struct smp__dnn_convolution {
    smp_convolution_shape shape;
    smp_op_part part;
    smp_precision precision;
    bool bias;
};

namespace
{

std::string mode()
{
    const char *text = getenv("SMP_EMULATE_DNN");
    return text ? text : "";
}

/* Values in 16 bits as doubles, and back. */
struct half_array {
    void *memory;
    bool is_fp16;

    double get(int64_t i) const
    {
        return is_fp16 ? (double)__half2float(static_cast<const __half *>(memory)[i])
                       : (double)__bfloat162float(static_cast<const __nv_bfloat16 *>(memory)[i]);
    }
    void put(int64_t i, double x) const
    {
        if (is_fp16)
            static_cast<__half *>(memory)[i] = __float2half_rn((float)x);
        else
            static_cast<__nv_bfloat16 *>(memory)[i] = __float2bfloat16_rn((float)x);
    }
};

/* do_tap(x, filter, y): places in the three arrays, for every product of a convolution. */
template <typename F> void for_every_tap(const smp_convolution_shape &s, const F &do_tap)
{
    const int64_t in = s.in[0] / s.groups, out = s.out[0] / s.groups;
    for (int64_t place = 0; place < s.batch * s.out[1] * s.out[2]; place++)
        for (int64_t ky = 0; ky < s.kernel[0]; ky++)
            for (int64_t kx = 0; kx < s.kernel[1]; kx++) {
                const int64_t sample = place / (s.out[1] * s.out[2]);
                const int64_t line = place / s.out[2] % s.out[1], column = place % s.out[2];
                const int64_t py = line * s.stride[0] + ky * s.dilation[0] - s.padding[0];
                const int64_t px = column * s.stride[1] + kx * s.dilation[1] - s.padding[1];
                if (py < 0 || py >= s.in[1] || px < 0 || px >= s.in[2])
                    continue;
                const int64_t pixel = ((sample * s.in[1] + py) * s.in[2] + px) * s.in[0];
                for (int64_t k = 0; k < s.out[0]; k++)
                    for (int64_t c = 0; c < in; c++)
                        do_tap(pixel + k / out * in + c,
                               ((k * s.kernel[0] + ky) * s.kernel[1] + kx) * in + c,
                               place * s.out[0] + k);
            }
}

void compute(const smp__dnn_convolution &plan, bool wrong, const smp__dnn_convolution_data &data)
{
    const smp_convolution_shape &s = plan.shape;
    const bool is_fp16 = plan.precision == SMP_PRECISION_FP16;
    const half_array x{data.x, is_fp16}, y{data.y, is_fp16}, filters{data.filters, is_fp16};
    const half_array bias{const_cast<void *>(data.bias), is_fp16};
    const int64_t n_x = s.batch * s.in[0] * s.in[1] * s.in[2];
    const int64_t n_y = s.batch * s.out[0] * s.out[1] * s.out[2];
    const int64_t n_filters = s.out[0] * smp_convolution_taps(&s);
    const int64_t n = plan.part == SMP_OP_FORWARD          ? n_y
                      : plan.part == SMP_OP_BACKWARD_INPUT ? n_x
                                                           : n_filters;
    std::vector<double> sum((size_t)n);
    for_every_tap(s, [&](int64_t of_x, int64_t of_filters, int64_t of_y) {
        if (plan.part == SMP_OP_FORWARD)
            sum[(size_t)of_y] += x.get(of_x) * filters.get(of_filters);
        else if (plan.part == SMP_OP_BACKWARD_INPUT)
            sum[(size_t)of_x] += y.get(of_y) * filters.get(of_filters);
        else
            sum[(size_t)of_filters] += x.get(of_x) * y.get(of_y);
    });
    for (int64_t i = 0; plan.bias && i < n; i++)
        sum[(size_t)i] += bias.get(i % s.out[0]);
    for (int64_t i = n - n / 16 - 1; wrong && i < n; i++)
        sum[(size_t)i] /= 2;
    for (int64_t i = 0; i < n; i++)
        if (plan.part == SMP_OP_BACKWARD_WEIGHT)
            static_cast<float *>(data.filters)[i] = (float)sum[(size_t)i];
        else
            (plan.part == SMP_OP_FORWARD ? y : x).put(i, sum[(size_t)i]);
}

} // namespace

extern "C" {

smp__dnn_convolution *smp__dnn_convolution_create(const smp_cuda *cuda,
                                                  const smp_convolution_shape *shape,
                                                  smp_op_part part, bool bias)
{
    if (!cuda->dnn || mode() == "conv-no-plan")
        return nullptr;
    return new smp__dnn_convolution{*shape, part, cuda->precision, bias && part == SMP_OP_FORWARD};
}

void smp__dnn_convolution_destroy(smp__dnn_convolution *plan)
{
    delete plan;
}

int64_t smp__dnn_convolution_workspace(const smp__dnn_convolution *)
{
    return 0;
}

smp_status smp__dnn_convolution_run(const smp__dnn_convolution *plan, const smp_cuda *cuda,
                                    const smp__dnn_convolution_data *data)
{
    for (const void *p : {static_cast<const void *>(data->x), static_cast<const void *>(data->y),
                          static_cast<const void *>(data->filters), data->bias})
        if (reinterpret_cast<uintptr_t>(p) % 16 != 0)
            emulate_die("cuDNN's convolution: %p is no multiple of 16", p);
    if (mode() == "conv-fails")
        return smp_fail(SMP_ERR_FAILED, "cudnnBackendExecute: it was told to fail");
    const bool wrong = mode() == "conv-wrong";
    emulate_enqueue(cuda->stream, [plan = *plan, wrong, data = *data] {
        compute(plan, wrong, data);
        return true;
    });
    return SMP_OK;
}

} /* extern "C" */
