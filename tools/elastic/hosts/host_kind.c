/* What devices are; see the header. Read from the kernel's texts: no driver is opened for it. */
#include "tools/elastic/hosts/host_kind.h"

#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The value of the first line "KEY ... : VALUE"; empty: there is none. */
static void find_line(const char *path, const char *key, char *value, size_t size)
{
    char line[SMP__KIND_BYTES];
    FILE *file = fopen(path, "re");
    value[0] = '\0';
    while (file && value[0] == '\0' && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) != 0 || !colon)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(value, size, "%.*s", (int)strcspn(colon, "\n"), colon);
    }
    if (file)
        fclose(file);
}

static void add_gpus(char *kind, size_t size)
{
    glob_t found;
    if (glob("/proc/driver/nvidia/gpus/*/information", 0, NULL, &found) != 0)
        return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char model[128];
        const size_t length = strlen(kind);
        find_line(found.gl_pathv[i], "Model", model, sizeof model);
        if (model[0] != '\0' && !strstr(kind, model))
            snprintf(kind + length, size - length, "%s%s", length > 0 ? ", " : "", model);
    }
    globfree(&found);
}

void smp__host_kind(const char *device, char *kind, size_t size)
{
    char model[128];
    kind[0] = '\0';
    if (strcmp(device, "cpu") == 0) {
        find_line("/proc/cpuinfo", "model name", model, sizeof model);
        snprintf(kind, size, "%s, %ld cores", model[0] != '\0' ? model : "a processor",
                 sysconf(_SC_NPROCESSORS_ONLN));
    } else {
        add_gpus(kind, size);
        if (kind[0] == '\0')
            snprintf(kind, size, "no GPU that is known");
    }
    for (char *at = kind; *at; at++)
        *at = *at < ' ' || *at > '~' ? ' ' : *at;
}
