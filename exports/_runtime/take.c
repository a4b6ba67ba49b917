// take.c - added to package runtime/cgo of the library (see the Makefile): how its runtime asks for a thread (threads.go), and tells that it
// waits for memory (memory.go).
#include <stdbool.h>
#include <stdint.h>

extern bool gp_go_take(bool may_create) __attribute__((weak)); // exports/go_runtime.c

void x_cgo_take_thread(void *asked)
{
	struct { int32_t may_create, given; } *ask = asked;
	ask->given = !gp_go_take || gp_go_take(ask->may_create);
}

uint32_t x_cgo_memory_waits; // threads
