/* The readers of images: a folder of one file, decoded if its header is taken. Decoding may refuse
 * what the header promised. */
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>

#include "exec/data/data.h"

enum { SIZE = 4 };

static char folder[256], file[280];

static void remove_files(void)
{
    unlink(file);
    rmdir(folder);
}

static const smp_graph *parse(int channels)
{
    static smp_graph *graph[4];
    char text[256];
    if (graph[channels])
        return graph[channels];
    snprintf(text, sizeof text,
             "smp: 1\nmode: inference\ninputs: {x: {dtype: float32, shape: [%d, %d, %d]}}\n"
             "ops: [{op: relu, name: relu, in: x, out: y}]\n",
             channels, SIZE, SIZE);
    FUZZ_REQUIRE(smp_graph_parse("model.yaml", text, strlen(text), &graph[channels]) == SMP_OK);
    return graph[channels];
}

static void read_as(int channels)
{
    char spec[300];
    const char *const sources[] = {spec};
    smp_data_options options = {.sources = sources, .n_source = 1, .global_batch = 1};
    smp_data *opened = NULL;
    float values[3 * SIZE * SIZE];
    snprintf(spec, sizeof spec, "x=%s", folder);
    if (!fuzz_taken(smp_data_open(parse(channels), &options, &opened)))
        return;
    FUZZ_REQUIRE(smp_data_samples(opened) == 1);
    if (fuzz_taken(smp_data_read(opened, 0, 1, 0, values)))
        for (int i = 0; i < channels * SIZE * SIZE; i++)
            FUZZ_REQUIRE(values[i] >= 0.0f && values[i] <= 1.0f);
    smp_data_close(opened);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (folder[0] == '\0') {
        const char *place = getenv("TMPDIR");
        snprintf(folder, sizeof folder, "%.200s/smp-fuzz-XXXXXX", place ? place : P_tmpdir);
        FUZZ_REQUIRE(mkdtemp(folder) != NULL);
        snprintf(file, sizeof file, "%s/image", folder);
        atexit(remove_files);
    }
    int fd = open(file, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    FUZZ_REQUIRE(fd >= 0 && write(fd, data, size) == (ssize_t)size && close(fd) == 0);
    read_as(1);
    read_as(3);
    return 0;
}
