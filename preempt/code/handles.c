// handles.c - see handles.h.
#define _GNU_SOURCE
#include "preempt/code/handles.h"
#include "preempt/process/facts.h"

#include <pthread.h>

struct gp_handle gp_handle[GP_HANDLES];
_Atomic uint32_t gp_code_generation;
static uint32_t used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of all writing

static void forget(void)
{
	atomic_fetch_add(&gp_code_generation, 1);
	for (size_t i = 0; used && i < GP_HANDLES; i++)
		atomic_store_explicit(&gp_handle[i].function, NULL, memory_order_relaxed);
	used = 0;
	gp_facts_forget();
	atomic_fetch_add(&gp_code_generation, 1);
}

void gp_code_forget(void)
{
	pthread_mutex_lock(&lock);
	forget();
	pthread_mutex_unlock(&lock);
}

static void enter(CUfunction function, const struct gp_code *code)
{
	if (used > GP_HANDLES / 2)
		forget();
	for (size_t i = gp_handle_slot(function), n = 0; n < GP_HANDLE_PROBES; n++, i = (i + 1) % GP_HANDLES) {
		CUfunction handle = atomic_load_explicit(&gp_handle[i].function, memory_order_relaxed);
		if (handle && handle != function)
			continue;
		// A launch that still finds the old handle here and reads this code has to see that all were forgotten between.
		atomic_store_explicit(&gp_handle[i].code, code, memory_order_release);
		if (!handle)
			atomic_store_explicit(&gp_handle[i].loaded, 0, memory_order_release);
		atomic_store_explicit(&gp_handle[i].function, function, memory_order_release);
		used += !handle;
		return;
	}
}

const struct gp_code *gp_handle_look(CUfunction function, uint32_t *generation)
{
	pthread_mutex_lock(&lock);
	*generation = gp_code_generation;
	const struct gp_code *code = gp_handle_find(function);
	pthread_mutex_unlock(&lock);
	return code;
}

void gp_handle_enter(CUfunction function, const struct gp_code *code, uint32_t generation)
{
	pthread_mutex_lock(&lock);
	if (generation == gp_code_generation)
		enter(function, code);
	pthread_mutex_unlock(&lock);
}

void gp_handle_add_loaded(CUfunction function, uint64_t contexts, uint32_t generation)
{
	pthread_mutex_lock(&lock);
	struct gp_handle *h = generation == gp_code_generation ? gp_handle_place(function) : NULL;
	if (h)
		atomic_fetch_or(&h->loaded, contexts);
	pthread_mutex_unlock(&lock);
}
