/* NumPy arrays as data: `input=file.npy`. Here is the scanner of their headers; the array itself is
 * data_array.c's.
 *
 * A file is the magic "\x93NUMPY", a version, the length of the header (2 bytes in version 1.0, 4
 * in 2.0 and 3.0), the header, the values. The header is a Python dictionary of exactly three keys,
 * {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }, padded with blanks and a newline
 * (NEP 1). Every byte is checked against the header's end and every number against overflow; what
 * is not understood is refused. Linear in the header's length. */
#include "exec/data/data_source.h"

#include <stdlib.h>
#include <string.h>

static const char magic[] = "\x93NUMPY";

typedef struct scanner {
    const char *path;
    const unsigned char *begin; /* of what was read: the start of the file */
    const unsigned char *at;
    const unsigned char *end; /* of the header */
    bool has_descr, has_order, has_shape;
    smp_array *array; /* what was found */
} scanner;

static smp_status header_fail(const scanner *scan, const char *expected)
{
    return smp_fail(SMP_ERR_INPUT, "%s: .npy header, byte %lld: expected %s", scan->path,
                    (long long)(scan->at - scan->begin), expected);
}

static void skip_blank(scanner *scan)
{
    while (scan->at < scan->end && (*scan->at == ' ' || *scan->at == '\n' || *scan->at == '\t'))
        scan->at++;
}

/* Takes `text`, after blanks, if it stands there. */
static bool take_text(scanner *scan, const char *text)
{
    size_t length = strlen(text);
    skip_blank(scan);
    if ((size_t)(scan->end - scan->at) < length || memcmp(scan->at, text, length))
        return false;
    scan->at += length;
    return true;
}

static smp_status take_string(scanner *scan, const char *what, char *text, size_t size)
{
    skip_blank(scan);
    size_t n = 0;
    if (scan->at == scan->end || (*scan->at != '\'' && *scan->at != '"'))
        return header_fail(scan, what);
    unsigned char quote = *scan->at++;
    while (scan->at < scan->end && *scan->at != quote) {
        if (*scan->at < ' ' || *scan->at > '~' || *scan->at == '\\' || n + 1 >= size)
            return header_fail(scan, what);
        text[n++] = (char)*scan->at++;
    }
    if (scan->at == scan->end)
        return header_fail(scan, "a closing quote");
    scan->at++;
    text[n] = '\0';
    return SMP_OK;
}

static smp_status take_dim(scanner *scan, int64_t *dim)
{
    skip_blank(scan);
    if (scan->at == scan->end || *scan->at < '0' || *scan->at > '9')
        return header_fail(scan, "a dimension");
    *dim = 0;
    for (; scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9'; scan->at++) {
        if (__builtin_mul_overflow(*dim, 10, dim) ||
            __builtin_add_overflow(*dim, *scan->at - '0', dim))
            return header_fail(scan, "a dimension below 2^63");
    }
    take_text(scan, "L"); /* written by Python 2 */
    return SMP_OK;
}

/* (), (3,), (3, 4), (3, 4,) */
static smp_status take_shape(scanner *scan)
{
    smp_array *array = scan->array;
    if (!take_text(scan, "("))
        return header_fail(scan, "a tuple of dimensions");
    while (!take_text(scan, ")")) {
        if (array->n_dim == SMP_ARRAY_MAX_DIMS)
            return header_fail(scan, "7 dimensions at most");
        SMP_TRY(take_dim(scan, &array->dim[array->n_dim++]));
        if (take_text(scan, ","))
            continue;
        if (!take_text(scan, ")"))
            return header_fail(scan, "',' or ')'");
        if (array->n_dim == 1)
            return header_fail(scan, "a tuple of dimensions: (3) is a number, (3,) a tuple");
        break;
    }
    return SMP_OK;
}

static smp_status take_order(scanner *scan)
{
    if (take_text(scan, "True"))
        return smp_fail(SMP_ERR_INPUT,
                        "%s: the array is in Fortran order, expected C order "
                        "(numpy.ascontiguousarray)",
                        scan->path);
    return take_text(scan, "False") ? SMP_OK : header_fail(scan, "True or False");
}

static smp_status take_entry(scanner *scan)
{
    static const char expected[] = "one of the keys 'descr', 'fortran_order', 'shape', each once";
    char key[SMP_ARRAY_MAX_DESCR];
    SMP_TRY(take_string(scan, expected, key, sizeof key));
    bool *seen = !strcmp(key, "descr")           ? &scan->has_descr
                 : !strcmp(key, "fortran_order") ? &scan->has_order
                 : !strcmp(key, "shape")         ? &scan->has_shape
                                                 : NULL;
    if (!seen || *seen)
        return header_fail(scan, expected);
    *seen = true;
    if (!take_text(scan, ":"))
        return header_fail(scan, "':'");
    if (seen == &scan->has_descr)
        return take_string(scan, "a plain type such as '<f4' (no structured types)",
                           scan->array->descr, sizeof scan->array->descr);
    return seen == &scan->has_order ? take_order(scan) : take_shape(scan);
}

static smp_status take_dictionary(scanner *scan)
{
    if (!take_text(scan, "{"))
        return header_fail(scan, "'{'");
    while (!take_text(scan, "}")) {
        SMP_TRY(take_entry(scan));
        if (take_text(scan, ","))
            continue;
        if (!take_text(scan, "}"))
            return header_fail(scan, "',' or '}'");
        break;
    }
    skip_blank(scan);
    if (scan->at != scan->end)
        return header_fail(scan, "blanks up to the end of the header");
    if (!scan->has_descr || !scan->has_order || !scan->has_shape)
        return header_fail(scan, "the keys 'descr', 'fortran_order' and 'shape'");
    return SMP_OK;
}

/* Sets *start and *end of the dictionary. */
static smp_status find_header(const smp_source *source, int64_t *start, int64_t *end)
{
    const int64_t bytes = source->file.bytes;
    unsigned char data[12] = {0};
    SMP_TRY(smp__data_file_read(&source->file, 0, data, bytes < 12 ? (size_t)bytes : 12));
    if (bytes < 10 || memcmp(data, magic, sizeof magic - 1))
        return smp_fail(SMP_ERR_INPUT, "%s: not an .npy file: it does not start with \\x93NUMPY",
                        source->path);
    int major = data[6];
    int minor = data[7];
    if (major < 1 || major > 3 || minor != 0)
        return smp_fail(SMP_ERR_INPUT, "%s: got .npy version %d.%d, expected 1.0, 2.0 or 3.0",
                        source->path, major, minor);
    *start = major == 1 ? 10 : 12;
    int64_t length = 0;
    if (bytes >= *start)
        length = major == 1 ? smp__load_u16(data + 8) : (int64_t)smp__load_u32(data + 8);
    if (bytes - *start < length)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: truncated: the .npy header ends at byte %lld, the file at %lld",
                        source->path, (long long)(*start + length), (long long)bytes);
    if (length > UINT16_MAX) /* a file may be sparse; one shape and type need less than 1 KiB */
        return smp_fail(SMP_ERR_INPUT, "%s: got an .npy header of %lld bytes, expected at most %d",
                        source->path, (long long)length, UINT16_MAX);
    *end = *start + length;
    return SMP_OK;
}

static smp_status read_header(const smp_source *source, smp_array *array)
{
    int64_t start = 0, end = 0;
    SMP_TRY(find_header(source, &start, &end));
    array->offset = end;
    unsigned char *data = malloc((size_t)end);
    if (!data)
        return smp_fail_memory((size_t)end);
    scanner scan = {
        .path = source->path, .begin = data, .at = data + start, .end = data + end, .array = array};
    smp_status status = smp__data_file_read(&source->file, 0, data, (size_t)end);
    if (status == SMP_OK)
        status = take_dictionary(&scan);
    free(data);
    return status;
}

static bool claims(const char *path, bool named)
{
    return smp__ends_with(path, ".npy") ||
           (named && smp__file_begins(path, magic, sizeof magic - 1));
}

static smp_status open_npy(const smp_graph *graph, smp_arena *arena, smp_source *source)
{
    smp_array array = {0};
    SMP_TRY(read_header(source, &array));
    return smp__array_bind(graph, arena, &array, source);
}

const smp_source_kind smp__source_npy = {
    .name = "npy",
    .form = "INPUT=FILE.npy (array)",
    .named = true,
    .claims = claims,
    .open = open_npy,
    .read = smp__array_read,
    .check = smp__array_check,
};
