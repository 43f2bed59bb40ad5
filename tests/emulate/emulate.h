/* A GPU on the CPU, for tests: the sources of the kernels and of the code that drives them are
 * compiled as C++ and C against the headers in this folder, and mistakes that a GPU may forgive
 * for years are made to show at once.
 *
 * A block's threads are fibers that switch only where CUDA lets threads wait for each other, in an
 * order that changes from launch to launch: a missing barrier gives wrong results. Blocks run one
 * after another, in an order that changes too. Shared memory and device memory start as NaN; both
 * have red zones. The host cannot touch device memory.
 *
 * A stream is a queue. Nothing runs when it is enqueued; whoever queries or waits runs items of
 * all streams, in a random order that CUDA allows: a missing event wait gives wrong results.
 * Whatever is wrong beyond doubt (barriers that not all threads reach, memory out of bounds) is
 * reported on stderr and aborts.
 *
 * Environment, read when the first call is made:
 *   SMP_EMULATE_ORDER=forward|backward|SEED   order of blocks, threads and streams; default: SEED 1
 *   SMP_EMULATE_DEVICES=N                     0: cudaErrorNoDevice; default 1. Where it is set a
 *                                             process sees those of CUDA_VISIBLE_DEVICES, if any
 *   SMP_EMULATE_MEMORY=BYTES                  of each device; default 4 GiB
 *   SMP_EMULATE_CAPABILITY=80|86|90|...       default 80; shared memory is that of such a GPU
 *   SMP_EMULATE_DRIVER=12080                  of CUDA 12.8; default: as the runtime
 *   SMP_EMULATE_MULTIPROCESSORS=N             default 2: grids are small, so loops over the rest
 *                                             run
 *   SMP_EMULATE_LIBRARIES=BYTES               of device memory are taken by the first launch
 *   SMP_EMULATE_SLOW="RANK MICROSECONDS"      every kernel of that rank takes so much longer
 *   SMP_EMULATE_FAIL=N                        the Nth kernel that runs fails (illegal address)
 *   SMP_EMULATE_GRAPHS=N                      so many graphs get instances, then there is no
 *                                             memory for one
 *   SMP_EMULATE_LAZY=1                        a kernel that is first launched while something waits
 *                                             for another process aborts: it is loaded then
 *   SMP_EMULATE_MIG=1                         the devices are slices of one GPU: UUIDs, one bus id
 *   SMP_EMULATE_DNN=right|wrong|fails|no-plan cuDNN's attention: as it should be, with keys seen
 *                                             that are hidden, whose run is refused, which has no
 *                                             plan; default: there is no cuDNN. back-wrong, ..:
 *                                             backward alone; back-tail: wrong for the last
 *                                             key; back-large: in more workspace
 *   SMP_EMULATE_PROTECT=0                     lets the host read device memory */
#ifndef SMP_TESTS_EMULATE_EMULATE_H
#define SMP_TESTS_EMULATE_EMULATE_H

#include <cstddef>
#include <cstdint>
#include <functional>

#include "cuda_runtime_api.h"

/* For emulations of libraries. The item runs in the stream's order, with access to device memory,
 * and returns false as long as it must wait; then it is called again later. It makes no CUDA
 * calls. */
void emulate_enqueue(cudaStream_t stream, std::function<bool()> item);
/* Items that wait for another process, enqueued and not done. */
extern long emulate_waiting_for_others;
/* Kernels that have run. */
long emulate_kernels_run();
/* From within an item: the device fails with this error, for ever, as after a bad access. */
void emulate_device_fail(cudaError_t error);
/* Runs some items, if any can run; what polling the library means for the device. */
void emulate_progress();

/* For tests. Starts the order of everything anew. */
void emulate_set_order(const char *order);
/* Reads the environment again, forgets every error. */
void emulate_restart();
/* Allocations of device and pinned memory that have not been freed. */
size_t emulate_live_allocations();
/* Looks at all red zones now: the number of allocations written to out of bounds. */
size_t emulate_damaged_allocations();

/* Reports what is wrong and aborts. */
[[noreturn]] void emulate_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
