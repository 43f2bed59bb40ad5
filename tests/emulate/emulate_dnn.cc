/* cuDNN's attention as graph/cuda/cuda_attention_dnn.h has it, in double, rounded once; good or
 * bad, as SMP_EMULATE_DNN says: absent (empty), right; forward wrong, fails or no-plan; backward
 * likewise, back-wrong, ..; or back-tail, a sixteenth less of the last key's dV, or back-large,
 * which wants more workspace than cuDNN does. What its own descriptors say, tests/dnn asks cuDNN
 * itself. */
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
    int64_t workspace_bytes;
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

/* Gradients of keys and values of a sample, (keys, kv_heads, width). */
struct key_sums {
    std::vector<double> dk, dv;
};

/* Row t of head h of sample b: dQ, and what it adds to the sums. */
template <typename T>
void compute_row_back(const smp__dnn_attention &plan, bool wrong,
                      const smp__dnn_attention_data &data, const smp__dnn_attention_gradients &to,
                      int64_t b, int64_t h, int64_t t, key_sums *sums)
{
    const smp__attention &at = plan.at;
    const int64_t w = at.width, kh = h / (at.heads / at.kv_heads), row = b * at.queries + t;
    const T *q = static_cast<const T *>(data.q) + row * at.stride[SMP__Q] + h * w;
    const T *k = static_cast<const T *>(data.k) + b * at.keys * at.stride[SMP__K] + kh * w;
    const T *v = static_cast<const T *>(data.v) + b * at.keys * at.stride[SMP__V] + kh * w;
    const T *out = static_cast<const T *>(data.out) + row * at.d + h * w;
    const T *dout = static_cast<const T *>(to.dout) + row * at.d + h * w;
    T *dq = static_cast<T *>(to.dq) + row * at.stride[SMP__Q] + h * w;
    const double lse = (double)data.lse[(b * at.heads + h) * at.queries + t];
    const int64_t seen = at.causal ? t + 1 : at.keys;
    std::vector<double> sum((size_t)w);
    double delta = 0;
    for (int64_t x = 0; x < w && !wrong; x++)
        delta += (double)widen(out[x]) * (double)widen(dout[x]);
    for (int64_t j = 0; j < seen; j++) {
        double score = 0, dp = 0;
        for (int64_t x = 0; x < w; x++) {
            score += (double)widen(q[x]) * (double)widen(k[j * at.stride[SMP__K] + x]);
            dp += (double)widen(dout[x]) * (double)widen(v[j * at.stride[SMP__V] + x]);
        }
        const double p = std::exp(score * (double)at.scale - lse);
        const double ds = p * (dp - delta) * (double)at.scale;
        for (int64_t x = 0; x < w; x++) {
            const size_t of_key = (size_t)((j * at.kv_heads + kh) * w + x);
            sum[(size_t)x] += ds * (double)widen(k[j * at.stride[SMP__K] + x]);
            sums->dk[of_key] += ds * (double)widen(q[x]);
            sums->dv[of_key] += p * (double)widen(dout[x]);
        }
    }
    for (int64_t x = 0; x < w; x++)
        narrow((float)sum[(size_t)x], &dq[x]);
}

template <typename T>
void compute_back(const smp__dnn_attention &plan, bool wrong, const smp__dnn_attention_data &data,
                  const smp__dnn_attention_gradients &to)
{
    const smp__attention &at = plan.at;
    const int64_t columns = at.kv_heads * at.width;
    std::memset(to.workspace, 0x5a, (size_t)plan.workspace_bytes);
    for (int64_t b = 0; b < plan.batch; b++) {
        key_sums sums{std::vector<double>((size_t)(at.keys * columns)),
                      std::vector<double>((size_t)(at.keys * columns))};
        for (int64_t h = 0; h < at.heads; h++)
            for (int64_t t = 0; t < at.queries; t++)
                compute_row_back<T>(plan, wrong, data, to, b, h, t, &sums);
        const int64_t last = (at.keys - 1) * columns;
        for (int64_t x = 0; x < columns && mode() == "back-tail"; x++)
            sums.dv[(size_t)(last + x)] *= 15.0 / 16;
        for (int64_t j = 0; j < at.keys; j++)
            for (int64_t x = 0; x < columns; x++) {
                const int64_t row = b * at.keys + j;
                const size_t of = (size_t)(j * columns + x);
                narrow((float)sums.dk[of], static_cast<T *>(to.dk) + row * at.stride[SMP__K] + x);
                narrow((float)sums.dv[of], static_cast<T *>(to.dv) + row * at.stride[SMP__V] + x);
            }
    }
}

void expect_aligned(const void *p, uintptr_t bytes)
{
    if (reinterpret_cast<uintptr_t>(p) % bytes != 0)
        emulate_die("cuDNN's attention: %p is no multiple of %d", p, (int)bytes);
}

void expect_aligned(const smp__dnn_attention_data &data)
{
    for (const void *p : {data.q, data.k, data.v, static_cast<const void *>(data.out)})
        expect_aligned(p, 16);
}

int64_t round_up(int64_t rows)
{
    return (rows + 63) / 64 * 64;
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

void smp__dnn_name(char name[SMP__DNN_NAME_BYTES])
{
    snprintf(name, SMP__DNN_NAME_BYTES, "%s", mode().empty() ? "" : "cuDNN 9.19.0");
}

smp__dnn_attention *smp__dnn_attention_create(const smp_cuda *cuda, const smp__attention *at,
                                              int64_t batch)
{
    if (!cuda->dnn || mode() == "no-plan")
        return nullptr;
    return new smp__dnn_attention{*at, batch, cuda->precision, 0};
}

smp__dnn_attention *smp__dnn_attention_create_backward(const smp_cuda *cuda,
                                                       const smp__attention *at, int64_t batch,
                                                       int64_t workspace_bytes)
{
    const int64_t more = mode() == "back-large" ? 16 : 1;
    const int64_t bytes = batch * at->heads * round_up(at->queries) * round_up(at->keys) * 2 * more;
    if (!cuda->dnn || mode() == "back-no-plan" || bytes > workspace_bytes)
        return nullptr;
    return new smp__dnn_attention{*at, batch, cuda->precision, bytes};
}

int64_t smp__dnn_attention_workspace(const smp__dnn_attention *plan)
{
    return plan->workspace_bytes;
}

void smp__dnn_attention_destroy(smp__dnn_attention *plan)
{
    delete plan;
}

smp_status smp__dnn_attention_forward(const smp__dnn_attention *plan, const smp_cuda *cuda,
                                      const smp__dnn_attention_data *data)
{
    expect_aligned(*data);
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

smp_status smp__dnn_attention_backward(const smp__dnn_attention *plan, const smp_cuda *cuda,
                                       const smp__dnn_attention_data *data,
                                       const smp__dnn_attention_gradients *to)
{
    expect_aligned(*data);
    for (const void *p : {to->dout, static_cast<const void *>(to->dq),
                          static_cast<const void *>(to->dk), static_cast<const void *>(to->dv)})
        expect_aligned(p, 16);
    expect_aligned(to->workspace, 256);
    if (mode() == "back-fails")
        return smp_fail(SMP_ERR_FAILED, "cudnnBackendExecute: it was told to fail backward");
    const bool wrong = mode() == "back-wrong";
    emulate_enqueue(cuda->stream, [plan = *plan, wrong, data = *data, to = *to] {
        if (plan.precision == SMP_PRECISION_FP16)
            compute_back<__half>(plan, wrong, data, to);
        else
            compute_back<__nv_bfloat16>(plan, wrong, data, to);
        return true;
    });
    return SMP_OK;
}

} /* extern "C" */
