/* What the parts of the emulator share. */
#ifndef SMP_TESTS_EMULATE_EMULATE_STATE_H
#define SMP_TESTS_EMULATE_EMULATE_STATE_H

#include <mutex>
#include <vector>

#include "emulate.h"
#include "emulate_launch.h"

/* emulate_settings.cc */
enum class emulate_order { forward, backward, random };

struct emulate_settings {
    emulate_order order;
    int devices;              /* that the process sees */
    std::vector<int> visible; /* [devices]: which of the machine's they are */
    size_t memory;
    int capability;
    int driver; /* as cudaDriverGetVersion says */
    int multiprocessors;
    size_t libraries; /* bytes of device memory that the first launch takes */
    long fail;        /* this kernel fails, counted from 1; 0: none */
    unsigned slow_us; /* that a kernel takes longer */
    long graphs;      /* so many at most have instances */
    bool lazy;        /* kernels are loaded when they are first launched */
    bool mig;         /* devices are slices of one GPU */
    bool protect;
};
const emulate_settings &emulate_setting();
uint64_t emulate_random();               /* of the one sequence that the seed starts */
size_t emulate_random_below(size_t n);   /* 0 where the order is not random */
size_t emulate_shared_limit(bool optin); /* bytes of shared memory a block may have */

/* Every call of the runtime begins with one: it locks the emulator, and says at once what is wrong
 * with the device or the caller. At the end device memory is locked again. */
struct emulate_call {
    explicit emulate_call(bool needs_device = true);
    ~emulate_call();
    emulate_call(const emulate_call &) = delete;
    cudaError_t error; /* return it unless cudaSuccess */
    cudaError_t
    done(cudaError_t code); /* returns the code, or what became of the device meanwhile */
};
/* One that a thread may not make while it captures a stream (emulate_graph.cc). */
struct emulate_unsafe_call : emulate_call {
    emulate_unsafe_call();
};
int emulate_current_device();
bool emulate_failed();            /* has the device failed for ever? */
extern bool emulate_running_item; /* calls of the runtime are not permitted */

/* emulate_block.cc: what all blocks of a launch share; then one block, the one in blockIdx. */
void emulate_block_prepare(const emulate_launch &launch, const std::function<void()> &thread);
void emulate_block_run();
/* emulate_launch.cc: are all bytes 0xff? */
bool emulate_is_poison(const void *memory, size_t bytes);
/* emulate_shared.cc: static shared memory of the kernels, found in the program's symbol table. */
struct emulate_range {
    unsigned char *start;
    size_t bytes;
};
const std::vector<emulate_range> &emulate_static_shared();

/* emulate_memory.cc */
enum class emulate_place { device, pinned, pageable, mixed };
emulate_place emulate_where(const void *memory,
                            size_t bytes); /* mixed: across an end of something */
void emulate_memory_open();                /* the host may touch device memory until it is closed */
void emulate_memory_close();
/* What libraries take, once; false: there is not so much. */
bool emulate_memory_load_libraries();
void emulate_memory_forget_libraries();
/* By graphs. False: there is not so much. */
bool emulate_memory_take(size_t bytes);
void emulate_memory_give(size_t bytes);
void emulate_traffic_begin(); /* of an item that touches device memory, if traffic is counted */
void emulate_traffic_end(bool done);

/* emulate_stream.cc */
struct emulate_item {
    std::function<bool()> run; /* false: must wait */
    bool touches_memory;
};
/* emulate_graph.cc */
bool emulate_is_captured(cudaStream_t stream);
bool emulate_capture_take(cudaStream_t stream, const emulate_item &item); /* false: it is to run */
bool emulate_capture_spoil(); /* false: this thread captures nothing */
cudaError_t emulate_stream_check(cudaStream_t stream);
void emulate_stream_put(cudaStream_t stream, emulate_item item);
/* Runs items of all streams until `done` says true. */
void emulate_run_until(const std::function<bool()> &done);
cudaError_t emulate_stream_finish(cudaStream_t stream);

#endif
