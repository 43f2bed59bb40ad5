/* Runs a fuzz target once on every file that is given, or lies in a folder that is given: the
 * corpus as an ordinary test, with any compiler. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <sys/stat.h>

static int files;

static void replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    FUZZ_REQUIRE(file && fseek(file, 0, SEEK_END) == 0);
    const long size = ftell(file);
    FUZZ_REQUIRE(size >= 0 && fseek(file, 0, SEEK_SET) == 0);
    uint8_t *data = malloc((size_t)size + (size == 0)); /* no byte more: reading past it is seen */
    FUZZ_REQUIRE(data && fread(data, 1, (size_t)size, file) == (size_t)size);
    fclose(file);
    fprintf(stderr, "%s\n", path);
    LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    files++;
}

static void replay_folder(const char *path)
{
    char inside[4096];
    DIR *folder = opendir(path);
    FUZZ_REQUIRE(folder != NULL);
    for (struct dirent *entry; (entry = readdir(folder));)
        if (entry->d_name[0] != '.') {
            snprintf(inside, sizeof inside, "%.2000s/%s", path, entry->d_name);
            replay_file(inside);
        }
    closedir(folder);
}

int main(int argc, char **argv)
{
    struct stat info;
    for (int i = 1; i < argc; i++) {
        FUZZ_REQUIRE(stat(argv[i], &info) == 0);
        if (S_ISDIR(info.st_mode))
            replay_folder(argv[i]);
        else
            replay_file(argv[i]);
    }
    FUZZ_REQUIRE(files > 0);
    return 0;
}
