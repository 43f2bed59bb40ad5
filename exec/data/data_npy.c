/* NumPy arrays as data: `input=file.npy`, the first dimension counts samples.
 *
 * The array's type must be one that the input takes, its samples must have the input's shape, and
 * the file must hold exactly the values that the header (exec/data/npy_header.c) promises. */
#include "exec/data/data_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/data/npy_header.h"
#include "graph/base/text.h"
#include "graph/model/op.h"

/* A type of array values. */
typedef struct npy_type {
    const char *descr;
    int bytes;
    int64_t (*load_int)(const unsigned char *at); /* NULL: not to int32 */
    void (*to_float)(const unsigned char *restrict from, int64_t n, float *restrict to); /* NULL */
} npy_type;

typedef struct npy_state {
    const npy_type *type;
    const unsigned char *value; /* [samples][elements] */
    int64_t elements;           /* of one sample */
    bool to_int;
} npy_state;

static int64_t load_u1(const unsigned char *at)
{
    return *at;
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

static const npy_type npy_types[] = {
    {"<f4", 4, NULL, float_f4}, {"<f8", 8, NULL, float_f8}, {"|u1", 1, load_u1, float_u1},
    {"<u2", 2, load_u2, NULL},  {"<i4", 4, load_i4, NULL},  {"<i8", 8, load_i8, NULL},
};

/* The type, if it can feed an input of `dtype`. */
static smp_status find_type(const smp_source *source, const smp_npy_header *header,
                            const smp_tensor *input, const npy_type **out)
{
    const npy_type *found = NULL;
    bool to_int = input->dtype == SMP_I32;
    for (size_t i = 0; i < sizeof npy_types / sizeof *npy_types; i++) {
        if (!strcmp(header->descr, npy_types[i].descr))
            found = &npy_types[i];
    }
    if (header->descr[0] == '>')
        return smp_fail(SMP_ERR_INPUT, "%s: the array is big-endian ('%s'), expected little-endian",
                        source->path, header->descr);
    if (!found || (to_int ? !found->load_int : !found->to_float))
        return smp_fail(SMP_ERR_INPUT,
                        "%s: got type '%s', expected one of %s for the %s input '%s'", source->path,
                        header->descr,
                        to_int ? "'|u1', '<u2', '<i4', '<i8'" : "'<f4', '<f8', '|u1'",
                        to_int ? "int32" : "float32", input->name);
    *out = found;
    return SMP_OK;
}

/* Values as many as the shape says, samples shaped like the input. */
static smp_status check_shape(const smp_source *source, const smp_npy_header *header,
                              const npy_type *type, const smp_tensor *input)
{
    bool same = header->n_dim == input->shape.n_dim + 1;
    for (int d = 1; d < header->n_dim && same; d++)
        same = header->dim[d] == input->shape.dim[d - 1];
    if (!same) {
        smp_text got = {0};
        char expected[128];
        for (int d = 0; d < header->n_dim; d++)
            smp_text_append(&got, "%s%lld", d ? ", " : "", (long long)header->dim[d]);
        smp_status status = smp_fail(
            SMP_ERR_INPUT, "%s: got array shape (%s), expected samples of %s for the input '%s'",
            source->path, got.data ? got.data : "",
            smp_shape_format(expected, sizeof expected, &input->shape), input->name);
        smp_text_free(&got);
        return status;
    }
    int64_t need = type->bytes;
    bool overflow = false;
    for (int d = 0; d < header->n_dim; d++)
        overflow |= __builtin_mul_overflow(need, header->dim[d], &need);
    int64_t have = source->file.bytes - header->bytes;
    if (overflow)
        return smp_fail(SMP_ERR_INPUT, "%s: the array's size overflows", source->path);
    if (need != have)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: %s: the array's shape needs %lld bytes of values, the file has %lld",
                        source->path, have < need ? "truncated" : "bytes too many", (long long)need,
                        (long long)have);
    return SMP_OK;
}

/* The model input named by the first `length` characters, -1 if none. */
static int find_prefix(const smp_graph *graph, const char *spec, size_t length)
{
    for (int i = 0; i < graph->n_input; i++) {
        const char *name = graph->tensor[i].name;
        if (strlen(name) == length && !memcmp(name, spec, length))
            return i;
    }
    return -1;
}

/* "image=x.npy". What only ends in .npy or only names an input is taken, too: the message that
 * follows says what is missing. */
static bool matches(const smp_graph *graph, const char *spec)
{
    const char *equals = strchr(spec, '=');
    return smp__ends_with(spec, ".npy") ||
           (equals && find_prefix(graph, spec, (size_t)(equals - spec)) >= 0);
}

/* The input named before the '='. */
static smp_status find_input(const smp_graph *graph, const char *spec, const char *equals,
                             int *input)
{
    char list[512];
    if (!equals || equals == spec)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: got an array without a name, expected input=file.npy, "
                        "input being one of %s",
                        spec, smp__input_list(list, sizeof list, graph));
    size_t length = (size_t)(equals - spec);
    *input = find_prefix(graph, spec, length);
    if (*input >= 0)
        return SMP_OK;

    char name[SMP_MAX_NAME + 1];
    snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name), spec);
    const char **names = malloc(sizeof *names * (size_t)graph->n_input);
    if (!names)
        return smp_fail_memory(sizeof *names * (size_t)graph->n_input);
    for (int i = 0; i < graph->n_input; i++)
        names[i] = graph->tensor[i].name;
    const char *nearest = smp_nearest(name, names, (size_t)graph->n_input);
    if (nearest)
        smp_fail(SMP_ERR_INPUT, "%s: model '%s' has no such input; did you mean '%s'?", spec,
                 graph->name, nearest);
    else
        smp_fail(SMP_ERR_INPUT, "%s: model '%s' has no such input, only %s", spec, graph->name,
                 smp__input_list(list, sizeof list, graph));
    free(names);
    return SMP_ERR_INPUT;
}

static smp_status open_npy(const smp_graph *graph, const char *spec, smp_arena *arena,
                           smp_source *source)
{
    const char *equals = strchr(spec, '=');
    int input = -1;
    SMP_TRY(find_input(graph, spec, equals, &input));
    const smp_tensor *tensor = &graph->tensor[input];
    source->path = equals + 1;
    SMP_TRY(smp__file_map_open(source->path, &source->file));
    smp_npy_header header;
    const npy_type *type = NULL;
    SMP_TRY(smp__npy_header_read(source->path, source->file.data, source->file.bytes, &header));
    SMP_TRY(find_type(source, &header, tensor, &type));
    SMP_TRY(check_shape(source, &header, type, tensor));

    npy_state *state = SMP_ARENA_NEW(arena, npy_state, 1);
    if (!state)
        return SMP_ERR_NO_MEMORY;
    *state = (npy_state){.type = type,
                         .value = source->file.data + header.bytes,
                         .elements = tensor->elements,
                         .to_int = tensor->dtype == SMP_I32};
    source->state = state;
    source->samples = header.dim[0];
    source->feed[source->n_feed++] = input;
    return SMP_OK;
}

static void read_npy(const smp_source *source, int slot, int64_t sample, void *buffer)
{
    const npy_state *state = source->state;
    const npy_type *type = state->type;
    const unsigned char *from = state->value + sample * state->elements * type->bytes;
    (void)slot;
    if (!state->to_int) {
        type->to_float(from, state->elements, buffer);
        return;
    }
    int32_t *to = buffer;
    for (int64_t i = 0; i < state->elements; i++)
        to[i] = (int32_t)type->load_int(from + i * type->bytes);
}

static smp_status check_npy(const smp_source *source, int slot, const smp_source_range *range)
{
    const npy_state *state = source->state;
    const npy_type *type = state->type;
    (void)slot;
    for (int64_t i = 0; i < source->samples * state->elements; i++) {
        int64_t value = type->load_int(state->value + i * type->bytes);
        if (value < range->min || value > range->max) {
            char text[768];
            return smp_fail(SMP_ERR_INPUT, "%s: sample %lld, element %lld is %lld: %s",
                            source->path, (long long)(i / state->elements),
                            (long long)(i % state->elements), (long long)value,
                            smp__range_format(text, sizeof text, range, value));
        }
    }
    return SMP_OK;
}

const smp_source_kind smp__source_npy = {
    .name = "npy",
    .form = "INPUT=FILE.npy (array)",
    .matches = matches,
    .open = open_npy,
    .read = read_npy,
    .check = check_npy,
};
