// thread.h - what each thread has of its own.
//
// Static TLS comes out of the stack of every thread of the program, CUDA or not. glibc keeps little of it for libraries that come late.
// So only what a launch looks at is __thread, 64 bytes in all. The rest is in a block that a thread gets at its first use.
#ifndef GPREEMPT_THREAD_H
#define GPREEMPT_THREAD_H

#include <stdbool.h>
#include <stdint.h>

// GP_OF_THREAD struct x name; declares something of which each thread has one. Its value is what a thread begins with.
#define GP_OF_THREAD static __attribute__((section("gp_thread")))
// The calling thread's.
#define GP_MINE(name) ((typeof(&(name)))gp_thread_own(&(name)))

// From the declared variable to the calling thread's; 0: it has no block yet.
extern __thread uintptr_t gp_thread_distance __attribute__((tls_model("initial-exec")));
void gp_thread_make(void);

static inline void *gp_thread_own(void *declared)
{
	if (__builtin_expect(!gp_thread_distance, 0))
		gp_thread_make();
	__asm__("" : "+r"(declared)); // the compiler knows no more that it points to a variable that is never written
	return (char *)declared + gp_thread_distance;
}

// False: the end of the calling thread will not be heard, since a limit is reached. Its counts and its block stay for ever.
bool gp_thread_is_heard(void);
// The calling thread ends, in a process that is no forked child. It has its block still. (lifecycle.c)
void gp_thread_ends(void);

#endif
