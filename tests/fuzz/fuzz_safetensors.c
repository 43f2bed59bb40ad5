/* The readers of weights. The input is a file; and a head without its length, which changes would
 * not keep right, for so many values as the last byte says. What is taken lies in the file, is
 * found under its name, and can be read. */
#include "tests/fuzz/fuzz.h"

#include "graph/safetensors/weights_match.h"

enum { LENGTH = 8, MOST = 1 << 16 };

static void read_ends(smp_weights_file *file, int32_t tensor)
{
    const int64_t n = file->tensor[tensor].elements;
    float value;
    if (n == 0 || !file->tensor[tensor].dtype->to_float)
        return;
    FUZZ_REQUIRE(smp_weights_file_read(file, tensor, 0, 1, &value) == SMP_OK);
    FUZZ_REQUIRE(smp_weights_file_read(file, tensor, n - 1, 1, &value) == SMP_OK);
}

static void open_file(const char *path)
{
    smp_weights_file *file = NULL;
    if (!fuzz_taken(smp_weights_file_open(path, &file)))
        return;
    const smp_stored_tensor *t = file->tensor;
    for (int32_t i = 0; i < file->n_tensor; i++) {
        int64_t elements;
        FUZZ_REQUIRE(smp_weights_file_find(file, t[i].name) == i);
        FUZZ_REQUIRE(smp_stored_elements(&t[i].shape, &elements) && elements == t[i].elements);
        read_ends(file, i);
    }
    smp_weights_file_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned char file[MOST];
    open_file(fuzz_file(data, size));
    if (size == 0 || size + LENGTH + UINT8_MAX > MOST)
        return 0;
    const size_t n = size - 1, values = data[n];
    for (int i = 0; i < LENGTH; i++)
        file[i] = (unsigned char)(i < 4 ? n >> 8 * i : 0);
    memcpy(file + LENGTH, data, n);
    memset(file + LENGTH + n, 0, values);
    open_file(fuzz_file(file, LENGTH + n + values));
    return 0;
}
