/* IDX files as data, the format of MNIST: `image=train-images-idx3-ubyte`.
 *
 * Two bytes of zero, the type of the values, the number of dimensions, each dimension as a
 * big-endian uint32, then the values, big-endian, in C order (LeCun, Cortes, Burges: The MNIST
 * database). A file of images says nothing of channels, so dimensions of 1 are not compared, and an
 * input of one dimension takes all values of a sample in a row. */
#include "exec/data/data_source.h"

#include <stdio.h>
#include <string.h>

#include "graph/model/op.h"

enum { PACKED_FIRST = 0x1f, PACKED_SECOND = 0x8b }; /* gzip */

static const struct value_type {
    unsigned char code;
    const char *descr;
} value_types[] = {{0x08, "|u1"}, {0x09, "|i1"}, {0x0b, ">i2"},
                   {0x0c, ">i4"}, {0x0d, ">f4"}, {0x0e, ">f8"}};

/* Named as MNIST's are, or by the first bytes. What is packed is taken to say so. */
static bool claims(const char *path, bool named)
{
    static const char packed[] = {PACKED_FIRST, (char)PACKED_SECOND};
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    if (strstr(name, "-idx") && (smp__ends_with(name, "-ubyte") || smp__ends_with(name, ".gz")))
        return true;
    return named && (smp__file_begins(path, "\0\0", 2) || smp__file_begins(path, packed, 2));
}

static smp_status find_type(const smp_source *source, unsigned char code, smp_array *array)
{
    for (size_t i = 0; i < sizeof value_types / sizeof *value_types; i++)
        if (value_types[i].code == code) {
            snprintf(array->descr, sizeof array->descr, "%s", value_types[i].descr);
            return SMP_OK;
        }
    return smp_fail(SMP_ERR_INPUT,
                    "%s: IDX header, byte 2: got type 0x%02x, expected 0x08 (unsigned byte), 0x09, "
                    "0x0b, 0x0c, 0x0d or 0x0e",
                    source->path, code);
}

static smp_status parse_header(const smp_source *source, smp_array *array)
{
    const smp_data_file *file = &source->file;
    unsigned char head[4 + 4 * SMP_ARRAY_MAX_DIMS] = {0};
    const size_t n = file->bytes < (int64_t)sizeof head ? (size_t)file->bytes : sizeof head;
    SMP_TRY(smp__data_file_read(file, 0, head, n));
    if (head[0] == PACKED_FIRST && head[1] == PACKED_SECOND)
        return smp_fail(SMP_ERR_INPUT, "%s: is compressed: unpack it with gunzip", source->path);
    if (n < 4 || head[0] != 0 || head[1] != 0)
        return smp_fail(SMP_ERR_INPUT, "%s: not an IDX file: it does not start with two zero bytes",
                        source->path);
    SMP_TRY(find_type(source, head[2], array));
    array->n_dim = head[3];
    if (array->n_dim < 1 || array->n_dim > SMP_ARRAY_MAX_DIMS)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: IDX header, byte 3: got %d dimensions, expected 1 to %d", source->path,
                        array->n_dim, (int)SMP_ARRAY_MAX_DIMS);
    array->offset = 4 + 4 * array->n_dim;
    if (file->bytes < array->offset)
        return smp_fail(SMP_ERR_INPUT, "%s: truncated: the IDX header needs %lld bytes, got %lld",
                        source->path, (long long)array->offset, (long long)file->bytes);
    for (int d = 0; d < array->n_dim; d++) {
        const unsigned char *at = head + 4 + 4 * d;
        array->dim[d] = (int64_t)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
    }
    return SMP_OK;
}

/* The dimension of a shape that comes next, those of 1 left out; 0: none is left. */
static int64_t next_dim(const int64_t *dim, int n, int *at)
{
    while (*at < n && dim[*at] == 1)
        ++*at;
    return *at < n ? dim[(*at)++] : 0;
}

/* Gives the samples the shape of the input, where that has the same values in the same order. */
static void fit_shape(const smp_tensor *input, smp_array *array)
{
    int64_t elements = 1;
    if (input->unsplit)
        return;
    for (int d = 1; d < array->n_dim; d++)
        if (__builtin_mul_overflow(elements, array->dim[d], &elements))
            return;
    if (elements != input->elements)
        return;
    int of_array = 1, of_input = 0;
    int64_t a, b;
    do {
        a = next_dim(array->dim, array->n_dim, &of_array);
        b = next_dim(input->shape.dim, input->shape.n_dim, &of_input);
    } while (a == b && a != 0);
    if (a != b && input->shape.n_dim != 1)
        return;
    array->n_dim = input->shape.n_dim + 1;
    for (int d = 1; d < array->n_dim; d++)
        array->dim[d] = input->shape.dim[d - 1];
}

static smp_status open_idx(const smp_graph *graph, smp_arena *arena, smp_source *source)
{
    smp_array array = {0};
    SMP_TRY(parse_header(source, &array));
    fit_shape(&graph->tensor[source->feed[0]], &array);
    return smp__array_bind(graph, arena, &array, source);
}

const smp_source_kind smp__source_idx = {
    .name = "idx",
    .form = "INPUT=FILE-idx3-ubyte (IDX, as MNIST's)",
    .named = true,
    .claims = claims,
    .open = open_idx,
    .read = smp__array_read,
    .check = smp__array_check,
};
