/* CPU mathematics by oneDNN 2 (graph/math/math.h).
 *
 * GEMM is dnnl_sgemm: stateless, row-major, every transpose, and the same bits for every alignment.
 * Elementwise functions and softmax are a pair of primitives, made once per operator with their own
 * engine and stream (both are free on the CPU), so that the process holds no state. Memory objects
 * are made without a buffer and pointed at the caller's arrays in each call; what a primitive needs
 * as scratch is reserved with it.
 *
 * Kernels spill vectors to the stack. The ABI aligns it to 16 bytes and no further, and where
 * spilled vectors lie across lines of the cache GELU's gradient takes twice as long (Zen 4, oneDNN
 * 2.6), in some processes and not in others. Where within a line a kernel wants the stack is not
 * known, so that is found by trying when the primitive is made, on a few elements. */
#include "graph/math/onednn.h"
#include "graph/math/math.h"

#include <alloca.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <omp.h>

#include "graph/base/clock.h"

enum { SCRATCH_ALIGNMENT = 64 };
enum { LINE_BYTES = 64, STACK_BYTES = 16, PLACES = LINE_BYTES / STACK_BYTES, TRIES = 3 };
enum { FEW = 4096 }; /* elements to try places on */

/* One direction. The memory objects all have the shape of the data. */
typedef struct pass {
    dnnl_primitive_t primitive;
    dnnl_memory_t scratch;
    void *scratch_data;
    int place; /* of the stack within a line of the cache, in STACK_BYTES */
} pass;

struct smp_math_primitive {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_memory_t memory[3]; /* forward: x, y; backward: x or y, dy, dx */
    pass forward;
    pass backward; /* empty unless made for training */
};

smp_status smp__dnnl_check(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return SMP_OK;
    if (status == dnnl_out_of_memory)
        return smp_fail(SMP_ERR_NO_MEMORY, "oneDNN: %s: out of memory", what);
    return smp_fail(SMP_ERR_FAILED, "oneDNN: %s failed with status %d", what, (int)status);
}

int smp__dnnl_limit_threads(void)
{
    const int allowed = omp_get_max_threads();
    omp_set_num_threads(1);
    return allowed;
}

smp_status smp__dnnl_open(dnnl_engine_t *engine, dnnl_stream_t *stream)
{
    SMP_TRY(smp__dnnl_check(dnnl_engine_create(engine, dnnl_cpu, 0), "making an engine"));
    return smp__dnnl_check(dnnl_stream_create(stream, *engine, dnnl_stream_default_flags),
                           "making a stream");
}

void smp__dnnl_close(dnnl_engine_t engine, dnnl_stream_t stream)
{
    if (stream)
        dnnl_stream_destroy(stream);
    if (engine)
        dnnl_engine_destroy(engine);
}

const char *smp_math_name(void)
{
    static _Thread_local char name[32];
    const dnnl_version_t *version = dnnl_version();
    snprintf(name, sizeof name, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
    return name;
}

smp_status smp_math_gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                         const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                         float *c, int64_t ldc)
{
    const int threads = smp__dnnl_limit_threads();
    dnnl_status_t status = dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, alpha, a,
                                      lda, b, ldb, beta, c, ldc);
    omp_set_num_threads(threads);
    if (status == dnnl_success)
        return SMP_OK;
    if (status == dnnl_out_of_memory)
        return smp_fail(SMP_ERR_NO_MEMORY, "oneDNN: GEMM %lld x %lld x %lld: out of memory",
                        (long long)m, (long long)n, (long long)k);
    return smp_fail(SMP_ERR_FAILED,
                    "oneDNN: GEMM %lld x %lld x %lld (row strides %lld, %lld, %lld) failed with "
                    "status %d",
                    (long long)m, (long long)n, (long long)k, (long long)lda, (long long)ldb,
                    (long long)ldc, (int)status);
}

void smp_math_primitive_destroy(smp_math_primitive *primitive)
{
    if (!primitive)
        return;
    pass *passes[] = {&primitive->forward, &primitive->backward};
    for (int i = 0; i < 2; i++) {
        if (passes[i]->primitive)
            dnnl_primitive_destroy(passes[i]->primitive);
        if (passes[i]->scratch)
            dnnl_memory_destroy(passes[i]->scratch);
        free(passes[i]->scratch_data);
    }
    for (int i = 0; i < 3; i++)
        if (primitive->memory[i])
            dnnl_memory_destroy(primitive->memory[i]);
    smp__dnnl_close(primitive->engine, primitive->stream);
    free(primitive);
}

/* An object with engine, stream and memory objects for data of the given shape. */
static smp_status primitive_create(const dnnl_memory_desc_t *data, smp_math_primitive **out)
{
    smp_math_primitive *p = calloc(1, sizeof *p);
    if (!p)
        return smp_fail_memory(sizeof *p);
    smp_status status = smp__dnnl_open(&p->engine, &p->stream);
    for (int i = 0; i < 3 && status == SMP_OK; i++)
        status =
            smp__dnnl_check(dnnl_memory_create(&p->memory[i], data, p->engine, DNNL_MEMORY_NONE),
                            "making a memory object");
    if (status != SMP_OK) {
        smp_math_primitive_destroy(p);
        return status;
    }
    *out = p;
    return SMP_OK;
}

static smp_status scratch_create(smp_math_primitive *p, pass *out, const_dnnl_primitive_desc_t desc)
{
    const dnnl_memory_desc_t *scratch =
        dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    size_t bytes = scratch ? dnnl_memory_desc_get_size(scratch) : 0;
    if (bytes == 0)
        return SMP_OK;
    if (bytes > SIZE_MAX - SCRATCH_ALIGNMENT)
        return smp_fail_memory(bytes);
    size_t rounded = (bytes + SCRATCH_ALIGNMENT - 1) / SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT;
    out->scratch_data = aligned_alloc(SCRATCH_ALIGNMENT, rounded);
    if (!out->scratch_data)
        return smp_fail_memory(rounded);
    return smp__dnnl_check(dnnl_memory_create(&out->scratch, scratch, p->engine, out->scratch_data),
                           "making a memory object");
}

/* Makes one direction from its operation descriptor. `forward` is the forward primitive's
 * descriptor, which a backward one wants as a hint. The new descriptor is given to the caller. */
static smp_status pass_create(smp_math_primitive *p, pass *out, const_dnnl_op_desc_t operation,
                              const_dnnl_primitive_desc_t forward, dnnl_primitive_desc_t *desc)
{
    dnnl_primitive_attr_t attr = NULL;
    smp_status status = smp__dnnl_check(dnnl_primitive_attr_create(&attr), "making attributes");
    if (status == SMP_OK)
        status = smp__dnnl_check(
            dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user),
            "setting the scratchpad mode");
    if (status == SMP_OK)
        status =
            smp__dnnl_check(dnnl_primitive_desc_create(desc, operation, attr, p->engine, forward),
                            "describing a primitive");
    if (status == SMP_OK)
        status =
            smp__dnnl_check(dnnl_primitive_create(&out->primitive, *desc), "making a primitive");
    if (status == SMP_OK)
        status = scratch_create(p, out, *desc);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return status;
}

/* Both directions; `backward` is NULL if it is not wanted. */
static smp_status passes_create(const dnnl_memory_desc_t *data, const_dnnl_op_desc_t forward,
                                const_dnnl_op_desc_t backward, smp_math_primitive **out)
{
    smp_math_primitive *p = NULL;
    dnnl_primitive_desc_t forward_desc = NULL, backward_desc = NULL;
    const int threads = smp__dnnl_limit_threads();
    smp_status status = primitive_create(data, &p);
    if (status == SMP_OK)
        status = pass_create(p, &p->forward, forward, NULL, &forward_desc);
    if (status == SMP_OK && backward)
        status = pass_create(p, &p->backward, backward, forward_desc, &backward_desc);
    if (backward_desc)
        dnnl_primitive_desc_destroy(backward_desc);
    if (forward_desc)
        dnnl_primitive_desc_destroy(forward_desc);
    omp_set_num_threads(threads);
    if (status == SMP_OK)
        *out = p;
    else
        smp_math_primitive_destroy(p);
    return status;
}

static smp_status execute(smp_math_primitive *p, const pass *direction, int n_data,
                          void *const *data, const int *kind, const char *what)
{
    dnnl_exec_arg_t arg[4];
    int n_arg = n_data;
    for (int i = 0; i < n_data; i++) {
        SMP_TRY(smp__dnnl_check(dnnl_memory_set_data_handle(p->memory[i], data[i]), what));
        arg[i].arg = kind[i];
        arg[i].memory = p->memory[i];
    }
    if (direction->scratch) {
        arg[n_arg].arg = DNNL_ARG_SCRATCHPAD;
        arg[n_arg++].memory = direction->scratch;
    }
    SMP_TRY(
        smp__dnnl_check(dnnl_primitive_execute(direction->primitive, p->stream, n_arg, arg), what));
    return smp__dnnl_check(dnnl_stream_wait(p->stream), what);
}

/* The same with the stack where the direction wants it. Not inlined: it is its frame that is
 * placed. */
__attribute__((noinline)) static smp_status execute_placed(smp_math_primitive *p,
                                                           const pass *direction, int n_data,
                                                           void *const *data, const int *kind,
                                                           const char *what)
{
    _Alignas(LINE_BYTES) volatile char line[LINE_BYTES];
    volatile char *gap = alloca((size_t)(direction->place + 1) * STACK_BYTES);
    line[0] = 0;
    gap[0] = line[0];
    const smp_status status = execute(p, direction, n_data, data, kind, what);
    gap[0] = line[0]; /* both live until here */
    return status;
}

/* Runs one direction with memory[i] pointed at data[i] and passed as argument kind[i]. */
static smp_status run_pass(smp_math_primitive *p, const pass *direction, int n_data,
                           void *const *data, const int *kind, const char *what)
{
    const int threads = smp__dnnl_limit_threads();
    smp_status status = execute_placed(p, direction, n_data, data, kind, what);
    omp_set_num_threads(threads);
    return status;
}

typedef smp_status run_direction(smp_math_primitive *p, const float *x, const float *dy, float *y);

/* Sets the place where a direction of `few`, which has at most as many elements as each of
 * `values`, took the least time. */
static smp_status find_place(smp_math_primitive *few, pass *direction, run_direction *run,
                             float *values, int64_t elements)
{
    double shortest_s = 0.0;
    int best = 0;
    for (int i = 0; i < PLACES * TRIES; i++) {
        const double begin_s = smp_clock_s();
        direction->place = i % PLACES;
        SMP_TRY(run(few, values, values + elements, values + 2 * elements));
        const double took_s = smp_clock_s() - begin_s;
        if (i == 0 || took_s < shortest_s) {
            shortest_s = took_s;
            best = direction->place;
        }
    }
    direction->place = best;
    return SMP_OK;
}

/* Finds the places of a primitive's directions by those of `few`, which is like it. */
static smp_status find_places(smp_math_primitive *p, smp_math_primitive *few, int64_t elements,
                              run_direction *forward, run_direction *backward)
{
    float *values = calloc((size_t)elements * 3, sizeof *values);
    if (!values)
        return smp_fail_memory((size_t)elements * 3 * sizeof *values);
    smp_status status = find_place(few, &few->forward, forward, values, elements);
    if (status == SMP_OK && few->backward.primitive)
        status = find_place(few, &few->backward, backward, values, elements);
    p->forward.place = few->forward.place;
    p->backward.place = few->backward.place;
    free(values);
    return status;
}

/* What a call that makes a primitive ends with. */
static smp_status give_placed(smp_status status, smp_math_primitive *p, smp_math_primitive *few,
                              smp_math_primitive **out)
{
    smp_math_primitive_destroy(few);
    if (status == SMP_OK)
        *out = p;
    else
        smp_math_primitive_destroy(p);
    return status;
}

static dnnl_alg_kind_t eltwise_algorithm(smp_eltwise kind)
{
    static const dnnl_alg_kind_t algorithm[] = {
        [SMP_ELTWISE_GELU_TANH] = dnnl_eltwise_gelu_tanh,
        [SMP_ELTWISE_GELU_ERF] = dnnl_eltwise_gelu_erf,
        [SMP_ELTWISE_TANH] = dnnl_eltwise_tanh,
    };
    return algorithm[kind];
}

static dnnl_prop_kind_t forward_kind(bool training)
{
    return training ? dnnl_forward_training : dnnl_forward_inference;
}

static smp_status create_eltwise(smp_eltwise kind, int64_t count, bool half, bool training,
                                 smp_math_primitive **out)
{
    dnnl_dims_t dims = {count};
    const dnnl_data_type_t type = half ? dnnl_bf16 : dnnl_f32;
    dnnl_memory_desc_t data;
    dnnl_eltwise_desc_t forward, backward;
    SMP_TRY(smp__dnnl_check(dnnl_memory_desc_init_by_tag(&data, 1, dims, type, dnnl_a),
                            "describing elementwise data"));
    SMP_TRY(smp__dnnl_check(dnnl_eltwise_forward_desc_init(&forward, forward_kind(training),
                                                           eltwise_algorithm(kind), &data, 0, 0),
                            "describing an elementwise function"));
    SMP_TRY(smp__dnnl_check(
        dnnl_eltwise_backward_desc_init(&backward, eltwise_algorithm(kind), &data, &data, 0, 0),
        "describing an elementwise gradient"));
    return passes_create(&data, &forward, training ? &backward : NULL, out);
}

smp_status smp_math_eltwise_forward(smp_math_primitive *p, const void *x, void *y)
{
    return run_pass(p, &p->forward, 2, (void *[]){(void *)x, y},
                    (int[]){DNNL_ARG_SRC, DNNL_ARG_DST}, "elementwise function");
}

smp_status smp_math_eltwise_backward(smp_math_primitive *p, const void *x, const void *dy, void *dx)
{
    return run_pass(p, &p->backward, 3, (void *[]){(void *)x, (void *)dy, dx},
                    (int[]){DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_SRC},
                    "elementwise gradient");
}

static smp_status try_eltwise(smp_math_primitive *p, const float *x, const float *dy, float *y)
{
    (void)dy;
    return smp_math_eltwise_forward(p, x, y);
}

static smp_status try_eltwise_back(smp_math_primitive *p, const float *x, const float *dy,
                                   float *dx)
{
    return smp_math_eltwise_backward(p, x, dy, dx);
}

smp_status smp_math_eltwise_create(smp_eltwise kind, int64_t count, bool half, bool training,
                                   smp_math_primitive **out)
{
    smp_math_primitive *p = NULL, *few = NULL;
    smp_status status = create_eltwise(kind, count, half, training, &p);
    if (status == SMP_OK)
        status = create_eltwise(kind, count < FEW ? count : FEW, half, training, &few);
    if (status == SMP_OK)
        status = find_places(p, few, FEW, try_eltwise, try_eltwise_back);
    return give_placed(status, p, few, out);
}

static smp_status create_softmax(int64_t rows, int64_t columns, bool training,
                                 smp_math_primitive **out)
{
    dnnl_dims_t dims = {rows, columns};
    dnnl_memory_desc_t data;
    dnnl_softmax_desc_t forward, backward;
    SMP_TRY(smp__dnnl_check(dnnl_memory_desc_init_by_tag(&data, 2, dims, dnnl_f32, dnnl_ab),
                            "describing softmax data"));
    SMP_TRY(
        smp__dnnl_check(dnnl_softmax_forward_desc_init(&forward, forward_kind(training), &data, 1),
                        "describing softmax"));
    SMP_TRY(smp__dnnl_check(dnnl_softmax_backward_desc_init(&backward, &data, &data, 1),
                            "describing the softmax gradient"));
    return passes_create(&data, &forward, training ? &backward : NULL, out);
}

smp_status smp_math_softmax_forward(smp_math_primitive *p, const float *x, float *y)
{
    return run_pass(p, &p->forward, 2, (void *[]){(void *)x, y},
                    (int[]){DNNL_ARG_SRC, DNNL_ARG_DST}, "softmax");
}

smp_status smp_math_softmax_backward(smp_math_primitive *p, const float *y, const float *dy,
                                     float *dx)
{
    return run_pass(p, &p->backward, 3, (void *[]){(void *)y, (void *)dy, dx},
                    (int[]){DNNL_ARG_DST, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_SRC},
                    "softmax gradient");
}

static smp_status try_softmax(smp_math_primitive *p, const float *x, const float *dy, float *y)
{
    (void)dy;
    return smp_math_softmax_forward(p, x, y);
}

smp_status smp_math_softmax_create(int64_t rows, int64_t columns, bool training,
                                   smp_math_primitive **out)
{
    const int64_t most = columns < FEW ? FEW / columns : 1, few_rows = rows < most ? rows : most;
    smp_math_primitive *p = NULL, *few = NULL;
    smp_status status = create_softmax(rows, columns, training, &p);
    if (status == SMP_OK)
        status = create_softmax(few_rows, columns, training, &few);
    if (status == SMP_OK)
        status = find_places(p, few, few_rows * columns, try_softmax, smp_math_softmax_backward);
    return give_placed(status, p, few, out);
}
