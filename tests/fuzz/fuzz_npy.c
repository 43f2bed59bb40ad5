/* The reader of NumPy arrays: the same file for an input of floats, and for one of indices. */
#include "tests/fuzz/fuzz_source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_read_sources(fuzz_file(data, size));
    return 0;
}
