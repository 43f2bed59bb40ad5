/* bf16 (graph/math/half.h): conversions, which compilers vectorise, and products by oneDNN's matmul
 * primitives. */
#include "graph/math/half.h"

#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "graph/math/onednn.h"
#include "graph/math/vector.h"

enum { SCRATCH_ALIGNMENT = 64 };

bool smp_math_has_bf16(void)
{
    const unsigned isa = dnnl_get_effective_cpu_isa();
    return (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}

static inline float widen(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint16_t narrow(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    const uint32_t nan = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

SMP_VECTOR void smp__from_bf16(float *restrict y, const uint16_t *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = widen(x[i]);
}

SMP_VECTOR void smp__to_bf16(uint16_t *restrict y, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = narrow(x[i]);
}

SMP_VECTOR void smp__add_bf16(uint16_t *restrict target, const uint16_t *restrict source, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        target[i] = narrow(widen(target[i]) + widen(source[i]));
}

struct smp_math_product16 {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, bias, c, scratch;
    void *scratch_data;
};

void smp_math_product16_destroy(smp_math_product16 *p)
{
    if (!p)
        return;
    if (p->primitive)
        dnnl_primitive_destroy(p->primitive);
    dnnl_memory_t memory[] = {p->a, p->b, p->bias, p->c, p->scratch};
    for (int i = 0; i < 5; i++)
        if (memory[i])
            dnnl_memory_destroy(memory[i]);
    free(p->scratch_data);
    smp__dnnl_close(p->engine, p->stream);
    free(p);
}

/* A dense row-major matrix, or one whose transpose is. */
static smp_status describe(dnnl_memory_desc_t *desc, int64_t rows, int64_t columns, bool transposed,
                           dnnl_data_type_t type)
{
    const dnnl_dims_t dims = {rows, columns};
    const dnnl_dims_t strides = {transposed ? 1 : columns, transposed ? rows : 1};
    return smp__dnnl_check(dnnl_memory_desc_init_by_strides(desc, 2, dims, type, strides),
                           "describing a matrix");
}

static smp_status set_attributes(dnnl_primitive_attr_t attr, bool accumulate)
{
    SMP_TRY(smp__dnnl_check(
        dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "scratch"));
    if (!accumulate)
        return SMP_OK;
    dnnl_post_ops_t sum = NULL;
    dnnl_status_t made = dnnl_post_ops_create(&sum);
    if (made == dnnl_success)
        made = dnnl_post_ops_append_sum(sum, 1.0f);
    if (made == dnnl_success)
        made = dnnl_primitive_attr_set_post_ops(attr, sum);
    if (sum)
        dnnl_post_ops_destroy(sum);
    return smp__dnnl_check(made, "a product that is added");
}

static smp_status make_memory(smp_math_product16 *p, dnnl_memory_t *memory,
                              const dnnl_memory_desc_t *desc, void *data)
{
    return smp__dnnl_check(dnnl_memory_create(memory, desc, p->engine, data),
                           "making a memory object");
}

static smp_status make_scratch(smp_math_product16 *p, const_dnnl_primitive_desc_t desc)
{
    const dnnl_memory_desc_t *scratch =
        dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    const size_t bytes = scratch ? dnnl_memory_desc_get_size(scratch) : 0;
    if (bytes == 0)
        return SMP_OK;
    p->scratch_data = aligned_alloc(SCRATCH_ALIGNMENT, (bytes + SCRATCH_ALIGNMENT - 1) /
                                                           SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT);
    if (!p->scratch_data)
        return smp_fail_memory(bytes);
    return make_memory(p, &p->scratch, scratch, p->scratch_data);
}

static smp_status make_primitive(smp_math_product16 *p, const smp_product16 *shape,
                                 const dnnl_matmul_desc_t *operation)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    smp_status status =
        smp__dnnl_check(dnnl_primitive_attr_create(&attr), "attributes of a product");
    if (status == SMP_OK)
        status = set_attributes(attr, shape->accumulate);
    if (status == SMP_OK)
        status = smp__dnnl_check(
            dnnl_primitive_desc_create(&desc, operation, attr, p->engine, NULL), "a bf16 product");
    if (status == SMP_OK)
        status = smp__dnnl_check(dnnl_primitive_create(&p->primitive, desc), "a bf16 product");
    if (status == SMP_OK)
        status = make_scratch(p, desc);
    if (desc)
        dnnl_primitive_desc_destroy(desc);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return status;
}

static smp_status make(smp_math_product16 *p, const smp_product16 *shape)
{
    dnnl_memory_desc_t a, b, bias, c;
    dnnl_matmul_desc_t operation;
    SMP_TRY(smp__dnnl_open(&p->engine, &p->stream));
    SMP_TRY(describe(&a, shape->m, shape->k, shape->trans_a, dnnl_bf16));
    SMP_TRY(describe(&b, shape->k, shape->n, shape->trans_b, dnnl_bf16));
    SMP_TRY(describe(&bias, 1, shape->n, false, dnnl_f32));
    SMP_TRY(describe(&c, shape->m, shape->n, false, shape->accumulate ? dnnl_f32 : dnnl_bf16));
    SMP_TRY(smp__dnnl_check(
        dnnl_matmul_desc_init(&operation, &a, &b, shape->bias ? &bias : NULL, &c), "a product"));
    SMP_TRY(make_primitive(p, shape, &operation));
    SMP_TRY(make_memory(p, &p->a, &a, DNNL_MEMORY_NONE));
    SMP_TRY(make_memory(p, &p->b, &b, DNNL_MEMORY_NONE));
    if (shape->bias)
        SMP_TRY(make_memory(p, &p->bias, &bias, DNNL_MEMORY_NONE));
    return make_memory(p, &p->c, &c, DNNL_MEMORY_NONE);
}

smp_status smp_math_product16_create(const smp_product16 *shape, smp_math_product16 **out)
{
    smp_math_product16 *p = calloc(1, sizeof(*p));
    if (!p)
        return smp_fail_memory(sizeof(*p));
    const int threads = smp__dnnl_limit_threads();
    smp_status status = make(p, shape);
    omp_set_num_threads(threads);
    if (status != SMP_OK) {
        smp_math_product16_destroy(p);
        return status;
    }
    *out = p;
    return SMP_OK;
}

smp_status smp_math_product16_run(smp_math_product16 *p, const void *a, const void *b,
                                  const float *bias, void *c)
{
    dnnl_exec_arg_t args[5];
    int n = 0;
    args[n++] = (dnnl_exec_arg_t){DNNL_ARG_SRC, p->a};
    args[n++] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, p->b};
    args[n++] = (dnnl_exec_arg_t){DNNL_ARG_DST, p->c};
    dnnl_memory_set_data_handle(p->a, (void *)a);
    dnnl_memory_set_data_handle(p->b, (void *)b);
    dnnl_memory_set_data_handle(p->c, c);
    if (p->bias) {
        dnnl_memory_set_data_handle(p->bias, (void *)bias);
        args[n++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, p->bias};
    }
    if (p->scratch)
        args[n++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, p->scratch};
    const int threads = smp__dnnl_limit_threads();
    dnnl_status_t status = dnnl_primitive_execute(p->primitive, p->stream, n, args);
    omp_set_num_threads(threads);
    return smp__dnnl_check(status, "a bf16 product");
}
