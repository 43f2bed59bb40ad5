/* Device memory and pinned memory. An allocation of the device is pages of its own: a red zone of
 * a page before the memory and one of at least a page behind it, all bytes 0xff at first (a NaN in
 * every format). Between calls the host has no access to it (mostly, where there is much of it):
 * what a GPU would not let it read stops the program here too. Freed memory is gone, so is access
 * to it.
 *
 * Traffic is counted by closing it to kernels too: the first access to a page is a fault, which
 * notes it and opens the page. */
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "emulate_state.h"
#include "emulate_traffic.h"

namespace
{

struct device_block {
    size_t bytes;
    size_t span; /* of the mapping, which starts a page before */
    int device;
};
struct pinned_block {
    size_t bytes;
    char *raw; /* what was allocated; NULL: registered */
};

enum { PINNED_ZONE = 256 };
std::map<char *, device_block> device_blocks;
std::map<char *, pinned_block> pinned_blocks;
bool is_open = true;

size_t page()
{
    static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

void set_access(char *memory, const device_block &block, bool open)
{
    if (mprotect(memory - page(), block.span, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
        emulate_die("mprotect of device memory failed");
}

void set_access_of_all(bool open)
{
    if (is_open == open || !emulate_setting().protect)
        return;
    for (const auto &[memory, block] : device_blocks)
        set_access(memory, block, open);
    is_open = open;
}

/* The block that contains the address; end() if none. */
template <typename T> auto containing(std::map<char *, T> &blocks, const void *address)
{
    char *p = const_cast<char *>(static_cast<const char *>(address));
    auto next = blocks.upper_bound(p);
    if (next == blocks.begin())
        return blocks.end();
    auto block = std::prev(next);
    return p < block->first + block->second.bytes ? block : blocks.end();
}

template <typename T> bool touches(std::map<char *, T> &blocks, const char *memory, size_t bytes)
{
    if (containing(blocks, memory) != blocks.end())
        return true;
    auto next = blocks.upper_bound(const_cast<char *>(memory));
    return next != blocks.end() && next->first < memory + bytes;
}

/* NULL, or which side was written to. */
const char *damage(const char *memory, const device_block &block)
{
    const size_t behind = block.span - page() - block.bytes;
    return !emulate_is_poison(memory - page(), page())        ? "before its start"
           : !emulate_is_poison(memory + block.bytes, behind) ? "behind its end"
                                                              : nullptr;
}

const char *damage(const char *memory, const pinned_block &block)
{
    return !block.raw                                              ? nullptr
           : !emulate_is_poison(block.raw, PINNED_ZONE)            ? "before its start"
           : !emulate_is_poison(memory + block.bytes, PINNED_ZONE) ? "behind its end"
                                                                   : nullptr;
}

bool is_counting, is_counted; /* in this process; the item that runs */
emulate_traffic traffic;

/* Opens the page for what was tried. A page that is written first may be read unnoticed: what a
 * kernel wrote itself. */
bool count_access(char *address, const ucontext_t *context)
{
#ifdef REG_ERR
    const bool writes = context->uc_mcontext.gregs[REG_ERR] & 2;
    if (!is_counted || containing(device_blocks, address) == device_blocks.end())
        return false;
    (writes ? traffic.written : traffic.read) += static_cast<long>(page());
    char *start = address - reinterpret_cast<uintptr_t>(address) % page();
    return mprotect(start, page(), writes ? PROT_READ | PROT_WRITE : PROT_READ) == 0;
#else
    (void)address, (void)context;
    return false;
#endif
}

/* A bad access of the host, most often to device memory: said, then left to the default. */
void bad_access(int signal_number, siginfo_t *info, void *context)
{
    char *address = static_cast<char *>(info->si_addr);
    if (count_access(address, static_cast<ucontext_t *>(context)))
        return;
    for (const auto &[memory, block] : device_blocks)
        if (address >= memory - page() && address < memory - page() + block.span) {
            static const char text[] = "CUDA emulator: the host touched device memory\n";
            if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
                break;
        }
    signal(signal_number, SIG_DFL);
}

void watch_accesses(struct sigaction *before)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    static char stack[1 << 16]; /* those of fibers are small */
    const stack_t own = {stack, 0, sizeof stack};
    sigaltstack(&own, nullptr);
    action.sa_sigaction = bad_access;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, before);
}

/* Once, unless the program has a handler of its own. */
void watch_host()
{
    static bool watched;
    struct sigaction action;
    if (watched || sigaction(SIGSEGV, nullptr, &action) != 0 || action.sa_handler != SIG_DFL)
        return;
    watched = true;
    watch_accesses(nullptr);
}

bool libraries_loaded;
size_t graph_bytes;

size_t used_bytes(int device)
{
    size_t sum = graph_bytes + (libraries_loaded ? emulate_setting().libraries : 0);
    for (const auto &[memory, block] : device_blocks)
        if (block.device == device)
            sum += block.span - 2 * page();
    return sum;
}

} // namespace

void emulate_memory_open()
{
    set_access_of_all(true);
}

/* Closing takes time with the number of pages: many pages are closed at every few calls only. */
void emulate_memory_close()
{
    enum { PAGES_PER_CALL = 256 };
    static size_t pages;
    if (!is_open || !emulate_setting().protect)
        return;
    size_t all = 0;
    for (const auto &[memory, block] : device_blocks)
        all += block.span / page();
    pages += PAGES_PER_CALL;
    if (pages < all)
        return;
    pages = 0;
    set_access_of_all(false);
}

bool emulate_memory_take(size_t bytes)
{
    const size_t used = used_bytes(emulate_current_device());
    const bool there = bytes <= emulate_setting().memory - used;
    graph_bytes += there ? bytes : 0;
    return there;
}

void emulate_memory_give(size_t bytes)
{
    graph_bytes -= bytes;
}

bool emulate_memory_load_libraries()
{
    const emulate_settings &setting = emulate_setting();
    libraries_loaded = libraries_loaded ||
                       used_bytes(emulate_current_device()) + setting.libraries <= setting.memory;
    return libraries_loaded;
}

void emulate_memory_forget_libraries()
{
    libraries_loaded = false;
}

void emulate_traffic_begin()
{
    if (!is_counting)
        return;
    is_counted = true;
    for (const auto &[memory, block] : device_blocks)
        set_access(memory, block, false);
}

void emulate_traffic_end(bool done)
{
    if (!is_counted)
        return;
    traffic.launches += done;
    is_counted = false;
    for (const auto &[memory, block] : device_blocks)
        set_access(memory, block, true);
}

emulate_place emulate_where(const void *memory, size_t bytes)
{
    const char *start = static_cast<const char *>(memory);
    const auto on_device = containing(device_blocks, memory);
    if (on_device != device_blocks.end())
        return start + bytes <= on_device->first + on_device->second.bytes ? emulate_place::device
                                                                           : emulate_place::mixed;
    if (touches(device_blocks, start, bytes))
        return emulate_place::mixed;
    const auto pinned = containing(pinned_blocks, memory);
    if (pinned != pinned_blocks.end())
        return start + bytes <= pinned->first + pinned->second.bytes ? emulate_place::pinned
                                                                     : emulate_place::mixed;
    return touches(pinned_blocks, start, bytes) ? emulate_place::mixed : emulate_place::pageable;
}

size_t emulate_live_allocations()
{
    return device_blocks.size() + pinned_blocks.size();
}

size_t emulate_damaged_allocations()
{
    emulate_call call(false);
    emulate_memory_open();
    size_t n = 0;
    for (const auto &[memory, block] : device_blocks)
        n += damage(memory, block) != nullptr;
    for (const auto &[memory, block] : pinned_blocks)
        n += damage(memory, block) != nullptr;
    return n;
}

extern "C" {

bool emulate_traffic_count(bool on)
{
#ifdef REG_ERR
    cudaDeviceSynchronize();
    emulate_call call(false);
    static struct sigaction before;
    if (on && !is_counting && emulate_setting().protect)
        watch_accesses(&before);
    if (!on && is_counting)
        sigaction(SIGSEGV, &before, nullptr);
    is_counting = on && emulate_setting().protect;
    if (on)
        traffic = {0, 0, 0};
    return is_counting == on;
#else
    return !on;
#endif
}

emulate_traffic emulate_traffic_counted(void)
{
    return traffic;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    emulate_unsafe_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (!memory)
        return call.done(cudaErrorInvalidValue);
    *memory = nullptr;
    if (bytes == 0)
        return cudaSuccess;
    const size_t span = (bytes + page() - 1) / page() * page();
    if (span < bytes || span > emulate_setting().memory ||
        used_bytes(emulate_current_device()) > emulate_setting().memory - span)
        return call.done(cudaErrorMemoryAllocation);
    char *start = static_cast<char *>(mmap(nullptr, span + 2 * page(), PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (start == MAP_FAILED)
        return call.done(cudaErrorMemoryAllocation);
    memset(start, 0xff, span + 2 * page());
    *memory = start + page();
    const device_block block = {bytes, span + 2 * page(), emulate_current_device()};
    device_blocks.emplace(start + page(), block);
    if (emulate_setting().protect) {
        watch_host();
        set_access(start + page(), block, is_open);
    }
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    cudaDeviceSynchronize(); /* as CUDA does; its error comes from the next line too */
    emulate_unsafe_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (!memory)
        return cudaSuccess;
    const auto found = device_blocks.find(static_cast<char *>(memory));
    if (found == device_blocks.end())
        return call.done(cudaErrorInvalidValue);
    emulate_memory_open();
    const char *where = damage(found->first, found->second);
    if (where)
        emulate_die("device memory %p of %zu bytes was written to %s", memory, found->second.bytes,
                    where);
    munmap(found->first - page(), found->second.span);
    device_blocks.erase(found);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    *total_bytes = emulate_setting().memory;
    *free_bytes = *total_bytes - used_bytes(emulate_current_device());
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned)
{
    emulate_unsafe_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (!memory)
        return call.done(cudaErrorInvalidValue);
    *memory = nullptr;
    if (bytes == 0)
        return cudaSuccess;
    const size_t all = (bytes + 2 * PINNED_ZONE + 255) / 256 * 256;
    char *raw = all < bytes ? nullptr : static_cast<char *>(aligned_alloc(256, all));
    if (!raw)
        return call.done(cudaErrorMemoryAllocation);
    memset(raw, 0xff, all);
    *memory = raw + PINNED_ZONE;
    pinned_blocks.emplace(raw + PINNED_ZONE, pinned_block{bytes, raw});
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    return cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *memory)
{
    cudaDeviceSynchronize();
    emulate_unsafe_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (!memory)
        return cudaSuccess;
    const auto found = pinned_blocks.find(static_cast<char *>(memory));
    if (found == pinned_blocks.end() || !found->second.raw)
        return call.done(cudaErrorInvalidValue);
    const char *where = damage(found->first, found->second);
    if (where)
        emulate_die("pinned memory %p of %zu bytes was written to %s", memory, found->second.bytes,
                    where);
    free(found->second.raw);
    pinned_blocks.erase(found);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (!memory || bytes == 0)
        return call.done(cudaErrorInvalidValue);
    if (touches(pinned_blocks, static_cast<char *>(memory), bytes))
        return call.done(cudaErrorHostMemoryAlreadyRegistered);
    pinned_blocks.emplace(static_cast<char *>(memory), pinned_block{bytes, nullptr});
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    const auto found = pinned_blocks.find(static_cast<char *>(memory));
    if (found == pinned_blocks.end() || found->second.raw)
        return call.done(cudaErrorHostMemoryNotRegistered);
    pinned_blocks.erase(found);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    void *address = const_cast<void *>(pointer);
    const auto found = containing(device_blocks, pointer);
    if (found != device_blocks.end())
        *attributes = {cudaMemoryTypeDevice, found->second.device, address, nullptr};
    else if (emulate_where(pointer, 1) == emulate_place::pinned)
        *attributes = {cudaMemoryTypeHost, 0, address, address};
    else
        *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, address};
    return cudaSuccess;
}

} // extern "C"
