/* Arrays as data, whatever the format of their file: the first dimension counts samples.
 *
 * The array's type must be one that the input takes, its samples must have the input's shape, and
 * the file must hold exactly the values that the header promises. */
#include "exec/data/data_source.h"

#include <string.h>

#include "graph/base/text.h"
#include "graph/model/op.h"

/* A type of array values. */
typedef struct array_type {
    const char *descr;
    int bytes;
    int64_t (*load_int)(const unsigned char *at); /* NULL: not to int32 */
    void (*to_float)(const unsigned char *restrict from, int64_t n, float *restrict to); /* NULL */
} array_type;

typedef struct array_state {
    const array_type *type;
    int64_t offset;   /* in the file, of the values: [samples][elements] */
    int64_t elements; /* of one sample */
    bool to_int;
    bool swap; /* the file is big-endian */
} array_state;

static int64_t load_u1(const unsigned char *at)
{
    return *at;
}

static int64_t load_i1(const unsigned char *at)
{
    return (int8_t)*at;
}

static int64_t load_i2(const unsigned char *at)
{
    return (int16_t)smp__load_u16(at);
}

static int64_t load_u2(const unsigned char *at)
{
    return smp__load_u16(at);
}

static int64_t load_i4(const unsigned char *at)
{
    return (int32_t)smp__load_u32(at);
}

static int64_t load_i8(const unsigned char *at)
{
    return (int64_t)smp__load_u64(at);
}

static void float_u1(const unsigned char *restrict from, int64_t n, float *restrict to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)from[i] / 255.0f;
}

static void float_f4(const unsigned char *restrict from, int64_t n, float *restrict to)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = smp__load_u32(from + 4 * i);
        memcpy(&to[i], &bits, sizeof bits);
    }
}

static void float_f8(const unsigned char *restrict from, int64_t n, float *restrict to)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = smp__load_u64(from + 8 * i);
        double value;
        memcpy(&value, &bits, sizeof bits);
        to[i] = (float)value;
    }
}

static const array_type array_types[] = {
    {"<f4", 4, NULL, float_f4}, {"<f8", 8, NULL, float_f8}, {"|u1", 1, load_u1, float_u1},
    {"<u2", 2, load_u2, NULL},  {"<i4", 4, load_i4, NULL},  {"<i8", 8, load_i8, NULL},
    {"|i1", 1, load_i1, NULL},  {"<i2", 2, load_i2, NULL},
};

/* The type, if it can feed an input of `dtype`. */
static smp_status find_type(const smp_source *source, const smp_array *array,
                            const smp_tensor *input, const array_type **out)
{
    const array_type *found = NULL;
    bool to_int = input->dtype == SMP_I32;
    char little[SMP_ARRAY_MAX_DESCR]; /* the same in the order that the list has */
    memcpy(little, array->descr, sizeof little);
    if (little[0] == '>')
        little[0] = '<';
    for (size_t i = 0; i < sizeof array_types / sizeof *array_types; i++) {
        if (!strcmp(little, array_types[i].descr))
            found = &array_types[i];
    }
    if (!found || (to_int ? !found->load_int : !found->to_float))
        return smp_fail(SMP_ERR_INPUT,
                        "%s: got type '%s', expected one of %s for the %s input '%s'", source->path,
                        array->descr,
                        to_int ? "'|u1', '|i1', '<u2', '<i2', '<i4', '<i8'" : "'<f4', '<f8', '|u1'",
                        to_int ? "int32" : "float32", input->name);
    *out = found;
    return SMP_OK;
}

/* Values as many as the shape says, samples shaped like the input. */
static smp_status check_shape(const smp_source *source, const smp_array *array,
                              const array_type *type, const smp_tensor *input)
{
    const int samples = input->unsplit ? 0 : 1; /* dimensions that count them */
    bool same = array->n_dim == input->shape.n_dim + samples;
    for (int d = samples; d < array->n_dim && same; d++)
        same = array->dim[d] == input->shape.dim[d - samples];
    if (!same) {
        smp_text got = {0};
        char expected[128];
        for (int d = 0; d < array->n_dim; d++)
            smp_text_append(&got, "%s%lld", d ? ", " : "", (long long)array->dim[d]);
        smp_status status =
            smp_fail(SMP_ERR_INPUT, "%s: got array shape (%s), expected %s%s for the input '%s'%s",
                     source->path, got.data ? got.data : "", input->unsplit ? "" : "samples of ",
                     smp_shape_format(expected, sizeof expected, &input->shape), input->name,
                     input->unsplit ? ", which has split: false" : "");
        smp_text_free(&got);
        return status;
    }
    int64_t need = type->bytes;
    bool overflow = false;
    for (int d = 0; d < array->n_dim; d++)
        overflow |= __builtin_mul_overflow(need, array->dim[d], &need);
    int64_t have = source->file.bytes - array->offset;
    if (overflow)
        return smp_fail(SMP_ERR_INPUT, "%s: the array's size overflows", source->path);
    if (need != have)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: %s: the array's shape needs %lld bytes of values, the file has %lld",
                        source->path, have < need ? "truncated" : "bytes too many", (long long)need,
                        (long long)have);
    return SMP_OK;
}

smp_status smp__array_bind(const smp_graph *graph, smp_arena *arena, const smp_array *array,
                           smp_source *source)
{
    const smp_tensor *tensor = &graph->tensor[source->feed[0]];
    const array_type *type = NULL;
    SMP_TRY(find_type(source, array, tensor, &type));
    SMP_TRY(check_shape(source, array, type, tensor));
    array_state *state = SMP_ARENA_NEW(arena, array_state, 1);
    if (!state)
        return SMP_ERR_NO_MEMORY;
    *state = (array_state){.type = type,
                           .offset = array->offset,
                           .elements = tensor->elements,
                           .to_int = tensor->dtype == SMP_I32,
                           .swap = array->descr[0] == '>'};
    source->state = state;
    source->samples = tensor->unsplit ? 1 : array->dim[0];
    return SMP_OK;
}

static void swap_bytes(unsigned char *piece, int64_t n, int bytes)
{
    for (unsigned char *value = piece; value < piece + n * bytes; value += bytes)
        for (int low = 0, high = bytes - 1; low < high; low++, high--) {
            const unsigned char byte = value[low];
            value[low] = value[high];
            value[high] = byte;
        }
}

/* The next elements from `begin` of `end` on, as many as fit into a piece: *n. */
static smp_status read_piece(const smp_source *source, int64_t begin, int64_t end,
                             unsigned char *piece, int64_t *n)
{
    const array_state *state = source->state;
    const int64_t most = SMP_DATA_PIECE / state->type->bytes;
    *n = end - begin < most ? end - begin : most;
    SMP_TRY(smp__data_file_read(&source->file, state->offset + begin * state->type->bytes, piece,
                                (size_t)(*n * state->type->bytes)));
    if (state->swap)
        swap_bytes(piece, *n, state->type->bytes);
    return SMP_OK;
}

smp_status smp__array_read(const smp_source *source, int slot, int64_t sample, void *buffer)
{
    const array_state *state = source->state;
    const array_type *type = state->type;
    const int64_t first = sample * state->elements;
    unsigned char piece[SMP_DATA_PIECE];
    (void)slot;
    for (int64_t done = 0, n; done < state->elements; done += n) {
        SMP_TRY(read_piece(source, first + done, first + state->elements, piece, &n));
        if (!state->to_int)
            type->to_float(piece, n, (float *)buffer + done);
        for (int64_t i = 0; state->to_int && i < n; i++)
            ((int32_t *)buffer)[done + i] = (int32_t)type->load_int(piece + i * type->bytes);
    }
    return SMP_OK;
}

smp_status smp__array_check(const smp_source *source, int slot, const smp__index_range *range)
{
    const array_state *state = source->state;
    const array_type *type = state->type;
    const int64_t total = source->samples * state->elements;
    unsigned char piece[SMP_DATA_PIECE];
    (void)slot;
    for (int64_t i = 0, begin = 0, n = 0; i < total; i++) {
        if (i == begin + n) {
            begin = i;
            SMP_TRY(read_piece(source, begin, total, piece, &n));
        }
        int64_t value = type->load_int(piece + (i - begin) * type->bytes);
        if (value < range->min || value > range->max) {
            char text[768];
            return smp_fail(SMP_ERR_INPUT, "%s: sample %lld, element %lld is %lld: %s",
                            source->path, (long long)(i / state->elements),
                            (long long)(i % state->elements), (long long)value,
                            smp__index_range_format(text, sizeof text, range, value));
        }
    }
    return SMP_OK;
}
