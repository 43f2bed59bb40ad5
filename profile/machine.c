/* This machine as a cluster of CPU devices, and GPUs as a profile knows them.
 *
 * Memory: nine tenths of what is installed, or of the control group's limit where that is smaller,
 * in equal shares. Installed and not currently free memory: the same command makes the same plan
 * whatever else runs. Cores: those this process may use. Arithmetic, memory bandwidth and link are
 * typical of one core of a server of the 2020s, and only orders of magnitude: a profile replaces
 * them. */
#define _GNU_SOURCE /* sched_getaffinity, CPU_COUNT */

#include "profile/profile.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_LOCAL_DEVICES = 1000000 };

/* Estimates for one core: 32 fp32 operations a cycle at about 3 GHz; oneDNN reaches that on large
 * matrices. Link: copies through shared memory between two ranks of Open MPI. */
#define CORE_FLOPS 100e9
#define LINK_LATENCY_US 3
#define LINK_BYTES_PER_S 6e9

/* A GPU whose profile lacks them: one of the 2020s in a PCIe 4 slot. Only times that were not
 * measured depend on them: an update without AdamW's rate, a link that was left out. */
#define GPU_FLOPS 50e12
#define GPU_BYTES_PER_S 2e12
#define GPU_LINK_LATENCY_US 10
#define GPU_LINK_BYTES_PER_S 25e9

/* The number a control-group file starts with; -1 if there is none ("max" means no limit). Takes no
 * memory, so that a lack of it cannot pass for a lack of limits. */
static int64_t read_limit(const char *path, int64_t *second)
{
    long long first = -1, next = -1;
    char text[64];
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    ssize_t n = read(file, text, sizeof text - 1);
    close(file);
    text[n > 0 ? n : 0] = '\0';
    if (sscanf(text, "%lld %lld", &first, &next) < 1)
        first = -1;
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

/* One node of equal devices. */
static smp_status make_cluster(int devices, const smp_device_spec *spec, double latency_us,
                               double link_bytes_per_s, smp_cluster **out)
{
    smp_arena *arena = smp_arena_create();
    if (!arena)
        return SMP_ERR_NO_MEMORY;
    smp_cluster *cluster = SMP_ARENA_NEW(arena, smp_cluster, 1);
    smp_device_spec *device = SMP_ARENA_NEW(arena, smp_device_spec, (size_t)devices);
    const char *name = smp_arena_strdup(arena, spec->name);
    if (!cluster || !device || !name) {
        smp_arena_destroy(arena);
        return SMP_ERR_NO_MEMORY;
    }
    for (int i = 0; i < devices; i++) {
        device[i] = *spec;
        device[i].name = name;
    }
    cluster->name = "this machine";
    cluster->nodes = 1;
    cluster->devices_per_node = devices;
    cluster->device = device;
    cluster->intra_node.latency_us = latency_us;
    cluster->intra_node.bytes_per_s = link_bytes_per_s;
    cluster->inter_node = cluster->intra_node;
    cluster->overlap = true;
    cluster->core_switch_us = SMP_DEFAULT_CORE_SWITCH_US;
    cluster->arena = arena;
    *out = cluster;
    return SMP_OK;
}

static smp_status check_count(int devices)
{
    if (devices < 1 || devices > MAX_LOCAL_DEVICES)
        return smp_fail(SMP_ERR_INPUT, "devices: got %d, expected 1 to %d", devices,
                        MAX_LOCAL_DEVICES);
    return SMP_OK;
}

smp_status smp_cluster_local(int devices, smp_cluster **out)
{
    SMP_TRY(check_count(devices));
    const smp_device_spec core = {.name = "cpu",
                                  .memory_bytes = usable_memory() / devices,
                                  .flops_fp32 = CORE_FLOPS,
                                  .flops_bf16 = 2 * CORE_FLOPS, /* of one that has it */
                                  .flops_fp16 = CORE_FLOPS,     /* which are products in fp32 */
                                  .bytes_per_s = SMP_CORE_BYTES_PER_S};
    SMP_TRY(make_cluster(devices, &core, LINK_LATENCY_US, LINK_BYTES_PER_S, out));
    (*out)->cores_per_node = usable_cores();
    return SMP_OK;
}

static smp_status profiled_gpus(const char *backend, const smp_profile *profile, int devices,
                                smp_cluster **out)
{
    SMP_TRY(check_count(devices));
    if (!profile || profile->memory_bytes <= 0)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: nothing says what the GPUs are: give a cluster file (--cluster), or "
                        "a profile that smp-profile --device %s took on one (--profile)",
                        backend, backend);
    const smp_device_spec gpu = {.name = profile->device,
                                 .memory_bytes = profile->memory_bytes,
                                 .flops_fp32 = GPU_FLOPS,
                                 .bytes_per_s = GPU_BYTES_PER_S};
    return make_cluster(devices, &gpu, GPU_LINK_LATENCY_US, GPU_LINK_BYTES_PER_S, out);
}

static smp_status take_link(const smp_profile *profile, smp_link_kind kind, smp_cluster *cluster)
{
    return profile && profile->link[kind].n_point > 0
               ? smp_cluster_set_link(cluster, kind, &profile->link[kind])
               : SMP_OK;
}

smp_status smp_cluster_default(smp_target target, const smp_profile *profile, int devices,
                               smp_cluster **out)
{
    const bool own_memory = smp_backend_of(target)->own_memory;
    smp_cluster *cluster = NULL;
    if (own_memory)
        SMP_TRY(profiled_gpus(smp_backend_name(target.backend), profile, devices, &cluster));
    else
        SMP_TRY(smp_cluster_local(devices, &cluster));
    if (profile && profile->core_switch_us > 0)
        cluster->core_switch_us = profile->core_switch_us;
    if (profile)
        cluster->scatter = profile->scatter;
    if (profile)
        cluster->keep_bytes_per_s = profile->keep_bytes_per_s;
    if (profile)
        cluster->launch = profile->launch;
    smp_status status = take_link(profile, SMP_LINK_INTRA_NODE, cluster);
    if (status == SMP_OK && own_memory)
        status = take_link(profile, SMP_LINK_HOST, cluster);
    if (status == SMP_OK)
        *out = cluster;
    else
        smp_cluster_destroy(cluster);
    return status;
}
