/* This machine as a cluster of CPU devices.
 *
 * Memory: nine tenths of what is installed, or of the control group's limit where that is smaller,
 * in equal shares. Installed and not currently free memory: the same command makes the same plan
 * whatever else runs. Cores: those this process may use. Arithmetic, memory bandwidth and link are
 * typical of one core of a server of the 2020s, and only orders of magnitude: a profile replaces
 * them. */
#define _GNU_SOURCE /* sched_getaffinity, CPU_COUNT */

#include "profile/cluster.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_LOCAL_DEVICES = 1000000 };

/* Estimates for one core: 32 fp32 operations a cycle at about 3 GHz; oneDNN reaches that on large
 * matrices. Link: copies through shared memory between two ranks of Open MPI. */
#define CORE_FLOPS 100e9
#define CORE_BYTES_PER_S 10e9
#define LINK_LATENCY_US 3
#define LINK_BYTES_PER_S 6e9

/* The number a control-group file starts with; -1 if there is none ("max" means no limit). */
static int64_t read_limit(const char *path, int64_t *second)
{
    long long first = -1, next = -1;
    FILE *file = fopen(path, "r");
    if (!file)
        return -1;
    if (fscanf(file, "%lld %lld", &first, &next) < 1)
        first = -1;
    fclose(file);
    if (second)
        *second = next;
    return first;
}

static int64_t usable_memory(void)
{
    static const char *const limits[] = {"/sys/fs/cgroup/memory.max",
                                         "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
    int64_t bytes = pages > 0 && page > 0 ? (int64_t)pages * page : (int64_t)1 << 30;
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        const int64_t limit = read_limit(limits[i], NULL);
        if (limit > 0 && limit < bytes)
            bytes = limit;
    }
    return bytes / 10 * 9;
}

static int affinity_cores(pid_t pid)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(pid, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

/* mpirun binds each rank to a core of its own; the job's cores are those of the process that
 * started the ranks. */
static int usable_cores(void)
{
    const pid_t starter = getenv("OMPI_COMM_WORLD_SIZE") ? getppid() : 0;
    int64_t period = -1, quota = read_limit("/sys/fs/cgroup/cpu.max", &period);
    int cores = affinity_cores(0);
    if (starter > 0 && affinity_cores(starter) > cores)
        cores = affinity_cores(starter);
    if (cores < 1)
        cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (quota > 0 && period > 0 && (quota + period - 1) / period < cores)
        cores = (int)((quota + period - 1) / period);
    return cores < 1 ? 1 : cores;
}

smp_status smp_cluster_local(int devices, smp_cluster **out)
{
    smp_arena *arena;
    smp_cluster *cluster;
    smp_device_spec *device;
    smp_device_spec core = {
        .name = "cpu", .flops_fp32 = CORE_FLOPS, .bytes_per_s = CORE_BYTES_PER_S};
    if (devices < 1 || devices > MAX_LOCAL_DEVICES)
        return smp_fail(SMP_ERR_INPUT, "devices: got %d, expected 1 to %d", devices,
                        MAX_LOCAL_DEVICES);
    arena = smp_arena_create();
    if (!arena)
        return smp_fail_memory(sizeof *cluster);
    cluster = SMP_ARENA_NEW(arena, smp_cluster, 1);
    device = SMP_ARENA_NEW(arena, smp_device_spec, (size_t)devices);
    if (!cluster || !device) {
        smp_arena_destroy(arena);
        return SMP_ERR_NO_MEMORY;
    }
    core.memory_bytes = usable_memory() / devices;
    for (int i = 0; i < devices; i++)
        device[i] = core;
    cluster->name = "this machine";
    cluster->nodes = 1;
    cluster->devices_per_node = devices;
    cluster->device = device;
    cluster->intra_node.latency_us = LINK_LATENCY_US;
    cluster->intra_node.bytes_per_s = LINK_BYTES_PER_S;
    cluster->inter_node = cluster->intra_node;
    cluster->overlap = true;
    cluster->cores_per_node = usable_cores();
    cluster->arena = arena;
    *out = cluster;
    return SMP_OK;
}
