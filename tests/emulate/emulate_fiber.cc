/* Fibers. On x86-64 a switch saves what the calling convention asks a function to save and
 * exchanges the stack pointers, a few nanoseconds; elsewhere ucontext does it, with a system
 * call. */
#include "emulate_fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "emulate.h"

#if !defined __x86_64__
#include <ucontext.h>
#endif

struct emulate_fiber {
#if defined __x86_64__
    void *top; /* saved registers, lowest address */
#else
    ucontext_t context;
#endif
    void (*body)();
};

static char *make_stack(size_t bytes)
{
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void *memory = mmap(nullptr, bytes + page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0)
        emulate_die("no memory for the stacks of a block's threads");
    return static_cast<char *>(memory) + page;
}

#if defined __x86_64__

extern "C" void emulate_fiber_exchange(void **from, void *to);
__asm__(".text\n"
        ".type emulate_fiber_exchange, @function\n"
        "emulate_fiber_exchange:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size emulate_fiber_exchange, . - emulate_fiber_exchange\n");

static void body_returned()
{
    emulate_die("a fiber returned");
}

emulate_fiber *emulate_fiber_create(size_t stack_bytes, void (*body)())
{
    char *stack = make_stack(stack_bytes);
    emulate_fiber *fiber = new emulate_fiber();
    fiber->body = body;
    /* What the first exchange finds: six registers, the body as return address, and where the body
     * would return to; the stack pointer is 8 below a multiple of 16 there, as after a call. */
    void **top = reinterpret_cast<void **>(stack + stack_bytes) - 1;
    top[0] = reinterpret_cast<void *>(body_returned);
    top[-1] = reinterpret_cast<void *>(body);
    for (int i = 2; i <= 7; i++)
        top[-i] = nullptr;
    fiber->top = top - 7;
    return fiber;
}

emulate_fiber *emulate_fiber_of_caller()
{
    return new emulate_fiber();
}

void emulate_fiber_switch(emulate_fiber *from, emulate_fiber *to)
{
    emulate_fiber_exchange(&from->top, to->top);
}

#else

emulate_fiber *emulate_fiber_create(size_t stack_bytes, void (*body)())
{
    emulate_fiber *fiber = new emulate_fiber();
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = make_stack(stack_bytes);
    fiber->context.uc_stack.ss_size = stack_bytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, body, 0);
    return fiber;
}

emulate_fiber *emulate_fiber_of_caller()
{
    return new emulate_fiber();
}

void emulate_fiber_switch(emulate_fiber *from, emulate_fiber *to)
{
    swapcontext(&from->context, &to->context);
}

#endif
