/* Preloaded into smp-run: counts what the program calls, and at one call makes a fault.
 *
 *   FAULT_COUNT=FILE           at the end FILE.<rank> says how often each call was made
 *   FAULT="RANK CALL N WHAT X" at the N-th CALL of the rank (names: the list below) WHAT happens:
 *     kill, stop               the signal, right before the call; `kill` in a write: after half
 *     exit                     exit code X, without a word
 *     sleep, slow, drag        X milliseconds, once; in this call and the next 20; in all from here
 *     cut                      the file $FAULT_FILE loses its second half
 *     short, interrupted       half is read or written; EINTR
 *     error, full              errno X, once; ENOSPC from here on, whatever takes space
 *   FAULT_LOG=FILE             is written when it happens: time (CLOCK_MONOTONIC), process, path
 *   FAULT_FULL=FILE            while it is there ENOSPC, whatever takes space in files whose paths
 *   FAULT_FULL_IN=TEXT         have this in them
 *
 * Calls count if they come from the program itself: those of MPI, of the C library and of this file
 * are none of its business. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <mpi.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/fd_path.h"

/* What a rank does in its actions, then what it does with files and memory. */
#define CALLS(X)                                                                                   \
    X(dnnl_sgemm)                                                                                  \
    X(MPI_Isend)                                                                                   \
    X(MPI_Irecv)                                                                                   \
    X(MPI_Iallreduce)                                                                              \
    X(MPI_Ibcast)                                                                                  \
    X(MPI_Iallgather)                                                                              \
    X(MPI_Ialltoall)                                                                               \
    X(pread)                                                                                       \
    X(pwrite)                                                                                      \
    X(write)                                                                                       \
    X(open)                                                                                        \
    X(close)                                                                                       \
    X(fsync)                                                                                       \
    X(ftruncate)                                                                                   \
    X(rename)                                                                                      \
    X(unlink)                                                                                      \
    X(mkdir)                                                                                       \
    X(opendir)                                                                                     \
    X(mmap)

#define ENUM(name) CALL_##name,
#define TEXT(name) #name,
enum { CALLS(ENUM) N_CALL };
static const char *const call_names[] = {CALLS(TEXT)};

enum { SLOW_CALLS = 20 };

static atomic_long made[N_CALL];
static uintptr_t program_begin, program_end;

static struct {
    int call; /* -1: none on this rank */
    long at;
    char what[16];
    int number;
    bool full; /* from now on */
} fault = {.call = -1};

static int find_program(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size;
    (void)context;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        const uintptr_t end = begin + info->dlpi_phdr[i].p_memsz;
        if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X)) {
            program_begin = begin;
            program_end = end;
        }
    }
    return 1; /* the first one is the program */
}

static const char *own_rank(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    return rank ? rank : "0";
}

__attribute__((constructor)) static void read_fault(void)
{
    const char *text = getenv("FAULT");
    char call[64];
    int rank = -1;
    long at = 0;
    dl_iterate_phdr(find_program, NULL);
    if (!text)
        return;
    if (sscanf(text, "%d %63s %ld %15s %d", &rank, call, &at, fault.what, &fault.number) != 5)
        abort();
    if (rank != atoi(own_rank()))
        return;
    fault.at = at;
    for (int i = 0; i < N_CALL; i++)
        if (strcmp(call, call_names[i]) == 0)
            fault.call = i;
    if (fault.call < 0)
        abort();
}

__attribute__((destructor)) static void write_counts(void)
{
    const char *prefix = getenv("FAULT_COUNT");
    char path[4096];
    if (!prefix)
        return;
    snprintf(path, sizeof(path), "%s.%s", prefix, own_rank());
    FILE *file = fopen(path, "w");
    for (int i = 0; file && i < N_CALL; i++)
        fprintf(file, "%s %ld\n", call_names[i], (long)made[i]);
    if (file)
        fclose(file);
}

/* Whoever reads the log finds the whole line or none. */
static void leave_mark(int fd)
{
    const char *path = getenv("FAULT_LOG");
    char target[4096], line[8192];
    struct timespec now;
    if (!path)
        return;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    const int length = snprintf(line, sizeof(line), "%lld.%09ld %d %s\n", (long long)now.tv_sec,
                                now.tv_nsec, (int)getpid(), fd_path(fd, target));
    const int log = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (log < 0 || syscall(SYS_write, log, line, (size_t)length) != length)
        abort();
    syscall(SYS_close, log);
}

static bool is(const char *what)
{
    return strcmp(fault.what, what) == 0;
}

static void pass_time(int ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

static void cut_file(void)
{
    const char *path = getenv("FAULT_FILE");
    struct stat info;
    if (!path || stat(path, &info) != 0 || truncate(path, info.st_size / 2) != 0)
        abort();
}

static bool of_program(const void *caller)
{
    return (uintptr_t)caller >= program_begin && (uintptr_t)caller < program_end;
}

/* Counts a call from `caller`. True: its fault is due now. */
static bool due(int call, const void *caller)
{
    if (!of_program(caller))
        return false;
    const long n = ++made[call];
    if (call != fault.call || n < fault.at)
        return false;
    return n == fault.at || is("drag") || (is("slow") && n <= fault.at + SLOW_CALLS);
}

/* What befalls the process. */
static void befall(int fd)
{
    leave_mark(fd);
    if (is("kill"))
        raise(SIGKILL);
    else if (is("stop"))
        raise(SIGSTOP);
    else if (is("exit"))
        _exit(fault.number);
    else if (is("sleep") || is("slow") || is("drag"))
        pass_time(fault.number);
    else if (is("cut"))
        cut_file();
}

/* Does the file of `fd`, or of `path`, lie on a disk that is full just now? */
static bool disk_is_full(int fd, const char *path)
{
    const char *file = getenv("FAULT_FULL"), *in = getenv("FAULT_FULL_IN");
    char target[4096];
    if (!file || !in || syscall(SYS_faccessat, AT_FDCWD, file, F_OK) != 0)
        return false;
    return strstr(fd >= 0 ? fd_path(fd, target) : path, in) != NULL;
}

/* For calls that can fail: false if this one does, errno is set. `path`: NULL with a descriptor. */
static bool admit(int call, const void *caller, int fd, const char *path, bool takes_space)
{
    if (due(call, caller)) {
        befall(fd);
        fault.full = is("full");
        if (is("error") || is("interrupted")) {
            errno = is("error") ? fault.number : EINTR;
            return false;
        }
    }
    if (takes_space && of_program(caller) && (fault.full || disk_is_full(fd, path))) {
        errno = ENOSPC;
        return false;
    }
    return true;
}

/* The same for a transfer of n bytes, of which *n may happen; true in *die: and then no more. */
static bool admit_bytes(int call, const void *caller, int fd, bool writing, size_t *n, bool *die)
{
    const bool now = fault.call == call && of_program(caller) && made[call] + 1 == fault.at;
    *die = now && writing && is("kill");
    if ((*die || (now && is("short"))) && due(call, caller)) {
        leave_mark(fd);
        *n -= *n / 2;
        return true;
    }
    return admit(call, caller, fd, NULL, writing);
}

#define CALLER __builtin_return_address(0)

/* MPI and oneDNN: only what befalls the process. */
#define PASS(type, name, parameters, arguments)                                                    \
    __attribute__((visibility("default"))) type name parameters                                    \
    {                                                                                              \
        static type(*real) parameters;                                                             \
        if (!real)                                                                                 \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                                             \
        if (due(CALL_##name, CALLER))                                                              \
            befall(-1);                                                                            \
        return real arguments;                                                                     \
    }

int dnnl_sgemm(char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha,
               const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
               int64_t ldc);
PASS(int, dnnl_sgemm,
     (char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
      int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc),
     (transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc))
PASS(int, MPI_Isend,
     (const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *r),
     (data, n, type, to, tag, comm, r))
PASS(int, MPI_Irecv,
     (void *data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *r),
     (data, n, type, from, tag, comm, r))
PASS(int, MPI_Iallreduce,
     (const void *from, void *to, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
      MPI_Request *r),
     (from, to, n, type, op, comm, r))
PASS(int, MPI_Ibcast,
     (void *data, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *r),
     (data, n, type, root, comm, r))
PASS(int, MPI_Iallgather,
     (const void *from, int n, MPI_Datatype type, void *to, int each, MPI_Datatype to_type,
      MPI_Comm comm, MPI_Request *r),
     (from, n, type, to, each, to_type, comm, r))
PASS(int, MPI_Ialltoall,
     (const void *from, int n, MPI_Datatype type, void *to, int each, MPI_Datatype to_type,
      MPI_Comm comm, MPI_Request *r),
     (from, n, type, to, each, to_type, comm, r))

ssize_t pread(int fd, void *data, size_t n, off_t offset)
{
    bool die = false;
    if (!admit_bytes(CALL_pread, CALLER, fd, false, &n, &die))
        return -1;
    return syscall(SYS_pread64, fd, data, n, offset);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    bool die = false;
    if (!admit_bytes(CALL_pwrite, CALLER, fd, true, &n, &die))
        return -1;
    const ssize_t done = syscall(SYS_pwrite64, fd, data, n, offset);
    if (die)
        raise(SIGKILL);
    return done;
}

ssize_t write(int fd, const void *data, size_t n)
{
    bool die = false;
    if (!admit_bytes(CALL_write, CALLER, fd, true, &n, &die))
        return -1;
    const ssize_t done = syscall(SYS_write, fd, data, n);
    if (die)
        raise(SIGKILL);
    return done;
}

int open(const char *path, int flags, ...)
{
    int mode = 0;
    if (flags & O_CREAT) {
        __builtin_va_list list;
        __builtin_va_start(list, flags);
        mode = __builtin_va_arg(list, int);
        __builtin_va_end(list);
    }
    if (!admit(CALL_open, CALLER, -1, path, (flags & O_CREAT) != 0))
        return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

/* As a network file system does: closed, but not all is written. */
int close(int fd)
{
    const bool ok = admit(CALL_close, CALLER, fd, NULL, false);
    const int reason = errno, code = (int)syscall(SYS_close, fd);
    if (ok)
        return code;
    errno = reason;
    return -1;
}

int fsync(int fd)
{
    return admit(CALL_fsync, CALLER, fd, NULL, false) ? (int)syscall(SYS_fsync, fd) : -1;
}

int ftruncate(int fd, off_t length)
{
    return admit(CALL_ftruncate, CALLER, fd, NULL, true) ? (int)syscall(SYS_ftruncate, fd, length)
                                                         : -1;
}

int rename(const char *from, const char *to)
{
    return admit(CALL_rename, CALLER, -1, to, false) ? (int)syscall(SYS_rename, from, to) : -1;
}

int unlink(const char *path)
{
    return admit(CALL_unlink, CALLER, -1, path, false) ? (int)syscall(SYS_unlink, path) : -1;
}

int mkdir(const char *path, mode_t mode)
{
    return admit(CALL_mkdir, CALLER, -1, path, true) ? (int)syscall(SYS_mkdir, path, mode) : -1;
}

DIR *opendir(const char *path)
{
    static DIR *(*real)(const char *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "opendir");
    return admit(CALL_opendir, CALLER, -1, path, false) ? real(path) : NULL;
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    if (!admit(CALL_mmap, CALLER, fd, NULL, false))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}
