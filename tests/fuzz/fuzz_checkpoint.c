/* The checkpoint reader, in jobs of one process, one that trains and one for inference: a file lies
 * beside a whole checkpoint, and has the name of a later one. What is refused as damaged is passed
 * over for the whole one, so that the job can be used.
 *
 * An input that is shorter than a header stands for a file that is well made but for its text:
 * zeroes, the right hash and whole weights follow. No search would find a hash that fits. */
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "exec/checkpoint/checkpoint_file.h"
#include "exec/checkpoint/checkpoint_folder.h"
#include "graph/base/text.h"

enum { TEXT_BYTES = SMP__CHECKPOINT_HEADER_BYTES - 8, LATER = 7 };

static char folder[256], first[SMP__CHECKPOINT_PATH_BYTES], later[SMP__CHECKPOINT_PATH_BYTES];
static char whole[65536]; /* the file that is saved */
static size_t whole_bytes, header_at;

static void write_file(const char *path, const void *data, size_t size)
{
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    FUZZ_REQUIRE(fd >= 0 && write(fd, data, size) == (ssize_t)size && close(fd) == 0);
}

static void remove_files(void)
{
    unlink(later);
    unlink(first);
    rmdir(folder);
}

static void make_folder(void)
{
    const char *place = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.200s/smp-fuzz-XXXXXX", place ? place : P_tmpdir);
    FUZZ_REQUIRE(mkdtemp(folder) != NULL);
    smp__checkpoint_path(first, folder, 0);
    smp__checkpoint_path(later, folder, LATER);
    atexit(remove_files);
}

static smp *start(const char *model)
{
    smp *job = NULL;
    smp_options options = smp_options_default();
    options.model = model;
    options.planning.microbatches = options.planning.microbatch_size = 1;
    FUZZ_REQUIRE(smp_init(&job, &options) == SMP_OK);
    return job;
}

/* A file of that job, for both to fall back on. */
static void save(smp *job)
{
    FUZZ_REQUIRE(smp_save(job, folder) == SMP_OK);
    FILE *saved = fopen(first, "rb");
    FUZZ_REQUIRE(saved != NULL);
    whole_bytes = fread(whole, 1, sizeof whole, saved);
    FUZZ_REQUIRE(feof(saved) && fclose(saved) == 0);
    uint64_t head;
    memcpy(&head, whole, sizeof head);
    header_at = head + sizeof head;
}

/* The same weights in the other mode. */
static smp *start_inference(void)
{
    static const char mode[] = "mode: inference\n";
    char text[4096] = "";
    FILE *file = fopen(FUZZ_MODEL, "rb");
    FUZZ_REQUIRE(file != NULL);
    const size_t length = fread(text, 1, sizeof text - sizeof mode, file);
    FUZZ_REQUIRE(feof(file) && fclose(file) == 0);
    memcpy(text + length, mode, sizeof mode);
    return start(fuzz_file(text, strlen(text)));
}

static void load(smp *job)
{
    if (!fuzz_taken(smp_load(job, folder)))
        return; /* refused: of another model, optimizer, step or version */
    smp_step_result result;
    const int32_t tokens[4] = {1, 2, 3, 4}, targets[4] = {2, 3, 4, 5};
    const void *inputs[] = {tokens, targets};
    FUZZ_REQUIRE(smp_evaluate(job, inputs, &result) == SMP_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static smp *training, *inference;
    static char made[sizeof whole];
    if (!training) {
        make_folder();
        training = start(FUZZ_MODEL);
        save(training);
        inference = start_inference();
    }
    if (size <= TEXT_BYTES) {
        memcpy(made, whole, whole_bytes);
        char *header = made + header_at;
        memset(header, 0, TEXT_BYTES);
        if (size > 0)
            memcpy(header, data, size);
        const uint64_t hash = smp_hash(0, header, TEXT_BYTES);
        memcpy(header + TEXT_BYTES, &hash, sizeof hash);
        write_file(later, made, whole_bytes);
    } else {
        write_file(later, data, size);
    }
    load(training);
    load(inference);
    return 0;
}
