/* Lists of hosts; see the header. A name becomes a word of a command: it holds letters, digits and
 * ".-_" alone, and does not begin as an option does. */
#include "tools/elastic/hosts/host_list.h"

#include <ctype.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "graph/base/text.h"

enum { FILE_BYTES = 1 << 20 };

void smp__host_list_free(smp__host_list *list)
{
    free(list->host);
    *list = (smp__host_list){0};
}

static bool is_name(const char *word, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)word[i]) && !strchr(".-_", word[i]))
            return false;
    return length > 0 && length < SMP__HOST_NAME && isalnum((unsigned char)word[0]);
}

/* Once more where the name is there already. */
static smp_status add_host(smp__host_list *list, const char *name, size_t length, int devices)
{
    if (!is_name(name, length))
        return smp_fail(SMP_ERR_INPUT, "got '%.*s', expected the name of a host",
                        (int)(length < 40 ? length : 40), name);
    for (int i = 0; i < list->n; i++)
        if (strlen(list->host[i].name) == length && memcmp(list->host[i].name, name, length) == 0) {
            list->host[i].devices += devices;
            return list->host[i].devices <= SMP__HOST_DEVICES
                       ? SMP_OK
                       : smp_fail(SMP_ERR_INPUT, "%s: more than %d devices", list->host[i].name,
                                  SMP__HOST_DEVICES);
        }
    if (list->n == SMP__HOSTS_MOST)
        return smp_fail(SMP_ERR_INPUT, "more than %d hosts", SMP__HOSTS_MOST);
    smp__listed_host *more = realloc(list->host, ((size_t)list->n + 1) * sizeof *more);
    if (!more)
        return smp_fail_memory(sizeof *more);
    list->host = more;
    list->host[list->n].devices = devices;
    snprintf(list->host[list->n++].name, SMP__HOST_NAME, "%.*s", (int)length, name);
    return SMP_OK;
}

/* A word NAME=N of a line; others than slots are those of mpirun and say nothing here. */
static smp_status read_setting(const char *word, int *slots)
{
    int64_t value = 0;
    const char *equals = strchr(word, '=');
    if (!equals)
        return smp_fail(SMP_ERR_INPUT, "got '%.40s', expected slots=N", word);
    if (strncmp(word, "slots=", strlen("slots=")) != 0)
        return SMP_OK;
    if (!smp_parse_int(equals + 1, &value) || value < 1 || value > SMP__HOST_DEVICES)
        return smp_fail(SMP_ERR_INPUT, "got '%.40s', expected slots=N, N from 1 to %d", word,
                        SMP__HOST_DEVICES);
    *slots = (int)value;
    return SMP_OK;
}

static smp_status read_line(char *line, smp__host_list *list)
{
    char *rest = NULL;
    int slots = 1;
    line[strcspn(line, "#\r")] = '\0';
    const char *name = strtok_r(line, " \t", &rest);
    if (!name)
        return SMP_OK;
    for (const char *word; (word = strtok_r(NULL, " \t", &rest));)
        SMP_TRY(read_setting(word, &slots));
    return add_host(list, name, strlen(name), slots);
}

smp_status smp__host_list_read(const char *path, smp__host_list *out)
{
    char *text = NULL, *rest;
    size_t bytes = 0;
    int number = 0;
    *out = (smp__host_list){0};
    SMP_TRY(smp_file_read(path, FILE_BYTES, &text, &bytes));
    smp_status status = memchr(text, '\0', bytes)
                            ? smp_fail(SMP_ERR_INPUT, "expected text, got a zero byte")
                            : SMP_OK;
    rest = text;
    for (char *line; status == SMP_OK && (line = strsep(&rest, "\n")); number++)
        status = read_line(line, out);
    if (status == SMP_OK && out->n == 0)
        status = smp_fail(SMP_ERR_INPUT, "no host is named");
    if (status == SMP_ERR_INPUT) {
        char why[256];
        snprintf(why, sizeof why, "%s", smp_last_error());
        status = smp_fail(SMP_ERR_INPUT, "%s:%d: %s", path, number, why);
    }
    free(text);
    if (status != SMP_OK)
        smp__host_list_free(out);
    return status;
}

/* Number `i` of a list of Slurm's, "2(x3),1": 2, 2, 2, 1. 0: there is none. */
static int find_repeated(const char *list, int i)
{
    while (list && *list) {
        char *end;
        const long value = strtol(list, &end, 10);
        long times = 1;
        if (end == list)
            return 0;
        if (strncmp(end, "(x", 2) == 0) {
            times = strtol(end + 2, &end, 10);
            end += *end == ')';
        }
        if (i < times)
            return value > 0 && value <= SMP__HOST_DEVICES ? (int)value : 0;
        i -= (int)times;
        list = *end == ',' ? end + 1 : "";
    }
    return 0;
}

/* Tasks where so many were asked for, else the GPUs or cores of each. */
static int devices_of_slurm(bool gpus, int host)
{
    const char *tasks = getenv("SLURM_NTASKS") ? getenv("SLURM_TASKS_PER_NODE") : NULL;
    const char *all = getenv(gpus ? "SLURM_GPUS_ON_NODE" : "SLURM_JOB_CPUS_PER_NODE");
    int devices = tasks ? find_repeated(tasks, host) : find_repeated(all, gpus ? 0 : host);
    return devices > 0 ? devices : 1;
}

static smp_status read_slurm(bool gpus, smp__host_list *out)
{
    char line[SMP__HOST_NAME + 2];
    FILE *names = popen("scontrol show hostnames", "re"); /* of SLURM_JOB_NODELIST */
    smp_status status = SMP_OK;
    if (!names)
        return smp_fail(SMP_ERR_FAILED, "scontrol cannot be started");
    while (status == SMP_OK && fgets(line, sizeof line, names))
        if (line[0] != '\n')
            status = add_host(out, line, strcspn(line, "\n"), devices_of_slurm(gpus, out->n));
    const int code = pclose(names);
    if (status == SMP_OK && (code != 0 || out->n == 0))
        status = smp_fail(SMP_ERR_INPUT, "scontrol show hostnames names no host: --hosts does");
    return status;
}

/* A line for each device. */
static smp_status read_pbs(const char *path, smp__host_list *out)
{
    return smp__host_list_read(path, out);
}

smp_status smp__host_list_batch(bool gpus, smp__host_list *out)
{
    const char *slurm = getenv("SLURM_JOB_NODELIST"), *pbs = getenv("PBS_NODEFILE");
    *out = (smp__host_list){0};
    const smp_status status = slurm && *slurm ? read_slurm(gpus, out)
                              : pbs && *pbs   ? read_pbs(pbs, out)
                                              : SMP_OK;
    if (status != SMP_OK)
        smp__host_list_free(out);
    return status;
}

static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    if (!b || a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET)
        return memcmp(&((const struct sockaddr_in *)(const void *)a)->sin_addr,
                      &((const struct sockaddr_in *)(const void *)b)->sin_addr,
                      sizeof(struct in_addr)) == 0;
    return a->sa_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr,
                  sizeof(struct in6_addr)) == 0;
}

bool smp__host_is_here(const char *name)
{
    char own[SMP__HOST_NAME] = "";
    struct addrinfo *found = NULL;
    struct ifaddrs *links = NULL;
    bool here = false;
    gethostname(own, sizeof own - 1);
    if (strcmp(name, "localhost") == 0 || strcmp(name, own) == 0)
        return true;
    if (getaddrinfo(name, NULL, NULL, &found) != 0 || getifaddrs(&links) != 0)
        links = NULL;
    for (const struct addrinfo *a = found; a && !here; a = a->ai_next)
        for (const struct ifaddrs *link = links; link && !here; link = link->ifa_next)
            here = same_address(a->ai_addr, link->ifa_addr);
    if (links)
        freeifaddrs(links);
    if (found)
        freeaddrinfo(found);
    return here;
}
