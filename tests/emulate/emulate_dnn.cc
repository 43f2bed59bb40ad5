/* cuDNN's attention as graph/cuda/cuda_attention_dnn.h has it, in double, rounded once; good or
 * bad, as SMP_EMULATE_DNN says. What its own descriptors say, tests/dnn asks cuDNN itself. */
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "emulate.h"

#include "graph/cuda/cuda_attention_dnn.h"
#include "graph/cuda/cuda_dnn.h"

struct smp__dnn_attention {
    smp__attention at;
    int64_t batch;
    smp_precision precision;
};

namespace
{

std::string mode()
{
    const char *text = getenv("SMP_EMULATE_DNN");
    return text ? text : "";
}

template <typename T> float widen(T x);
template <> float widen(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
template <> float widen(__half x)
{
    return __half2float(x);
}
void narrow(float x, __nv_bfloat16 *to)
{
    *to = __float2bfloat16_rn(x);
}
void narrow(float x, __half *to)
{
    *to = __float2half_rn(x);
}

/* Row t of head h of sample b. */
template <typename T>
void compute_row(const smp__dnn_attention &plan, bool causal, const smp__dnn_attention_data &data,
                 int64_t b, int64_t h, int64_t t)
{
    const smp__attention &at = plan.at;
    const int64_t w = at.width, kh = h / (at.heads / at.kv_heads);
    const T *q = static_cast<const T *>(data.q) + (b * at.queries + t) * at.stride[SMP__Q] + h * w;
    const T *k = static_cast<const T *>(data.k) + b * at.keys * at.stride[SMP__K] + kh * w;
    const T *v = static_cast<const T *>(data.v) + b * at.keys * at.stride[SMP__V] + kh * w;
    T *out = static_cast<T *>(data.out) + (b * at.queries + t) * at.d + h * w;
    const int64_t seen = causal ? t + 1 : at.keys;
    std::vector<double> p((size_t)seen), sum((size_t)w);
    double top = -INFINITY, total = 0;
    for (int64_t j = 0; j < seen; j++) {
        for (int64_t x = 0; x < w; x++)
            p[(size_t)j] += (double)widen(q[x]) * (double)widen(k[j * at.stride[SMP__K] + x]);
        p[(size_t)j] *= (double)at.scale;
        top = std::fmax(top, p[(size_t)j]);
    }
    for (int64_t j = 0; j < seen; j++) {
        total += p[(size_t)j] = std::exp(p[(size_t)j] - top);
        for (int64_t x = 0; x < w; x++)
            sum[(size_t)x] += p[(size_t)j] * (double)widen(v[j * at.stride[SMP__V] + x]);
    }
    for (int64_t x = 0; x < w; x++)
        narrow((float)(sum[(size_t)x] / total), &out[x]);
    data.lse[(b * at.heads + h) * at.queries + t] = (float)(top + std::log(total));
}

template <typename T>
void compute(const smp__dnn_attention &plan, bool wrong, const smp__dnn_attention_data &data)
{
    for (int64_t b = 0; b < plan.batch; b++)
        for (int64_t h = 0; h < plan.at.heads; h++)
            for (int64_t t = 0; t < plan.at.queries; t++)
                compute_row<T>(plan, plan.at.causal && !wrong, data, b, h, t);
}

} // namespace

extern "C" {

smp_status smp__dnn_open(void **handle, cudaStream_t)
{
    static char opened;
    *handle = mode().empty() ? nullptr : &opened;
    return SMP_OK;
}

void smp__dnn_close(void *) {}

smp__dnn_attention *smp__dnn_attention_create(const smp_cuda *cuda, const smp__attention *at,
                                              int64_t batch)
{
    if (!cuda->dnn || mode() == "no-plan")
        return nullptr;
    return new smp__dnn_attention{*at, batch, cuda->precision};
}

void smp__dnn_attention_destroy(smp__dnn_attention *plan)
{
    delete plan;
}

smp_status smp__dnn_attention_forward(const smp__dnn_attention *plan, const smp_cuda *cuda,
                                      const smp__dnn_attention_data *data)
{
    const void *aligned[] = {data->q, data->k, data->v, data->out};
    for (const void *p : aligned)
        if (reinterpret_cast<uintptr_t>(p) % 16 != 0)
            emulate_die("cuDNN's attention: %p is no multiple of 16", p);
    if (mode() == "fails")
        return smp_fail(SMP_ERR_FAILED, "cudnnBackendExecute: it was told to fail");
    const bool wrong = mode() == "wrong";
    emulate_enqueue(cuda->stream, [plan = *plan, wrong, data = *data] {
        if (plan.precision == SMP_PRECISION_FP16)
            compute<__half>(plan, wrong, data);
        else
            compute<__nv_bfloat16>(plan, wrong, data);
        return true;
    });
    return SMP_OK;
}

} /* extern "C" */
