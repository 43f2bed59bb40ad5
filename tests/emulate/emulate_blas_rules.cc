/* What the emulated cuBLASLt refuses: types, layouts, attributes and alignments that do not go
 * together, an algorithm of another problem, less workspace than it was said to need, memory that
 * is not the device's, outputs that overlap what is read. The library returns an error for some of
 * it and wrong results for the rest. */
#include "emulate_blas.h"

static bool same_layout(const emulate_blas_layout &x, const emulate_blas_layout &y)
{
    return x.type == y.type && x.rows == y.rows && x.columns == y.columns && x.ld == y.ld &&
           x.batch == y.batch && x.stride == y.stride;
}

static size_t element_bytes(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2 ? 1 : 2;
}

/* Elements from the first to one past the last. */
static int64_t extent(const emulate_blas_layout &x)
{
    return (x.batch - 1) * x.stride + (x.columns - 1) * x.ld + x.rows;
}

static void check_layout(const emulate_blas_layout &x, int batch, const char *name)
{
    EMULATE_BLAS_REQUIRE(x.rows > 0 && x.columns > 0 && x.rows <= INT32_MAX &&
                             x.columns <= INT32_MAX,
                         "%s is %lld x %lld", name, (long long)x.rows, (long long)x.columns);
    EMULATE_BLAS_REQUIRE(x.ld >= x.rows, "%s has columns of %lld and a leading dimension of %lld",
                         name, (long long)x.rows, (long long)x.ld);
    EMULATE_BLAS_REQUIRE(x.batch == batch, "%s has a batch of %d, D of %d", name, x.batch, batch);
}

/* Of fp8: not both E5M2, A transposed and B not, all that is read or written in rows of whole 16
 * bytes. */
static void check_fp8(const emulate_blas_problem &p)
{
    const bool b_fp8 = p.b.type == CUDA_R_8F_E4M3 || p.b.type == CUDA_R_8F_E5M2;
    EMULATE_BLAS_REQUIRE(b_fp8 && (p.a.type == CUDA_R_8F_E4M3 || p.b.type == CUDA_R_8F_E4M3) &&
                             p.operation.compute == CUBLAS_COMPUTE_32F && p.c.type == p.d.type &&
                             (p.d.type == CUDA_R_32F || p.d.type == CUDA_R_16BF),
                         "types that do not go together in fp8");
    EMULATE_BLAS_REQUIRE(p.operation.trans_a == CUBLAS_OP_T && p.operation.trans_b == CUBLAS_OP_N,
                         "fp8 factors that are not TN");
    EMULATE_BLAS_REQUIRE(p.k() % 16 == 0 && p.a.ld % 16 == 0 && p.b.ld % 16 == 0 &&
                             p.d.rows % 16 == 0 && p.d.ld % 16 == 0,
                         "fp8 of k %lld, leading dimensions %lld, %lld and %lld, rows %lld: "
                         "expected multiples of 16",
                         (long long)p.k(), (long long)p.a.ld, (long long)p.b.ld, (long long)p.d.ld,
                         (long long)p.d.rows);
    EMULATE_BLAS_REQUIRE(p.operation.scale_a && p.operation.scale_b, "fp8 without scales");
    EMULATE_BLAS_REQUIRE(!p.has_gradient(), "a bias's gradient out of fp8");
}

/* The rows of the library's table of types that are used here; D is fp32, or of 16 bits as A is,
 * and C as D. */
static void check_types(const emulate_blas_problem &p)
{
    const cudaDataType_t in = p.a.type, out = p.d.type;
    if (p.is_fp8()) {
        check_fp8(p);
        return;
    }
    EMULATE_BLAS_REQUIRE(!p.operation.scale_a && !p.operation.scale_b && !p.operation.fast,
                         "scales or fast sums of factors that are not fp8");
    EMULATE_BLAS_REQUIRE(p.b.type == in && p.c.type == out,
                         "A and B, or C and D, differ in their types");
    EMULATE_BLAS_REQUIRE(p.operation.compute == CUBLAS_COMPUTE_32F || in == CUDA_R_32F,
                         "TF32 of factors of 16 bits");
    EMULATE_BLAS_REQUIRE(out == CUDA_R_32F || out == in,
                         "a result of 16 bits out of other factors");
}

static void check_epilogue(const emulate_blas_problem &p)
{
    if (p.has_bias() || p.has_gradient())
        EMULATE_BLAS_REQUIRE(p.operation.bias, "a bias epilogue without a bias");
    if (p.operation.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        EMULATE_BLAS_REQUIRE(p.d.batch == 1, "an epilogue over a batch of %d is not emulated",
                             p.d.batch);
    if (!p.has_gelu() && !p.has_slope())
        return;
    EMULATE_BLAS_REQUIRE(p.operation.aux && (uintptr_t)p.operation.aux % 16 == 0,
                         "the auxiliary matrix is at %p, expected 16-byte alignment",
                         p.operation.aux);
    EMULATE_BLAS_REQUIRE(
        p.operation.aux_ld % 8 == 0 && p.operation.aux_ld >= p.d.rows,
        "the auxiliary matrix has a leading dimension of %lld for columns of %lld, expected a "
        "multiple of 8",
        (long long)p.operation.aux_ld, (long long)p.d.rows);
}

void emulate_blas_check(const emulate_blas_problem &p)
{
    const bool ta = p.operation.trans_a == CUBLAS_OP_T, tb = p.operation.trans_b == CUBLAS_OP_T;
    check_layout(p.a, p.d.batch, "A");
    check_layout(p.b, p.d.batch, "B");
    check_layout(p.c, p.d.batch, "C");
    check_layout(p.d, p.d.batch, "D");
    EMULATE_BLAS_REQUIRE((ta ? p.a.columns : p.a.rows) == p.d.rows &&
                             (tb ? p.b.rows : p.b.columns) == p.d.columns &&
                             (tb ? p.b.columns : p.b.rows) == p.k(),
                         "A, B and D do not go together: %lld x %lld, %lld x %lld, %lld x %lld",
                         (long long)p.a.rows, (long long)p.a.columns, (long long)p.b.rows,
                         (long long)p.b.columns, (long long)p.d.rows, (long long)p.d.columns);
    EMULATE_BLAS_REQUIRE(same_layout(p.c, p.d), "C and D differ in their layouts");
    const bool beside = p.d.stride >= p.d.rows && p.d.ld >= (p.d.batch - 1) * p.d.stride + p.d.rows;
    EMULATE_BLAS_REQUIRE(p.d.batch == 1 || beside ||
                             p.d.stride >= (p.d.columns - 1) * p.d.ld + p.d.rows,
                         "the matrices of D overlap");
    check_types(p);
    check_epilogue(p);
}

/* FNV-1a. */
uint64_t emulate_blas_signature(const emulate_blas_problem &p)
{
    uint64_t hash = 0xcbf29ce484222325u;
    auto add = [&hash](int64_t value) {
        for (int i = 0; i < 8; i++)
            hash = (hash ^ (value >> 8 * i & 255)) * 0x100000001b3u;
    };
    for (const emulate_blas_layout *x : {&p.a, &p.b, &p.c, &p.d})
        for (int64_t value :
             {(int64_t)x->type, x->rows, x->columns, x->ld, (int64_t)x->batch, x->stride})
            add(value);
    for (int64_t value :
         {(int64_t)p.operation.compute, (int64_t)p.operation.trans_a, (int64_t)p.operation.trans_b,
          (int64_t)p.operation.epilogue, p.operation.aux_ld, (int64_t)p.operation.fast})
        add(value);
    return hash;
}

static void check_memory(const void *memory, uint64_t alignment, const char *name)
{
    cudaPointerAttributes attributes;
    EMULATE_BLAS_REQUIRE(cudaPointerGetAttributes(&attributes, memory) == cudaSuccess &&
                             attributes.type == cudaMemoryTypeDevice,
                         "%s at %p is not device memory", name, memory);
    EMULATE_BLAS_REQUIRE((uintptr_t)memory % alignment == 0,
                         "%s at %p, but its alignment was said to be %llu", name, memory,
                         (unsigned long long)alignment);
}

static bool overlap(const void *x, const emulate_blas_layout &of_x, const void *y,
                    const emulate_blas_layout &of_y)
{
    const uintptr_t first = (uintptr_t)x, second = (uintptr_t)y;
    return first < second + (size_t)extent(of_y) * element_bytes(of_y.type) &&
           second < first + (size_t)extent(of_x) * element_bytes(of_x.type);
}

void emulate_blas_check_call(const emulate_blas_call &call, const cublasLtMatmulAlgo_t &algorithm)
{
    const emulate_blas_problem &p = call.p;
    EMULATE_BLAS_REQUIRE(algorithm.data[SIGNATURE] == emulate_blas_signature(p),
                         "the algorithm is of another emulate_blas_problem");
    EMULATE_BLAS_REQUIRE(call.workspace_bytes >= algorithm.data[WORKSPACE],
                         "%zu bytes of workspace, the algorithm needs %llu", call.workspace_bytes,
                         (unsigned long long)algorithm.data[WORKSPACE]);
    const void *const memory[4] = {call.a, call.b, call.c, call.d};
    static const char *const name[4] = {"A", "B", "C", "D"};
    for (int i = 0; i < 4; i++)
        check_memory(memory[i], algorithm.data[ALIGNMENT_OF_A + i], name[i]);
    if (call.workspace_bytes > 0)
        check_memory(call.workspace, 16, "the workspace");
    if (p.is_fp8()) {
        check_memory(p.operation.scale_a, sizeof(float), "the scale of A");
        check_memory(p.operation.scale_b, sizeof(float), "the scale of B");
    }
    if (p.has_bias() || p.has_gradient())
        check_memory(p.operation.bias, algorithm.data[ALIGNMENT_OF_BIAS], "the bias");
    if (p.has_gelu() || p.has_slope()) {
        emulate_blas_layout aux = p.d;
        aux.ld = p.operation.aux_ld;
        check_memory(p.operation.aux, 16, "the auxiliary matrix");
        EMULATE_BLAS_REQUIRE(!overlap(p.operation.aux, aux, call.d, p.d),
                             "the auxiliary matrix overlaps D");
    }
    if (p.has_gradient()) {
        const emulate_blas_layout sums = {p.d.type, p.d.columns, 1, p.d.columns};
        for (const emulate_blas_layout *x : {&p.a, &p.b, &p.d})
            EMULATE_BLAS_REQUIRE(!overlap(p.operation.bias, sums,
                                          x == &p.a   ? call.a
                                          : x == &p.b ? call.b
                                                      : call.d,
                                          *x),
                                 "the bias's gradient overlaps a matrix");
    }
    EMULATE_BLAS_REQUIRE(!overlap(call.a, p.a, call.d, p.d) && !overlap(call.b, p.b, call.d, p.d),
                         "D overlaps a factor");
    EMULATE_BLAS_REQUIRE(call.c == call.d || !overlap(call.c, p.c, call.d, p.d), "D overlaps C");
}
