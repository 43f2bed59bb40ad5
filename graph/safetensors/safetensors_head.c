/* The head of a safetensors file (huggingface.co/docs/safetensors): eight bytes with the length of
 * the JSON, little-endian; the JSON, one entry for a tensor; the values, without a gap.
 *
 * An entry at a time is given to Jansson, so that a hostile head of 100 MB costs little memory and
 * every error has its place. What Jansson cannot see is checked here: nesting, names that are there
 * twice, shapes against lengths, and that the values of all tensors, one after the other, are the
 * rest of the file. O(n log n) in tensors. */
#include "graph/safetensors/weights_format.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef SMP_HAVE_JANSSON
#include <jansson.h>

enum {
    MOST_DEPTH = 2,       /* of an entry: an object, and lists in it */
    MOST_ENTRY = 8 << 20, /* bytes: Jansson takes a multiple of it */
    LENGTH = SMP__SAFETENSORS_LENGTH_BYTES
};

typedef struct head {
    smp_weights_file *file;
    int32_t number;
    const char *path;
    const char *text; /* [n] */
    size_t n;
    int64_t length;     /* of the file */
    int32_t first;      /* tensor of this file */
    smp_text entry;     /* the one in progress, in braces */
    size_t entry_begin; /* where it stands in the text */
} head;

static smp_status fail_at(const head *h, size_t at, const char *reason)
{
    return smp_fail(SMP_ERR_INPUT, "%s: byte %zu: %s", h->path, at + LENGTH, reason);
}

static size_t skip_spaces(const head *h, size_t at)
{
    while (at < h->n && memchr(" \t\r\n", h->text[at], 4))
        at++;
    return at;
}

/* Where the entry that begins at `at` ends: a comma or brace of the head itself. */
static smp_status find_end(const head *h, size_t begin, size_t *end)
{
    int depth = 0;
    bool quoted = false;
    for (size_t i = begin; i < h->n; i++) {
        const char c = h->text[i];
        if (quoted) {
            i += c == '\\';
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            if (++depth > MOST_DEPTH)
                return fail_at(h, i, "nested deeper than the format");
        } else if (depth > 0 && (c == '}' || c == ']')) {
            depth--;
        } else if (depth == 0 && (c == ',' || c == '}')) {
            *end = i;
            return SMP_OK;
        }
    }
    return fail_at(h, h->n, "the header ends inside an entry");
}

/* dim: [most]. Whole numbers from 0. */
static int read_numbers(const json_t *list, int64_t *dim, size_t most)
{
    if (!json_is_array(list) || json_array_size(list) > most)
        return -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0)
            return -1;
        dim[i] = json_integer_value(item);
    }
    return (int)json_array_size(list);
}

static smp_status fail_tensor(const head *h, const char *name, const char *reason)
{
    return smp_fail(SMP_ERR_INPUT, "%s: byte %zu: tensor '%s': %s", h->path,
                    h->entry_begin + LENGTH, name, reason);
}

static smp_status read_tensor(head *h, const char *name, const json_t *value)
{
    const json_t *dtype = json_object_get(value, "dtype");
    smp_stored_tensor t = {.name = name, .file = h->number};
    int64_t offset[2];
    if (!json_is_object(value) || json_object_size(value) != 3 || !json_is_string(dtype))
        return fail_tensor(h, name, "expected the keys dtype, shape and data_offsets");
    if (!(t.dtype = smp_stored_dtype_find(json_string_value(dtype))))
        return smp_fail(SMP_ERR_INPUT,
                        "%s: byte %zu: tensor '%s': got dtype '%s', expected F32, "
                        "F16, BF16, F64 or one of whole numbers",
                        h->path, h->entry_begin + LENGTH, name, json_string_value(dtype));
    t.shape.n_dim = read_numbers(json_object_get(value, "shape"), t.shape.dim, SMP_STORED_DIMS);
    if (t.shape.n_dim < 0)
        return fail_tensor(h, name, "shape: expected a list of at most 8 whole numbers from 0");
    if (read_numbers(json_object_get(value, "data_offsets"), offset, 2) != 2)
        return fail_tensor(h, name, "data_offsets: expected two whole numbers from 0");
    if (!smp_stored_elements(&t.shape, &t.elements))
        return fail_tensor(h, name, "shape: more than 2^60 elements");
    const int64_t values = h->length - LENGTH - (int64_t)h->n;
    if (offset[0] > offset[1] || offset[1] > values)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: byte %zu: tensor '%s': got data_offsets [%" PRId64 ", %" PRId64
                        "], the file has %" PRId64 " bytes of values",
                        h->path, h->entry_begin + LENGTH, name, offset[0], offset[1], values);
    if (t.elements > INT64_MAX / t.dtype->bytes ||
        offset[1] - offset[0] != t.elements * t.dtype->bytes) {
        char shape[SMP_SHAPE_TEXT];
        return smp_fail(SMP_ERR_INPUT,
                        "%s: byte %zu: tensor '%s': got %" PRId64 " bytes for %s of shape %s",
                        h->path, h->entry_begin + LENGTH, name, offset[1] - offset[0],
                        t.dtype->name, smp_stored_shape_text(&t.shape, shape));
    }
    t.at = LENGTH + (int64_t)h->n + offset[0];
    const smp_status status = smp__weights_add_tensor(h->file, &t);
    return status == SMP_ERR_INPUT
               ? smp_fail_context(status, "%s: byte %zu", h->path, h->entry_begin + LENGTH)
               : status;
}

static smp_status check_metadata(const head *h, json_t *value, bool *seen)
{
    const char *key;
    json_t *item;
    if (*seen)
        return fail_tensor(h, "__metadata__", "is there twice");
    *seen = true;
    if (!json_is_object(value))
        return fail_tensor(h, "__metadata__", "expected an object of texts");
    json_object_foreach(value, key, item) if (!json_is_string(item)) return fail_tensor(
        h, "__metadata__", "expected an object of texts");
    return SMP_OK;
}

static smp_status read_entry(head *h, size_t begin, size_t end, bool *metadata)
{
    json_error_t error;
    if (end - begin > MOST_ENTRY)
        return fail_at(h, begin, "an entry of more than 8 MiB");
    h->entry.length = 0;
    h->entry_begin = begin;
    smp_text_append_bytes(&h->entry, "{", 1);
    smp_text_append_bytes(&h->entry, h->text + begin, end - begin);
    smp_text_append_bytes(&h->entry, "}", 1);
    if (h->entry.failed)
        return smp_fail_memory(end - begin);
    json_t *json = json_loadb(h->entry.data, h->entry.length, JSON_REJECT_DUPLICATES, &error);
    if (!json && (json_error_code(&error) == json_error_out_of_memory || error.text[0] == '\0'))
        return smp_fail_memory(h->entry.length);
    smp__json_hide(error.text);
    if (!json)
        return fail_at(h, begin + (size_t)(error.position > 0 ? error.position - 1 : 0),
                       error.text);
    smp_status status = SMP_OK;
    void *item = json_object_iter(json);
    if (json_object_size(json) != 1)
        status = fail_at(h, begin, "expected one entry between two commas");
    else if (strcmp(json_object_iter_key(item), "__metadata__") == 0)
        status = check_metadata(h, json_object_iter_value(item), metadata);
    else
        status = read_tensor(h, json_object_iter_key(item), json_object_iter_value(item));
    json_decref(json);
    return status;
}

static smp_status read_entries(head *h)
{
    size_t at = 1, end = 0;
    bool metadata = false;
    if (h->n == 0 || h->text[0] != '{')
        return fail_at(h, 0, "expected '{'");
    if (skip_spaces(h, 1) < h->n && h->text[skip_spaces(h, 1)] == '}')
        end = skip_spaces(h, 1);
    for (; end == 0 || h->text[end] != '}'; at = end + 1) {
        SMP_TRY(find_end(h, at, &end));
        SMP_TRY(read_entry(h, at, end, &metadata));
    }
    at = skip_spaces(h, end + 1);
    return at == h->n ? SMP_OK : fail_at(h, at, "something after the header's '}'");
}

static int by_place(const void *a, const void *b)
{
    const smp_stored_tensor *x = *(const smp_stored_tensor *const *)a,
                            *y = *(const smp_stored_tensor *const *)b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    const int64_t p = x->elements * x->dtype->bytes, q = y->elements * y->dtype->bytes;
    return p != q ? (p < q ? -1 : 1) : (x > y) - (x < y);
}

/* The values of all tensors follow each other, from after the header to the end of the file. */
static smp_status check_places(const head *h)
{
    const int32_t n = h->file->n_tensor - h->first;
    const smp_stored_tensor **order = malloc(((size_t)n + 1) * sizeof *order);
    if (!order)
        return smp_fail_memory((size_t)n * sizeof *order);
    for (int32_t i = 0; i < n; i++)
        order[i] = &h->file->tensor[h->first + i];
    qsort(order, (size_t)n, sizeof *order, by_place);
    int64_t end = LENGTH + (int64_t)h->n;
    smp_status status = SMP_OK;
    for (int32_t i = 0; i < n && status == SMP_OK; i++) {
        const smp_stored_tensor *t = order[i];
        if (t->at != end)
            status = smp_fail(
                SMP_ERR_INPUT, "%s: byte %" PRId64 ": tensor '%s' begins at byte %" PRId64 ": %s",
                h->path, end, t->name, t->at, t->at < end ? "tensors overlap" : "a hole before it");
        end = t->at + t->elements * t->dtype->bytes;
    }
    if (status == SMP_OK && end != h->length)
        status = smp_fail(SMP_ERR_INPUT,
                          "%s: byte %" PRId64 ": %" PRId64 " bytes after the values of all tensors",
                          h->path, end, h->length - end);
    free(order);
    return status;
}

smp_status smp__safetensors_parse(smp_weights_file *file, int32_t number, const char *text,
                                  size_t n, int64_t length)
{
    head h = {.file = file,
              .number = number,
              .path = file->file[number],
              .text = text,
              .n = n,
              .length = length,
              .first = file->n_tensor};
    smp_status status = read_entries(&h);
    smp_text_free(&h.entry);
    return status == SMP_OK ? check_places(&h) : status;
}

#else

smp_status smp__safetensors_parse(smp_weights_file *file, int32_t number, const char *text,
                                  size_t n, int64_t length)
{
    (void)text, (void)n, (void)length;
    return smp_fail(SMP_ERR_INPUT,
                    "%s: this build reads no safetensors: it was made without "
                    "Jansson (libjansson-dev)",
                    file->file[number]);
}

#endif

static smp_status read_open(smp_weights_file *file, int32_t number, int fd, int64_t length)
{
    const char *path = file->file[number];
    unsigned char first[SMP__SAFETENSORS_LENGTH_BYTES];
    uint64_t n = 0;
    if (length < (int64_t)sizeof first)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: byte %" PRId64 ": the file ends, expected the 8 bytes "
                        "of a header's length",
                        path, length);
    SMP_TRY(smp__weights_pread(fd, path, first, sizeof first, 0));
    for (int i = (int)sizeof first - 1; i >= 0; i--)
        n = n << 8 | first[i];
    if (n > SMP__SAFETENSORS_MOST_HEADER)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: byte 0: a header of more bytes than safetensors has, at most %d", path,
                        SMP__SAFETENSORS_MOST_HEADER);
    if ((int64_t)n > length - (int64_t)sizeof first)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: byte 0: a header of %" PRIu64 " bytes, the file has "
                        "%" PRId64,
                        path, n, length);
    char *text = malloc((size_t)n + 1);
    if (!text)
        return smp_fail_memory((size_t)n);
    smp_status status = smp__weights_pread(fd, path, text, (int64_t)n, sizeof first);
    if (status == SMP_OK)
        status = smp__safetensors_parse(file, number, text, (size_t)n, length);
    free(text);
    return status;
}

smp_status smp__safetensors_read(smp_weights_file *file, int32_t number)
{
    int64_t length;
    int fd;
    SMP_TRY(smp_file_open(file->file[number], &fd, &length));
    const smp_status status = read_open(file, number, fd, length);
    close(fd);
    return status;
}

static bool knows(const char *path, const unsigned char *first, size_t n)
{
    (void)path, (void)first, (void)n;
    return true;
}

static smp_status read_file(smp_weights_file *file)
{
    int32_t number;
    SMP_TRY(smp__weights_add_file(file, file->path, &number));
    return smp__safetensors_read(file, number);
}

const smp__weights_format smp__format_safetensors = {knows, read_file};
