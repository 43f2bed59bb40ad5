/* Tensors of an ONNX file as constants: floats of every float type, 64-bit integers of all others.
 * What has its bytes in the file as they are needed is not copied. */
#include "graph/onnx/onnx_model.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "graph/safetensors/stored_dtype.h"

typedef struct stored {
    const uint8_t *data; /* as raw_data has it, little-endian */
    size_t bytes;
} stored;

#define TYPE(name) ONNX__TENSOR_PROTO__DATA_TYPE__##name

bool smp__onnx_is_float(int type)
{
    return type == TYPE(FLOAT) || type == TYPE(FLOAT16) || type == TYPE(DOUBLE) ||
           type == TYPE(BFLOAT16);
}

int smp__onnx_type_bytes(int type)
{
    switch (type) {
    case TYPE(BOOL):
    case TYPE(INT8):
    case TYPE(UINT8):
        return 1;
    case TYPE(INT16):
    case TYPE(UINT16):
    case TYPE(FLOAT16):
    case TYPE(BFLOAT16):
        return 2;
    case TYPE(FLOAT):
    case TYPE(INT32):
    case TYPE(UINT32):
        return 4;
    case TYPE(DOUBLE):
    case TYPE(INT64):
    case TYPE(UINT64):
        return 8;
    default:
        return 0;
    }
}

static const char *entry(const Onnx__TensorProto *tensor, const char *key)
{
    for (size_t i = 0; i < tensor->n_external_data; i++)
        if (tensor->external_data[i]->key && strcmp(tensor->external_data[i]->key, key) == 0)
            return tensor->external_data[i]->value;
    return NULL;
}

/* A file in the folder of the model and nowhere else: a name without a slash, no link. */
static smp_status open_beside(const smp_onnx_model *model, const char *what, const char *name,
                              int *fd)
{
    if (!name || !*name || strchr(name, '/') || strcmp(name, "..") == 0 || strcmp(name, ".") == 0)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: %s: its data lie in '%.100s', expected a file in the model's folder",
                        model->file->path, what, name ? name : "");
    const char *slash = strrchr(model->file->path, '/');
    const int folder = slash ? (int)(slash + 1 - model->file->path) : 0;
    char *path = smp_arena_printf(model->arena, "%.*s%s", folder, model->file->path, name);
    if (!path)
        return SMP_ERR_NO_MEMORY;
    *fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    return *fd >= 0 ? SMP_OK
                    : smp_fail(SMP_ERR_INPUT, "%s: %s: cannot open %s: %m", model->file->path, what,
                               path);
}

static smp_status read_beside(smp_onnx_model *model, const Onnx__TensorProto *tensor,
                              const char *what, size_t bytes, stored *out)
{
    int64_t begin = 0, length = (int64_t)bytes;
    const char *offset = entry(tensor, "offset"), *given = entry(tensor, "length");
    if ((offset && !smp_parse_int(offset, &begin)) || (given && !smp_parse_int(given, &length)) ||
        begin < 0 || length != (int64_t)bytes)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: %s: data of offset '%.40s' and length '%.40s', expected %zu bytes",
                        model->file->path, what, offset ? offset : "0", given ? given : "", bytes);
    int fd = -1;
    SMP_TRY(open_beside(model, what, entry(tensor, "location"), &fd));
    struct stat info;
    smp_status status = SMP_OK;
    void *data = NULL;
    int64_t taken = 0;
    smp_map_get(model->read_beside, entry(tensor, "location"), &taken);
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || begin > info.st_size ||
        length > info.st_size - begin)
        status = smp_fail(SMP_ERR_INPUT, "%s: %s: its data go on after the end of their file",
                          model->file->path, what);
    else if (length > info.st_size - taken)
        status = smp_fail(SMP_ERR_INPUT, "%s: %s: its data overlap those of others",
                          model->file->path, what);
    else if (!(data = smp_arena_alloc(model->arena, bytes + 1, 1)))
        status = SMP_ERR_NO_MEMORY;
    for (size_t done = 0; status == SMP_OK && done < bytes;) {
        const ssize_t n =
            pread(fd, (char *)data + done, bytes - done, (off_t)(begin + (int64_t)done));
        if (n <= 0)
            status =
                smp_fail(SMP_ERR_INPUT, "%s: %s: its data cannot be read", model->file->path, what);
        else
            done += (size_t)n;
    }
    close(fd);
    if (status == SMP_OK)
        status = smp_map_set(model->read_beside, entry(tensor, "location"), taken + length);
    model->stored_bytes += (int64_t)bytes;
    *out = (stored){data, bytes};
    return status;
}

static smp_status wrong_count(const smp_onnx_model *model, const char *what, size_t got,
                              int64_t elements)
{
    return smp_fail(SMP_ERR_INPUT, "%s: %s: %zu values are there, its shape has %lld",
                    model->file->path, what, got, (long long)elements);
}

static int64_t integer_of(const uint8_t *at, int type)
{
    int64_t value = 0;
    memcpy(&value, at, (size_t)smp__onnx_type_bytes(type)); /* little-endian */
    switch (type) {
    case TYPE(INT8):
        return (int8_t)value;
    case TYPE(INT16):
        return (int16_t)value;
    case TYPE(INT32):
        return (int32_t)value;
    default:
        return value;
    }
}

static float float_of(const uint8_t *at, int type)
{
    uint16_t half = 0;
    double wide;
    float value;
    switch (type) {
    case TYPE(FLOAT16):
    case TYPE(BFLOAT16):
        memcpy(&half, at, 2);
        if (type == TYPE(BFLOAT16)) {
            const uint32_t bits = (uint32_t)half << 16;
            memcpy(&value, &bits, 4);
        } else {
            smp_stored_dtype_find("F16")->to_float(&half, 1, &value);
        }
        return value;
    case TYPE(DOUBLE):
        memcpy(&wide, at, 8);
        return (float)wide;
    default:
        memcpy(&value, at, 4);
        return value;
    }
}

/* Values whose bytes are there. */
static smp_status of_bytes(smp_onnx_model *model, const stored *from, int64_t n, const char *what,
                           smp_onnx_value *out)
{
    const int size = smp__onnx_type_bytes(out->type);
    if (size == 0)
        return SMP_OK;
    if (from->bytes != (size_t)n * (size_t)size)
        return wrong_count(model, what, from->bytes / (size_t)size, n);
    if (out->type == TYPE(FLOAT) && (uintptr_t)from->data % sizeof(float) == 0) {
        out->floats = (const float *)from->data;
        return SMP_OK;
    }
    if (out->type == TYPE(INT64) && (uintptr_t)from->data % sizeof(int64_t) == 0) {
        out->ints = (const int64_t *)from->data;
        return SMP_OK;
    }
    const bool is_float = smp__onnx_is_float(out->type);
    void *values = smp__onnx_take(model, n, is_float ? sizeof(float) : sizeof(int64_t));
    if (!values)
        return smp_fail(SMP_ERR_INPUT, "%s: %s: constants take too much memory", model->file->path,
                        what);
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *at = from->data + i * size;
        if (is_float)
            ((float *)values)[i] = float_of(at, out->type);
        else
            ((int64_t *)values)[i] = integer_of(at, out->type);
    }
    if (is_float)
        out->floats = values;
    else
        out->ints = values;
    return SMP_OK;
}

/* Values in the fields that a tensor has for its type: narrow ones stand in int32_data. */
static smp_status of_fields(smp_onnx_model *model, const Onnx__TensorProto *t, int64_t n,
                            const char *what, smp_onnx_value *out)
{
    switch (out->type) {
    case TYPE(FLOAT):
        out->floats = n > 0 && t->n_float_data == (size_t)n ? t->float_data : NULL;
        return out->floats ? SMP_OK : wrong_count(model, what, t->n_float_data, n);
    case TYPE(INT64):
        out->ints = n > 0 && t->n_int64_data == (size_t)n ? t->int64_data : NULL;
        return out->ints ? SMP_OK : wrong_count(model, what, t->n_int64_data, n);
    case TYPE(DOUBLE):
        return t->n_double_data == (size_t)n
                   ? of_bytes(model, &(stored){(uint8_t *)t->double_data, (size_t)n * 8}, n, what,
                              out)
                   : wrong_count(model, what, t->n_double_data, n);
    case TYPE(UINT64):
    case TYPE(UINT32):
        if (t->n_uint64_data != (size_t)n)
            return wrong_count(model, what, t->n_uint64_data, n);
        out->ints = (const int64_t *)t->uint64_data;
        return SMP_OK;
    default:
        break;
    }
    const int size = smp__onnx_type_bytes(out->type);
    if (size == 0)
        return SMP_OK;
    if (t->n_int32_data != (size_t)n)
        return wrong_count(model, what, t->n_int32_data, n);
    uint8_t *bytes = smp__onnx_take(model, n, (size_t)size);
    if (!bytes)
        return smp_fail(SMP_ERR_INPUT, "%s: %s: constants take too much memory", model->file->path,
                        what);
    for (int64_t i = 0; i < n; i++)
        memcpy(bytes + i * size, &t->int32_data[i], (size_t)size);
    return of_bytes(model, &(stored){bytes, (size_t)(n * size)}, n, what, out);
}

smp_status smp__onnx_constant(smp_onnx_model *model, const Onnx__TensorProto *tensor,
                              const char *what, smp_onnx_value *out)
{
    if (tensor->n_dims > SMP_ONNX_DIMS)
        return smp_fail(SMP_ERR_INPUT, "%s: %s: has %zu dimensions, expected at most %d",
                        model->file->path, what, tensor->n_dims, SMP_ONNX_DIMS);
    out->type = tensor->data_type;
    out->n_dim = (int)tensor->n_dims;
    for (int i = 0; i < out->n_dim; i++)
        if ((out->dim[i] = tensor->dims[i]) < 0)
            return smp_fail(SMP_ERR_INPUT, "%s: %s: dimension %d is %lld", model->file->path, what,
                            i, (long long)out->dim[i]);
    const int64_t n = smp__onnx_elements(out);
    if (n < 0)
        return smp_fail(SMP_ERR_INPUT, "%s: %s: more than 2^40 values", model->file->path, what);
    if (tensor->segment)
        return smp_fail(SMP_ERR_INPUT, "%s: %s: only a segment of it is there", model->file->path,
                        what);
    if (tensor->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL) {
        stored beside;
        const size_t size = (size_t)smp__onnx_type_bytes(out->type);
        if (size == 0)
            return SMP_OK;
        SMP_TRY(read_beside(model, tensor, what, (size_t)n * size, &beside));
        return of_bytes(model, &beside, n, what, out);
    }
    static const int64_t nothing[1];
    if (n == 0) {
        out->ints = nothing;
        return SMP_OK;
    }
    if (tensor->has_raw_data)
        return of_bytes(model, &(stored){tensor->raw_data.data, tensor->raw_data.len}, n, what,
                        out);
    return of_fields(model, tensor, n, what, out);
}
